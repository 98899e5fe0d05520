"""The ledger over hash slots, on a real cluster: every interleaving that could double or lose."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from spark_eoc.errors import (
    CheckpointMismatchError,
    FencedError,
    HalfAppliedError,
    ReplayMismatchError,
    SinkBehindError,
    SinkUnavailableError,
)
from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.ledger import Compare, decide_replay
from spark_eoc.sinks.redis.cluster import flight, ledger
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.ledger import ClusterLedger
from spark_eoc.sinks.redis.cluster.lua_slot import TAKE_SCRIPT
from spark_eoc.sinks.redis.cluster.slots import SLOTS, slot_of, tag_of
from spark_eoc.testing.redis_cluster import RedisCluster
from tests.sinks.redis.cluster.clusters import slots, stored, wide
from tests.sinks.redis.driving import Run, counters, error_of, rows_of, totals

NewRun = Callable[..., Run]


def test_tags_lie_in_their_slots(redis_cluster: RedisCluster) -> None:
    """A tag for every slot, none of two characters that end a tag; slots are the server's."""
    tags = [tag_of(slot) for slot in range(SLOTS)]
    assert [slot_of(b"x{%b}y" % tag.encode()) for tag in tags] == list(range(SLOTS))
    for key in (b"123456789", b"a{b}c", b"{}a", b"a{b", b"{{a}}", b"a{b}{c}", b"", b"\xff{\x00}"):
        assert redis_cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key) == slot_of(key)


