"""Contract: what a sink shows of itself, and how it gets to the tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from pyspark import cloudpickle

from spark_eoc.errors import SinkUnavailableError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Outcome, Refused
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.contract.hooks import SinkHooks, numbered, refused
from spark_eoc.testing.lines import Killer


class TravelContract(SinkHooks):
    """What a sink shows of itself, and how it gets to the tasks."""

    def test_it_travels(self, killer: Killer) -> None:
        """E10: a copy writes as the original does, in this process and in another."""
        run = self.run()
        run.open(0)
        original = run.sink
        run.sink = pickle.loads(pickle.dumps(original))  # noqa: S301  our own
        assert run.apply(0, numbered(1)) == Applied()
        rows = numbered(2)
        assert not killer.killed_at([], 1, partial(original.apply, run.unit(1, rows), rows))
        assert run.apply(1, rows) == AlreadyApplied()
        run.close()
        self.require(1, 2)

    def test_it_shows_no_secret(self) -> None:
        """Neither its repr nor its pickle's text."""
        sink = self.run().sink
        assert " object at 0x" not in repr(sink), "a repr that says what it writes to"
        if self.secret is None:
            pytest.skip("secret is not set")
        for text in (repr(sink), str(sink), repr(vars(sink)), *_pickles(sink)):
            assert self.secret not in text

    def test_a_server_that_is_not_there(self) -> None:
        """SinkUnavailableError, from a task as a row; it shows no secret."""
        run = self.run()
        run.open(0)
        gone = self.cut_off(run.sink)
        outcome = _outcome(partial(gone.apply, run.unit(0, numbered(1)), numbered(1)))
        assert refused(outcome, SinkUnavailableError)
        with pytest.raises(SinkUnavailableError) as caught:
            gone.units("w", 0)
        assert self.secret is None or self.secret not in f"{caught.value!r} {outcome}"
        assert run.apply(0, numbered(1)) == Applied()
        self.require(1)


def _pickles(sink: Sink) -> Sequence[str]:
    return [dumps(sink).decode("latin-1") for dumps in (pickle.dumps, cloudpickle.dumps)]


def _outcome(step: Callable[[], Outcome]) -> Outcome:
    try:
        return step()
    except SinkUnavailableError as error:
        return Refused(type(error).__name__, error.what, error.applied, error.next_step)
