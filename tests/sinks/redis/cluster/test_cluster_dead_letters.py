"""Dead letters in a real cluster: each in the slot of its row, once, whatever fails."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError, DeadLetterLimitError
from spark_eoc.failpoints import ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.ledger import decide_close, decide_replay
from spark_eoc.sinks.redis.cluster import flight
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.parts import bad_slot, letters_key
from spark_eoc.sinks.redis.cluster.slots import slot_of
from spark_eoc.sinks.store import Column
from spark_eoc.testing.redis_cluster import ClusterNode, RedisCluster
from tests.sinks.redis.cluster.clusters import stored
from tests.sinks.redis.driving import Run, error_of, rows_of

NewRun = Callable[..., Run]
BIG = 2**61


@pytest.fixture
def aside(new_run: NewRun) -> NewRun:
    """``aside(...)``: a run of counters that puts bad rows aside, with keys ``<prefix>:<k>``."""

    def build(**more: Any) -> Run:
        return new_run("{k}", "hincrby", **{"dead_letter_limit": 1000, **more})

    return build


def data_of(rows: int = 120) -> dict[str, Any]:
    """Thirty counters over as many slots, and a key of another type; some rows have no number, some
    no key; one key's rows add up to too much."""
    keys: list[Any] = [f"k{i * 7 % 30}" for i in range(rows)]
    numbers: list[Any] = [1 + i for i in range(rows)]
    keys[10], keys[50], keys[51] = None, "s", "s"
    numbers[20] = numbers[77] = None
    keys[60:62], numbers[60:62] = ["big", "big"], [BIG, BIG]
    return {"k": keys, "n": pa.array(numbers, pa.int64())}


def expected_of(data: dict[str, Any]) -> tuple[dict[bytes, bytes], Counter[Any]]:
    sums: Counter[bytes] = Counter()
    bad: Counter[Any] = Counter()
    for key, number in zip(data["k"], data["n"].to_pylist(), strict=True):
        if key in (None, "s", "big") or number is None:
            bad[key, number] += 1
        else:
            sums[key.encode()] += number
    return {key: b"%d" % number for key, number in sums.items()}, bad


def stranger(cluster: RedisCluster, prefix: str, start: str = "") -> None:
    key = f"{prefix}:{start}s"
    cluster.owner(slot_of(key.encode())).ask("SET", key, "text")


def no_stranger(cluster: RedisCluster, prefix: str, start: str = "") -> None:
    key = f"{prefix}:{start}s"
    cluster.owner(slot_of(key.encode())).ask("DEL", key)


