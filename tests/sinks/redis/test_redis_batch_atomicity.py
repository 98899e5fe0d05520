"""Batch atomicity leaves in Redis what partition atomicity leaves, for every command."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.errors import BadRowError
from spark_eoc.sinks.entries import Applied, Refused
from tests.sinks.redis.driving import Run, content, rows_of

NewRun = Callable[..., Run]

COMMANDS: dict[str, dict[str, Any]] = {
    "set": {"value": "a"},
    "hset": {},
    "hset keep": {"on_null": "keep"},
    "incrby": {"value": "n"},
    "incrbyfloat": {"value": "x"},
    "hincrby": {"fields": ["n", "m"]},
    "sadd": {"value": "a"},
    "zadd": {"member": "a", "score": "x"},
    "zincrby": {"member": "a", "score": "x"},
    "rpush": {"value": "b"},
    "xadd": {},
    "del": {},
}


def random_partition(source: random.Random) -> pa.Table:
    """Few keys, so that partitions and batches meet in them; NULL where the command takes it."""
    rows = source.randrange(1, 60)
    # However they fall, their sum stays below 2^62.
    big = [2**53 + 1, -(2**53) - 1, 2**55, -(2**55), 0, 1]
    texts = [b"", b"\x00\xff", b"]]", b"%s", "é".encode(), b"12", b"9007199254740993"]
    return pa.table(
        {
            "k": [source.randrange(12) for _ in range(rows)],
            "n": [source.choice(big) for _ in range(rows)],
            "m": [source.randrange(-9, 9) for _ in range(rows)],
            "x": [source.randrange(-64, 64) / 16 for _ in range(rows)],
            "a": pa.array([source.choice(texts) for _ in range(rows)], pa.binary()),
            "b": pa.array([str(source.random()) for _ in range(rows)], pa.string()),
        }
    )


def with_nulls(table: pa.Table, source: random.Random) -> pa.Table:
    """A third of the values of ``b`` are NULL."""
    values = [None if source.random() < 0.3 else v for v in table["b"].to_pylist()]
    return table.set_column(5, "b", pa.array(values, pa.string()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_leaves_what_partitions_leave(
    new_run: NewRun, client: Any, prefix: str, eoc_seed: int, name: str
) -> None:
    """Three random batches in both atomicities: the same keys with the same values and TTLs."""
    source, command, more = random.Random(eoc_seed), name.partition(" ")[0], dict(COMMANDS[name])
    if command != "del":
        more["ttl"] = source.choice([None, 10**6, "t"])
    parts = new_run("p:{k}", command, chunk_rows=source.choice([1, 7, 5000]), **more)
    whole = new_run("w:{k}", command, chunk_rows=source.choice([1, 7, 5000]), **more)
    if command == "del":
        client.mset({f"{prefix}:{kind}:{k}": k for kind in "pw" for k in range(30)})
    for batch in range(3):
        partitions = [random_partition(source) for _ in range(source.randrange(1, 5))]
        if command in ("hset", "xadd"):
            partitions = [with_nulls(table, source) for table in partitions]
        if more.get("ttl") == "t":
            partitions = [
                table.append_column("t", pa.array([10**6 * (batch + 1) + 10**4 * at] * len(table)))
                for at, table in enumerate(partitions)
            ]
        rows = [rows_of(table) for table in partitions]
        assert (
            whole.whole_batch(batch, *rows) == parts.batch(batch, *rows) == [Applied()] * len(rows)
        )
        found = content(client, f"{prefix}:w:")
        assert found == content(client, f"{prefix}:p:")
    assert found or command == "del"
    left = list(client.scan_iter(f"{prefix}_ledger:*:staging*"))
    assert left == []


@pytest.mark.parametrize("command", ["incrby", "hincrby", "zincrby"])
def test_what_a_counter_cannot_hold_is_refused_by_both_or_by_none(
    new_run: NewRun, client: Any, prefix: str, eoc_seed: int, command: str
) -> None:
    """Partitions that each fit and together do not: followed through the batch, digit by digit.

    Partition atomicity refuses the first partition that finds a value beyond 2^62; the whole batch
    is refused exactly then, and changes nothing.
    """
    source = random.Random(eoc_seed)
    kind = float if command == "zincrby" else int
    largest = 1e300 if command == "zincrby" else 2**62 - 1
    more = {"incrby": {"value": "n"}, "zincrby": {"member": "m", "score": "n"}}.get(command, {})
    columns = ["k", "n", "m"] if command == "zincrby" else ["k", "n"]
    refused = 0
    for round_ in range(25):
        parts, whole = (new_run(f"{kind}{round_}:{{k}}", command, **more) for kind in "pw")
        edges = [largest, -largest, 1, -1, 0, largest // 2, -largest // 2, 2**53 + 1]
        partitions = [
            {"k": ["a"], "n": [kind(source.choice(edges))], "m": ["x"]}
            for _ in range(source.randrange(2, 7))
        ]
        rows = [rows_of(pa.table(data).select(columns)) for data in partitions]
        outcomes = parts_until_refused(parts, rows)
        if outcomes == [Applied()] * len(rows):
            assert whole.whole_batch(0, *rows) == outcomes, (eoc_seed, round_)
            found = content(client, f"{prefix}:w{round_}:")
            assert found == content(client, f"{prefix}:p{round_}:")
            continue
        with pytest.raises(BadRowError, match=f"partition {len(outcomes) - 1}.*beyond"):
            whole.whole_batch(0, *rows)
        assert content(client, f"{prefix}:w{round_}:") == {}
        refused += 1
    assert 0 < refused < 25


def parts_until_refused(run: Run, rows: list[Any]) -> list[Any]:
    """Partition atomicity, one partition after the other."""
    run.open(0)
    outcomes: list[Any] = []
    for number, part in enumerate(rows):
        outcomes.append(run.apply(part, number))
        if isinstance(outcomes[-1], Refused):
            break
    return outcomes
