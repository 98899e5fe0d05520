"""The tests that every sink must pass: subclass :class:`SinkContract` in your own pytest.

    class TestOrders(SinkContract):
        def make_sink(self): ...
        def rows_in_sink(self): ...

Give the subclass what it needs, such as a database of its own for each test, by an autouse
fixture. The tests write rows ``(id BIGINT, v STRING)``, and the sink must *append* them, or count
them, so that a row that is written twice shows.
"""

from __future__ import annotations

from spark_eoc.testing.contract.batches import BatchContract
from spark_eoc.testing.contract.crashes import CrashContract
from spark_eoc.testing.contract.fences import FenceContract
from spark_eoc.testing.contract.travel import TravelContract
from spark_eoc.testing.contract.units import UnitContract
from spark_eoc.testing.contract.whole import WholeContract


class SinkContract(
    UnitContract, FenceContract, BatchContract, CrashContract, TravelContract, WholeContract
):
    """What a sink promises, test by test; each test's docstring names the promise.

    ``make_sink`` and ``rows_in_sink`` must be given. A hook that can't be offered is left out:
    what needs it is skipped, saying so. See :class:`~spark_eoc.testing.contract.hooks.SinkHooks`.
    """