def letters(cluster: RedisCluster, prefix: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Each stream's name with a letter of it."""
    found = []
    for name, node in cluster.keys(f"{prefix}_ledger:dead_letters:*"):
        for _, fields in node.ask("XRANGE", name, "-", "+"):
            letter = {field.decode(): value.decode() for field, value in fields.items()}
            found.append((name, letter))
    return found


def check_once(cluster: RedisCluster, prefix: str, data: dict[str, Any]) -> None:
    no_stranger(cluster, prefix)
    rows = [json.loads(letter["row"]) for _, letter in letters(cluster, prefix)]
    found = stored(cluster, prefix), Counter((row["k"], row["n"]) for row in rows)
    assert found == expected_of(data)


def close(run: Run, limit: int = 1000) -> None:
    run.sink.close_batch(
        run.writer_id,
        run.call.batch_id,
        lambda view, units: decide_close(
            view, units, run.reported, run.call, len(run.reported), dead_letter_limit=limit
        ),
    )


def test_each_letter_lies_in_the_slot_of_its_row(
    aside: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """With its reason; those without a key that may be written in one slot of their own."""
    stranger(redis_cluster, prefix)
    data, run = data_of(), aside(chunk_rows=2)
    run.sink.check([Column("k", "string"), Column("n", "bigint")])
    run.open(0)
    assert run.apply(data) == Applied(7)
    assert run.apply(data) == AlreadyApplied()
    close(run)
    target = run.sink.target
    by_key: dict[Any, set[bytes]] = {}
    for name, letter in letters(redis_cluster, prefix):
        row = json.loads(letter["row"])
        unwritable = row["n"] is None or row["k"] is None
        slot = bad_slot(target) if unwritable else slot_of(f"{prefix}:{row['k']}".encode())
        assert name == letters_key(target, slot).encode()
        assert slot_of(name) == slot
        assert (letter["batch"], letter["partition"]) == ("0", "0")
        by_key.setdefault(row["k"], set()).add(letter["reason"].encode())
    assert by_key["s"] == {b"the key holds another type of value"}
    assert b"sum of its key" in min(by_key["big"])
    check_once(redis_cluster, prefix, data)


@pytest.mark.parametrize("tag", ["", "t"])
def test_dying_at_each_flight_leaves_each_row_and_letter_once(
    new_run: NewRun,
    redis_cluster: RedisCluster,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    tag: str,
) -> None:
    """E7: before or after any script; the next call compares, with the rows in another order. With
    a hash tag all keys are in one slot, which then has many chunks."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 8)
    start = f"{{{tag}}}" if tag else ""
    stranger(redis_cluster, prefix, start)

    def aside(run_id: str) -> Run:
        key = f"{{{start}}}{{k}}" if tag else "{k}"
        return new_run(key, "hincrby", run_id, dead_letter_limit=9, chunk_rows=3)

    shuffled, data = random.Random(1), data_of()
    table = pa.table(data)
    points = [f"redis.{p}_chunk:{n}" for p in ("before", "after") for n in (1, 2, 4, 5, 6)]
    died = 0
    for batch, point in enumerate(points):
        run = aside(point)
        run.open(batch)
        monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
        monkeypatch.setenv(ENVIRONMENT, f"{point}=raise")
        try:
            run.apply(data)
        except FailpointError:
            died += 1
        monkeypatch.delenv(ENVIRONMENT)
        order = shuffled.sample(range(len(table)), len(table))
        again = aside(f"{point} again")
        again.open(batch)
        rows = rows_of(table.take(pa.array(order)))
        units = again.sink.units(again.writer_id, batch)
        prefixes = {e.partition: again.sink.applied_part(rows, e) for e in units if not e.complete}
        if units:
            assert decide_replay(units, {0: rows.fingerprint()}, prefixes, "{}", "{}")
        assert again.apply(rows) in (Applied(7), AlreadyApplied()), point
        close(again)
        assert sum(expected_of(data)[1].values()) * (batch + 1) == len(
            letters(redis_cluster, prefix)
        ), point
    assert died >= 8
    sums, bad = expected_of(data)
    times = len(points)
    many = {start.encode() + key: b"%d" % (int(n) * times) for key, n in sums.items()}
    no_stranger(redis_cluster, prefix, start)
    rows_aside = [json.loads(letter["row"]) for _, letter in letters(redis_cluster, prefix)]
    assert stored(redis_cluster, prefix) == many
    assert Counter((row["k"], row["n"]) for row in rows_aside) == Counter(
        {key: count * times for key, count in bad.items()}
    )


def test_slots_on_the_move(
    aside: NewRun,
    redis_cluster: RedisCluster,
    prefix: str,
    later: Callable[..., threading.Timer],
) -> None:
    """The slots with bad rows are open, with some keys here and some there; then they are moved."""
    stranger(redis_cluster, prefix)
    data, run = data_of(), aside(budget_s=30.0)
    keys = ClusterKeys.of(run.sink.target.ledger, run.writer_id)
    slots = [slot_of(f"{prefix}:s".encode()), bad_slot(run.sink.target)]
    run.batch(0, {"k": ["k1"], "n": [0]})
    run.open(1)
    goals = {slot: other_primary(redis_cluster, slot) for slot in slots}
    for slot, goal in goals.items():
        redis_cluster.start_move(slot, goal)
        there = redis_cluster.owner(slot).ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        redis_cluster.move_keys(
            slot, goal, [k for k in there if k != keys.slot(slot).control.encode()]
        )

    def end() -> None:
        for slot, goal in goals.items():
            redis_cluster.move_keys(slot, goal)
            redis_cluster.end_move(slot, goal)

    ended = later(0.3, end)
    assert run.apply(data) == Applied(7)
    assert run.apply(data) == AlreadyApplied()
    close(run)
    ended.join()
    redis_cluster.settle()
    check_once(redis_cluster, prefix, data)


def other_primary(cluster: RedisCluster, slot: int) -> ClusterNode:
    owner = cluster.owner(slot)
    return next(n for n in cluster.nodes if n is not owner and n.ask("ROLE")[0] == b"master")


def test_the_limit_counts_over_slots_and_partitions(
    aside: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """What is above it leaves nothing of its slot; with a higher limit the batch goes on once."""
    stranger(redis_cluster, prefix)
    data = data_of()
    halves = [{name: column[at : at + 60] for name, column in data.items()} for at in (0, 60)]
    run = aside(dead_letter_limit=2, run_id="first")
    run.open(0)
    assert error_of(run.apply(halves[0])) == "DeadLetterLimitError"
    run = aside(dead_letter_limit=5, run_id="second")
    run.open(0)
    assert run.apply(halves[0]) in (Applied(4), Applied(2))
    assert error_of(run.apply(halves[1], 1)) == "DeadLetterLimitError"
    run = aside(dead_letter_limit=7, run_id="third")
    run.open(0)
    run.apply(halves[0])
    run.apply(halves[1], 1)
    with pytest.raises(DeadLetterLimitError, match="7 rows of batch 0"):
        close(run, 6)
    close(run, 7)
    check_once(redis_cluster, prefix, data)


def test_keys_that_are_not_the_rows_to_write(
    aside: NewRun, new_run: NewRun, redis_cluster: RedisCluster, prefix: str
) -> None:
    """No row reaches a stream of dead letters by its key; a stream that is none is named."""
    run = new_run(
        "{k}", "hincrby", dead_letter_limit=9, dead_letter_key=f"{prefix}:aside", run_id="x"
    )
    run.open(0)
    assert run.apply({"k": ["aside:{x}", "aside", "a"], "n": [1, 2, 3]}) == Applied(2)
    assert (
        redis_cluster.owner(slot_of(f"{prefix}:a".encode())).ask("HGET", f"{prefix}:a", "n") == b"3"
    )
    other = aside(run_id="y")
    name = letters_key(other.sink.target, bad_slot(other.sink.target))
    redis_cluster.owner(bad_slot(other.sink.target)).ask("SET", name, "text")
    other = new_run("o:{k}", "hincrby", dead_letter_limit=9)
    other.open(0)
    assert error_of(other.apply({"k": ["a", None], "n": [1, 2]})) == "SinkError"
    with pytest.raises(ConfigError, match="has a brace"):
        RedisWriter(
            redis_cluster.url(), "{k}", "hset", on_bad_row="dead_letter", dead_letter_key="{x}"
        )
