"""The ledger protocol on a real Redis, driven by hand: crashes, repeats, zombies, other content."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_eoc.errors import (
    CheckpointMismatchError,
    FencedError,
    HalfAppliedError,
    ReplayMismatchError,
)
from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Refused
from spark_eoc.sinks.ledger import Compare
from spark_eoc.sinks.redis import window
from spark_eoc.sinks.redis.keys import LedgerKeys
from tests.sinks.redis.broken import LedgerApartSink, PositionalSink, TokenlessSink
from tests.sinks.redis.driving import (
    Run,
    added,
    counters,
    error_of,
    fail_after_chunk,
    ledger_keys,
    rows_of,
    stored,
    totals,
)

NewRun = Callable[..., Run]


@pytest.mark.parametrize("window_rows", [3, 17, 200_000])
@pytest.mark.parametrize("point", ["redis.before_chunk", "redis.after_chunk", "redis.after_unit"])
def test_e7_a_failure_at_every_chunk(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, point: str, window_rows: int
) -> None:
    """E7: a task that dies before or after its k-th chunk, for every k, then runs again: once.

    The rows come back in another order, as after a shuffle, and a partition is worked on in one
    window, in some, or in windows smaller than a key.
    """
    monkeypatch.setattr(window, "WINDOW_ROWS", window_rows)
    data, shuffled = counters(), random.Random(1)
    chunks = 1 if point == "redis.after_unit" else 6
    run = new_run("{k}", "hincrby", chunk_rows=2)
    for batch in range(chunks):
        monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
        monkeypatch.setenv("SPARK_EOC_FAILPOINT", f"{point}:{batch + 1}=raise")
        run.open(batch)
        with pytest.raises(FailpointError):
            run.apply(data)
        monkeypatch.delenv("SPARK_EOC_FAILPOINT")
        run.open(batch)
        order = shuffled.sample(range(len(data["k"])), len(data["k"]))
        again = {name: [values[i] for i in order] for name, values in data.items()}
        assert run.apply(again) in (Applied(), AlreadyApplied())
        run.close()
        assert added(run) == totals(data, batch + 1)


def test_a_batch_in_another_order_goes_on_only_because_chunks_follow_the_keys(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken variant: chunks cut by position can never go on after a reshuffle."""
    data = {"k": list(range(40)), "v": list(range(40))}
    back = {name: values[::-1] for name, values in data.items()}
    good = new_run("good:{k}", "hset", chunk_rows=10)
    bad = new_run("bad:{k}", "hset", chunk_rows=10)
    bad.sink = PositionalSink(bad.sink.target)
    for run in (good, bad):
        run.open(0)
        fail_after_chunk(run, rows_of(data), monkeypatch)
        run.open(0)
    assert good.apply(back) == Applied()
    refused = bad.apply(back)
    assert isinstance(refused, Refused)
    assert refused.error == "ReplayMismatchError"


