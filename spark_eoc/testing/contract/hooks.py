"""What a sink's author gives to the contract, and what its tests share."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest

from spark_eoc.errors import SparkEocError
from spark_eoc.sinks.entries import Refused
from spark_eoc.sinks.ledger import Open
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column, Sink
from spark_eoc.testing.lines import Killer
from spark_eoc.testing.steps import Run, rows_of

COLUMNS = (Column("id", "bigint"), Column("v", "string"))


def numbered(*ids: int) -> Rows:
    """Rows ``(id, "v<id>")``."""
    return rows_of({"id": list(ids), "v": [f"v{number}" for number in ids]})


def refused(outcome: Any, error: type[SparkEocError]) -> bool:
    """Whether a task reports a refusal by this error, saying what was applied and what to do."""
    named = isinstance(outcome, Refused) and outcome.error == error.__name__
    return named and bool(outcome.what and outcome.applied and outcome.next_step)


class SinkHooks:
    """The hooks. Two must be given; of the others, what needs one that is left out is skipped."""

    #: What must show in no repr, message or pickle; give it to the sink as its password.
    secret: str | None = None

    def make_sink(self) -> Sink:
        """A new sink on the test's empty target, each time as another process would build it."""
        raise NotImplementedError

    def rows_in_sink(self) -> list[int]:
        """The ``id`` of every row that readers of the target see, as often as it is there."""
        raise NotImplementedError

    def cut_off(self, sink: Sink) -> Sink:
        """This sink, which was checked, with its server gone and a budget of a second or so."""
        pytest.skip("cut_off() is not offered")

    def lost_answer(self) -> AbstractContextManager[Any]:
        """Inside, the next commit happens on the server and its answer is lost, once."""
        pytest.skip("lost_answer() is not offered")

    def history_entries(self) -> int:
        """How many complete batches the target's ledger remembers."""
        pytest.skip("history_entries() is not offered")

    def sink_files(self) -> list[str]:
        """The files in which a step is killed, line by line."""
        return [inspect.getfile(type(self.make_sink()))]

    # The rest is no hook.

    def run(self, name: str = "run-1", **more: Any) -> Run:
        """A run of a query, on a sink of its own."""
        return Run(self.make_sink(), COLUMNS, run_id=name, **more)

    def require(self, *ids: int) -> None:
        """Exactly these rows are in the sink."""
        found = Counter(self.rows_in_sink())
        extra, lost = found - Counter(ids), Counter(ids) - found
        assert not extra, f"too often in the sink: {sorted(extra.elements())}"
        assert not lost, f"not in the sink: {sorted(lost.elements())}"

    def complete(self, run: Run, batch_id: int, partitions: Mapping[int, Rows]) -> None:
        """The batch from wherever it stands to its end, as a new call."""
        assert isinstance(run.open(batch_id), Open)
        for number, rows in partitions.items():
            assert not isinstance(run.apply(number, rows), Refused)
        run.close()

    @pytest.fixture(scope="class")
    @classmethod
    def killer(cls) -> Iterator[Killer]:
        """Makes steps in other processes and kills them; one for the class."""
        with Killer([__name__, "pandas", cls.__module__]) as killer:
            yield killer