def test_e7_a_failure_at_every_flight(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E7: a task dies before or after each flight of chunks; then it runs again, its rows in
    another order: what is applied is recognised slot by slot, and counters are exact."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 24)
    data, shuffled, batch = wide(90), random.Random(1), 0
    run = new_run("{k}", "hincrby", chunk_rows=2)
    for point in ("redis.before_chunk", "redis.after_chunk"):
        for number in (1, 2, 4):
            run.open(batch)
            with _failing(monkeypatch, f"{point}:{number}"), pytest.raises(FailpointError):
                run.apply(data)
            run.open(batch)
            again = _shuffled(data, shuffled)
            _compared(run, batch, again)
            assert run.apply(again) in (Applied(), AlreadyApplied())
            assert run.apply(data) == AlreadyApplied()
            run.close()
            batch += 1
            assert stored(redis_cluster, prefix) == totals(data, batch)


def test_a_batch_that_is_partly_applied_with_other_rows_is_refused(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pass 1 compares exactly what each slot has applied."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 24)
    data, run = wide(90), new_run("{k}", "hincrby")
    run.open(0)
    with _failing(monkeypatch, "redis.after_chunk:2"), pytest.raises(FailpointError):
        run.apply(data)
    before = stored(redis_cluster, prefix)
    assert before
    run.open(0)
    other = {"k": data["k"], "n": [n + 1 for n in data["n"]]}
    with pytest.raises(ReplayMismatchError):
        _compared(run, 0, other)
    assert error_of(run.apply(other)) == "ReplayMismatchError"
    run.open(0)
    _compared(run, 0, data)
    run.apply(data)
    run.close()
    assert stored(redis_cluster, prefix) == totals(data)


def _compared(run: Run, batch: int, data: dict[str, Any]) -> None:
    rows = rows_of(data)
    found = run.sink.units(run.writer_id, batch)
    prefixes = {e.partition: run.sink.applied_part(rows, e) for e in found if not e.complete}
    if found:
        assert decide_replay(found, {0: rows.fingerprint()}, prefixes, "{}", "{}")


def test_e8_a_stopped_run_is_fenced_in_both_orders(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """E8: A is stopped inside its batch and B takes over; whichever writes first, it is once."""
    data = wide(60)
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
        assert stored(redis_cluster, prefix) == totals(data, batch + 1)
        with pytest.raises(FencedError):
            a.open(batch + 1)


class Straggler:
    """A task of an older call that has registered its slots, and stops before it writes any."""

    def __init__(self, run: Run, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.data, self._patch = _task_of(run), data, monkeypatch
        with _failing(monkeypatch, "redis.before_chunk"), pytest.raises(FailpointError):
            self.run.apply(data)

    def goes_on(self, *slots: int) -> Any:
        """It writes to these slots now, as if it had been registered a moment ago."""
        sink = self.run.sink
        keys = ClusterKeys.of(sink.target.ledger, self.run.writer_id)
        outcomes = []
        for number, key in enumerate(self.data["k"]):
            name = sink.target.command.key.text.replace("{k}", str(key)).encode()
            if slot_of(name) in slots:
                rows = {"k": [key], "n": [self.data["n"][number]]}
                outcomes.append(_without_registering(self.run, rows, keys, slot_of(name)))
        return outcomes


@pytest.mark.parametrize("fenced", [0, 7, 1000])
def test_an_open_that_dies_while_it_fences(
    new_run: NewRun,
    redis_cluster: RedisCluster,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    fenced: int,
) -> None:
    """The driver dies after k slots have its token. An older task may go on in the others, and
    nowhere else; the next call sees what it wrote, and no row is doubled."""
    data, run = wide(24), new_run("{k}", "hincrby")
    run.open(0)
    straggler = Straggler(run, data, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "each_slot", _dying_after(fenced))
        with pytest.raises(RuntimeError, match="the driver dies"):
            run.open(0)
    first = sorted(straggler_slots := slots(prefix, 24))[:fenced]
    outcomes = straggler.goes_on(*straggler_slots[:10])
    assert len([o for o in outcomes if o == Applied()]) == len(
        {k for k in data["k"] if slot_of(f"{prefix}:{k}".encode()) in straggler_slots[fenced:10]}
    )
    run.open(0)
    assert {error_of(o) for o in straggler.goes_on(*straggler_slots)} == {"FencedError"}
    applied = sum(entry.rows_done for entry in run.sink.units(run.writer_id, 0))
    assert (applied > 0) == (fenced < 10), first


def _dying_after(count: int) -> Callable[..., Any]:
    def each(nodes: Any, script: str, calls: Mapping[int, Sequence[Any]], *more: Any) -> Any:
        assert script == TAKE_SCRIPT
        flight.each_slot(nodes, script, dict(sorted(calls.items())[:count]), *more)
        raise RuntimeError("the driver dies")

    return each


def test_without_a_fence_in_every_slot_a_straggler_doubles(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken variant: an open that writes its token to the control entry alone. The older task
    goes on after the units were read, in a partition of another number, and nothing stops it."""
    data = wide(24)
    for name, fences in (("good", True), ("bad", False)):
        run = new_run(name + ":{k}", "hincrby")
        run.open(0)
        straggler = Straggler(run, data, monkeypatch)
        with monkeypatch.context() as patch:
            if not fences:
                patch.setattr(ClusterLedger, "fence", lambda *_: None)
            run.open(0)
        assert run.sink.units(run.writer_id, 0) == []
        late = straggler.goes_on(*slots(f"{prefix}:{name}", 24))
        assert run.apply(data, partition=1) == Applied()
        if fences:
            assert {error_of(outcome) for outcome in late} == {"FencedError"}
            run.close()
            assert stored(redis_cluster, f"{prefix}:{name}") == totals(data)
        else:
            assert stored(redis_cluster, f"{prefix}:{name}") != totals(data)
            with pytest.raises(ReplayMismatchError):  # the close sees it, too late
                run.close()


def test_a_straggler_after_the_close(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of a task that is still there when its batch is complete: settled slots refuse it,
    and slots that nobody registered can't be registered any more."""
    data, run = wide(24), new_run("{k}", "hincrby")
    run.open(0)
    copy = _task_of(run)
    run.apply(data)
    run.close()
    assert error_of(copy.apply({"k": [1, 7001], "n": [5, 5]}, partition=3)) == "FencedError"
    keys = ClusterKeys.of(run.sink.target.ledger, run.writer_id)
    late = [
        _without_registering(copy, {"k": [k], "n": [5]}, keys, slot_of(f"{prefix}:{k}".encode()))
        for k in (1, 2)
    ]
    assert {error_of(outcome) for outcome in late} == {"FencedError"}
    assert stored(redis_cluster, prefix) == totals(data)


def test_a_task_that_registers_while_the_batch_is_closed(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between settling and completing a copy with other rows registers and writes to new slots:
    the close begins again, sees it, and refuses."""
    data, run = wide(24), new_run("{k}", "hincrby")
    run.open(0)
    copy = _task_of(run)
    run.apply(data)
    store = ClusterLedger._store

    def late(self: ClusterLedger, *arguments: Any) -> bool:
        monkeypatch.setattr(ClusterLedger, "_store", store)
        assert copy.apply({"k": [7001, 7002], "n": [5, 5]}, partition=3) == Applied()
        return store(self, *arguments)

    monkeypatch.setattr(ClusterLedger, "_store", late)
    with pytest.raises(ReplayMismatchError):
        run.close()


def test_a_copy_with_other_rows_is_refused_in_other_slots_too(new_run: NewRun) -> None:
    """Two copies of one task, whose rows lie in slots that don't meet: never taken for one. With
    rows that were begun by an earlier call it may be other rows, and the close compares."""
    run = new_run("{k}", "hincrby")
    run.open(0)
    copy = _task_of(run)
    assert copy.apply({"k": [1, 2], "n": [1, 1]}) == Applied()
    assert error_of(run.apply({"k": [3, 4], "n": [1, 1]})) == "ReplayMismatchError"
    run.open(0)
    assert run.apply({"k": [3, 4], "n": [1, 1]}) == Applied()
    with pytest.raises(ReplayMismatchError):
        run.close()


def test_the_newest_batch_again_and_an_empty_one(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """E1, E9: a complete batch is compared; an empty batch is closed; a batch may touch slots that
    the one before did not."""
    run = new_run("{k}", "hincrby")
    run.batch(0, counters(20, 5), counters(40, 11))
    run.batch(1)
    again = new_run("{k}", "hincrby", run_id="run-2")
    assert isinstance(again.open(1), Compare)
    again.batch(2, {"k": [999], "n": [1]})
    again.batch(3, counters(40, 11))
    expected = {
        key: b"%d" % (int(n) * 2 + int(totals(counters(20, 5)).get(key, 0)))
        for key, n in totals(counters(40, 11)).items()
    }
    assert stored(redis_cluster, prefix) == {**expected, b"999": b"1"}


def test_identity_and_batch_numbers_that_begin_again(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """E2: another query is refused; adopted, its batch 0 is not taken for the old batch 0; a batch
    of the old query that may be partly applied is in the way."""
    data = wide(24)
    new_run("{k}", "hincrby").batch(0, data)
    stranger = new_run("{k}", "hincrby", run_id="run-2")
    with pytest.raises(CheckpointMismatchError):
        stranger.open(0, query_id="query-2")
    stranger.open(0, query_id="query-2", adopt=True)
    assert stranger.apply(data) == Applied()
    third = new_run("{k}", "hincrby", run_id="run-3")
    with pytest.raises(CheckpointMismatchError, match="can't be adopted"):
        third.open(0, query_id="query-3", adopt=True)
    stranger.close()
    assert stored(redis_cluster, prefix) == totals(data, 2)


def test_r2_one_key_of_the_wrong_type(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """R2: nothing of the slot's chunk appears; the message names key and slot; mended, a repeat
    completes the batch."""
    data, run = wide(24), new_run("{k}", "hincrby")
    stranger = f"{prefix}:10"
    slot = slot_of(stranger.encode())
    redis_cluster.owner(slot).ask("SET", stranger, "text")
    run.open(0)
    refused = run.apply(data)
    assert error_of(refused) == "BadRowError"
    assert stranger in refused.what
    others = "of other slots what their ledger entries say"
    assert refused.applied == f"nothing of slot {slot}; {others}"
    null = run.apply({"k": [1, None], "n": [1, 2]}, partition=1)
    assert null.applied == "of this partition's slots what their ledger entries say"
    redis_cluster.owner(slot).ask("DEL", stranger)
    run.open(0)
    run.apply(data)
    run.close()
    assert stored(redis_cluster, prefix) == totals(data)


def test_a_chunk_that_failed_after_its_first_write(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HalfAppliedError now, for every later try, and for the next call; it names the slot's key,
    and what it says mends it."""
    from spark_eoc.sinks.redis.cluster import apply  # noqa: PLC0415

    source = apply.slot_chunk_script
    key = 10
    with monkeypatch.context() as patch:
        patch.setattr(
            apply,
            "slot_chunk_script",
            lambda *words: source(*words).replace(
                "do write(i)", f"do write(i) if KEYS[i + 2] == '{prefix}:{key}' then error('x') end"
            ),
        )
        run = new_run("{k}", "hincrby")
        run.open(0)
        refused = run.apply(wide(24))
    assert error_of(refused) == "HalfAppliedError"
    assert error_of(run.apply(wide(24))) == "HalfAppliedError"
    run.open(0)
    with pytest.raises(HalfAppliedError) as caught:
        run.sink.units(run.writer_id, 0)
    slot = slot_of(f"{prefix}:{key}".encode())
    entry = ClusterKeys.of(run.sink.target.ledger, run.writer_id).slot(slot).units
    assert f"field 0 of key {entry} to 0|" in str(caught.value)
    owner = redis_cluster.owner(slot)
    owner.ask("DEL", f"{prefix}:{key}")
    owner.ask("HSET", entry, "0", str(caught.value).partition(f"{entry} to ")[2].split()[0])
    run.apply(wide(24))
    run.close()
    assert stored(redis_cluster, prefix) == totals(wide(24))


def test_an_entry_that_is_older_than_its_floor(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """A slot's entry without its settlement has lost writes: refused when the slot is written to.
    So is a control entry that doesn't know an epoch which a slot shows."""
    data, run = {"k": [1], "n": [1]}, new_run("{k}", "hincrby")
    keys = ClusterKeys.of(run.sink.target.ledger, run.writer_id)
    slot = slot_of(f"{prefix}:1".encode())
    owner = redis_cluster.owner(slot)
    run.batch(0, data)
    kept = owner.ask("DUMP", keys.slot(slot).control)
    run.batch(1, data)
    owner.ask("RESTORE", keys.slot(slot).control, 0, kept, "REPLACE")
    run.open(2)
    refused = run.apply(data)
    assert error_of(refused) == "SinkBehindError"
    assert f"slot {slot}" in refused.what
    with pytest.raises(SinkBehindError, match=f"slot {slot}"):
        run.open(2)


def test_an_unreachable_cluster(new_run: NewRun) -> None:
    """After the budget: SinkUnavailableError, as data from a task."""
    run = new_run("{k}", "hincrby", budget_s=0.3)
    run.open(0)
    gone = new_run("{k}", "hincrby", url="redis+cluster://127.0.0.1:1", budget_s=0.3)
    gone.call, gone.control, gone.reported = run.call, run.control, {}
    assert error_of(gone.apply(counters())) == "SinkUnavailableError"
    with pytest.raises(SinkUnavailableError):
        gone.close()


# -- the pieces --------------------------------------------------------------------------------


def _task_of(run: Run) -> Run:
    task = Run(run.sink, run.writer_id, run.run_id)
    task.call, task.control, task.reported = run.call, run.control, {}
    return task


def _without_registering(run: Run, rows: dict[str, Any], keys: ClusterKeys, slot: int) -> Any:
    """One slot's rows by a task whose registration went through before the owner changed."""
    from spark_eoc.sinks.entries import Unit  # noqa: PLC0415
    from spark_eoc.sinks.redis.cluster.apply import (  # noqa: PLC0415
        ClusterUnitWriter,
        SlotWriter,
    )
    from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace  # noqa: PLC0415
    from spark_eoc.sinks.redis.cluster.parts import parts_of  # noqa: PLC0415

    table = rows_of(rows)
    call, control = run.call, run.control
    unit = Unit(run.writer_id, 0, call.batch_id, control.epoch, control.token, table.fingerprint())
    whole = ClusterUnitWriter(run.sink.target, keys, unit, table)
    (part,) = parts_of(run.sink.target.command, table)
    with Nodes.of(run.sink.target) as nodes:
        return SlotWriter(whole, part, SlotPlace(nodes, slot), "0").write()


@contextmanager
def _failing(monkeypatch: pytest.MonkeyPatch, point: str) -> Iterator[None]:
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    monkeypatch.setenv("SPARK_EOC_FAILPOINT", f"{point}=raise")
    yield
    monkeypatch.delenv("SPARK_EOC_FAILPOINT")


def _shuffled(data: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    order = rng.sample(range(len(data["k"])), len(data["k"]))
    return {name: [values[i] for i in order] for name, values in data.items()}