def test_windows_end_at_a_keys_end(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large partition is worked on in windows, which cut no key of ordered rows either."""
    monkeypatch.setattr(window, "WINDOW_ROWS", 10)
    data = {"k": [i % 13 for i in range(39)], "v": list(range(39))}
    back = {name: values[::-1] for name, values in data.items()}
    run = new_run("{k}", "hset")
    for batch in range(4):
        run.open(batch)
        fail_after_chunk(run, rows_of(data), monkeypatch, batch + 1)
        run.open(batch)
        assert run.apply(back) == Applied()
        run.close()


def test_a_ledger_in_a_step_of_its_own_doubles(
    new_run: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken variant: rows and entry in two steps, and a crash between them counts twice."""
    data = counters()
    for name, expected in (("good", 1), ("bad", 2)):
        run = new_run(name + ":{k}", "hincrby")
        if name == "bad":
            run.sink = LedgerApartSink(run.sink.target)
        run.open(0)
        fail_after_chunk(run, rows_of(data), monkeypatch)
        run.open(0)
        run.apply(data)
        assert stored(client, f"{prefix}:{name}") == totals(data, expected), name


def test_e8_a_stopped_run_is_fenced_in_both_orders(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """E8: A is stopped inside its batch and B takes over; whichever writes first, it is once."""
    data = counters()
    for batch, zombie_first in enumerate((False, True)):
        a, b = (new_run("{k}", "hincrby", run_id=f"{name}-{batch}") for name in "AB")
        a.open(batch)
        b.open(batch)
        if zombie_first:
            assert error_of(a.apply(data)) == "FencedError"
            assert b.apply(data) == Applied()
        else:
            assert b.apply(data) == Applied()
            assert error_of(a.apply(data)) == "FencedError"
        with pytest.raises(FencedError):
            a.close()
        b.close()
        assert stored(client, prefix) == totals(data, batch + 1)
        with pytest.raises(FencedError):
            a.open(batch + 1)


def test_a_straggler_of_the_same_run_is_fenced_by_its_calls_token(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """The token is new for every call: a task of the first call may not write in the second."""
    data = counters()
    first = new_run("{k}", "hincrby")
    first.open(0)
    late = Run(first.sink, first.writer_id)
    late.control, late.call, late.reported = first.control, first.call, {}
    first.open(0)
    assert error_of(late.apply(data)) == "FencedError"
    late.sink = TokenlessSink(first.sink.target)
    other = {"k": [99], "n": [1]}
    assert late.apply(other) == Applied(), "the broken variant without a token writes"
    assert error_of(first.apply(data)) == "ReplayMismatchError"


def test_two_copies_of_a_task_together_write_once(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """E6: speculative copies of one task, at the same time: every chunk once, both succeed."""
    data = counters(2000, 500)
    run = new_run("{k}", "hincrby", chunk_rows=5)
    run.open(0)
    rows = rows_of(data)
    outcomes: list[Any] = []
    copies = [threading.Thread(target=lambda: outcomes.append(run.apply(rows))) for _ in range(4)]
    for copy in copies:
        copy.start()
    for copy in copies:
        copy.join()
    run.close()
    assert Applied() in outcomes
    assert set(map(type, outcomes)) <= {Applied, AlreadyApplied}
    assert stored(client, prefix) == totals(data)


def test_a_newer_batch_is_never_overwritten(new_run: NewRun) -> None:
    """A task of batch 0 that comes back when batch 1 is written finds itself fenced."""
    run = new_run("{k}", "hincrby")
    run.batch(0, counters())
    old = Run(run.sink, run.writer_id)
    old.control, old.call, old.reported = run.control, run.call, {}
    run.batch(1, counters())
    assert error_of(old.apply(counters())) == "FencedError"
    old.sink = TokenlessSink(old.sink.target)
    assert error_of(old.apply(counters())) == "FencedError", "by the unit entry alone"


def test_another_content_is_refused(new_run: NewRun, client: Any, prefix: str) -> None:
    """Equal counts, other rows: ReplayMismatchError, and nothing written."""
    data = counters()
    run = new_run("{k}", "hincrby")
    run.open(0)
    run.apply(data)
    run.open(0)
    other = {**data, "n": data["n"][::-1]}
    assert error_of(run.apply(other)) == "ReplayMismatchError"
    assert stored(client, prefix) == totals(data)
    with pytest.raises(ReplayMismatchError):
        run.close()


def test_a_complete_batch_is_compared_and_not_written(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """E1: the newest batch comes again in a new run: recognised, by its history."""
    run = new_run("{k}", "hincrby")
    for batch in range(3):
        run.batch(batch, counters())
    again = new_run("{k}", "hincrby", run_id="run-2")
    decision = again.open(2)
    assert isinstance(decision, Compare)
    assert decision.completed.fingerprint == rows_of(counters()).fingerprint()
    again.batch(3, counters())
    assert stored(client, prefix) == totals(counters(), 4)


def test_history_and_units_are_pruned(new_run: NewRun, client: Any, prefix: str) -> None:
    """The ledger stays small: 100 batches of history, and units of the newest batch only."""
    run = new_run("{k}", "hincrby")
    for batch in range(103):
        run.batch(batch, *([{"k": [1], "n": [1]}] * (1 + batch % 3)))
    sizes = {key.rpartition(b":")[2]: client.hlen(key) for key in ledger_keys(client, prefix)}
    assert sizes[b"history"] == 100
    assert sizes[b"units"] == 1
    assert stored(client, prefix) == {b"1": b"%d" % (35 * 1 + 34 * 2 + 34 * 3)}


def test_an_empty_batch_is_closed(new_run: NewRun) -> None:
    """E9: a batch without rows leaves its history entry, and the next one goes on."""
    run = new_run("{k}", "hincrby")
    run.batch(0)
    run.batch(1, counters())


def test_identity(new_run: NewRun) -> None:
    """Another query id is refused; adopted only in a first call, and then the ledger is new."""
    new_run("{k}", "hincrby").batch(0, counters())
    stranger = new_run("{k}", "hincrby", run_id="run-2")
    with pytest.raises(CheckpointMismatchError):
        stranger.open(0, query_id="query-2")
    stranger.open(0, query_id="query-2", adopt=True)
    stranger.apply(counters())
    stranger.close()
    with pytest.raises(CheckpointMismatchError):
        new_run("{k}", "hincrby", run_id="run-3").open(1)


def test_adoption_waits_for_a_half_applied_batch(new_run: NewRun) -> None:
    """A batch of the old query that is partly applied must be completed by the old query."""
    run = new_run("{k}", "hincrby")
    run.open(0)
    run.apply(counters())
    stranger = new_run("{k}", "hincrby", run_id="run-2")
    with pytest.raises(CheckpointMismatchError, match="can't be adopted"):
        stranger.open(0, query_id="query-2", adopt=True)


def test_an_error_after_the_first_write_is_never_repeated(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """A chunk that failed half-way: HalfAppliedError now, for every later try, and at the open."""
    run = new_run("{k}", "hincrby")
    source = run.sink.unit_writer._source

    class Failing(run.sink.unit_writer):  # type: ignore[name-defined, misc]
        def _source(self) -> str:
            return source(self).replace(
                "do write(i)", "do write(i) if i == 5 then error('boom') end"
            )

    broken = type("BrokenSink", (type(run.sink),), {"unit_writer": Failing})(run.sink.target)
    good, run.sink = run.sink, broken
    run.open(0)
    refused = run.apply(counters())
    assert error_of(refused) == "HalfAppliedError"
    assert "boom" in refused.what
    run.sink = good
    before = stored(client, prefix)
    assert before
    assert error_of(run.apply(counters())) == "HalfAppliedError"
    with pytest.raises(HalfAppliedError) as caught:
        run.open(0)
    assert stored(client, prefix) == before
    # What the message says mends it.
    client.delete(*client.keys(f"{prefix}:*"))
    entry = str(caught.value.next_step).partition(" to ")[2].partition(" ")[0]
    client.hset(LedgerKeys.of(run.sink.target.ledger, run.writer_id).units, "0", entry)
    run.open(0)
    assert run.apply(counters()) == Applied()
    run.close()
    assert stored(client, prefix) == totals(counters())


def test_a_unit_without_its_rows_is_not_closed(new_run: NewRun) -> None:
    """Close accepts exactly the units that tasks reported: none missing, none partial."""
    run = new_run("{k}", "hincrby")
    run.open(0)
    run.apply(counters())
    run.reported[1] = rows_of(counters()).fingerprint()
    with pytest.raises(ReplayMismatchError):
        run.close()


def test_an_open_that_changed_meanwhile_is_decided_again(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare and set: a unit that appears between read and store is seen by the decision."""
    run = new_run("{k}", "hincrby")
    run.open(0)
    old = Run(run.sink, run.writer_id)
    old.control, old.call, old.reported = run.control, run.call, {}
    seen: list[int] = []

    def decide(view: Any) -> Any:
        seen.append(view.open_units)
        if len(seen) == 1:
            assert old.apply(counters()) == Applied()
        from spark_eoc.sinks.ledger import decide_open  # noqa: PLC0415

        return decide_open(view, replace(run.call, token="another"))

    run.sink.open_batch(run.writer_id, 0, decide)
    assert seen == [0, 1]
