"""A partition too large for memory has the order that it would have in memory, row for row."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.sinks.mysql.changes import DELETED, arranged
from spark_eoc.sinks.order import By, _Sorting, in_order
from spark_eoc.sinks.redis.cluster.slots import slots_of
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.operations import arrange
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.rows import Rows

COUNT = 1200
Limit = Callable[[int, int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """``limit(spill, piece)`` in bytes."""

    def lower(spill: int, piece: int) -> None:
        monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", spill)
        monkeypatch.setattr("spark_eoc.sinks.order.PIECE_BYTES", piece)
        monkeypatch.setattr("spark_eoc.sinks.order._LEAST_BYTES", 1)

    return lower


def made(draw: random.Random, values: Sequence[Any], kind: pa.DataType) -> pa.ChunkedArray:
    """In chunks, as Spark's batches are; every tenth is NULL."""
    drawn = [None if draw.random() < 0.1 else draw.choice(values) for _ in range(COUNT)]
    cut = draw.randrange(COUNT)
    return pa.chunked_array([drawn[:cut], drawn[cut:]], kind)


def some_rows(draw: random.Random) -> Rows:
    """Columns of many types with repeated values; ``n`` tells the rows apart."""
    table = pa.table(
        {
            "n": pa.chunked_array([range(COUNT)], pa.int64()),
            "i": made(draw, range(-9, 9), pa.int32()),
            "f": made(draw, [0.0, -0.0, float("nan"), 1.5, float("-inf")], pa.float64()),
            "s": made(draw, ["", "a", "b" * 30, "é", "\0"], pa.string()),
            "b": made(draw, [b"", b"\xff", b"\0"], pa.binary()),
            "d": made(draw, [Decimal("0.10"), Decimal("-3.00")], pa.decimal128(20, 2)),
            "t": made(draw, [0, -1, 10**15], pa.timestamp("us", "UTC")),
            "y": made(draw, [True, False], pa.bool_()),
        }
    )
    hashes = pa.chunked_array([[draw.getrandbits(63) for _ in range(COUNT)]], pa.int64())
    return Rows(table, hashes, None, pa.table({DELETED: [n % 3 == 0 for n in range(COUNT)]}))


def same(found: Rows, expected: Rows) -> bool:
    assert found.marks is not None
    assert expected.marks is not None
    texts = [repr(rows.table.to_pydict()) for rows in (found, expected)]  # NaN equals itself here
    return (
        texts[0] == texts[1]
        and found.hashes.equals(expected.hashes)
        and found.marks.equals(expected.marks)
    )


@pytest.mark.parametrize("piece", [4_000, 10_000_000])
@pytest.mark.parametrize(
    "names", [["i"], ["f"], ["s", "f"], ["b", "y", "d"], ["t", "s"], ["y"], ["n"]]
)
def test_the_order_of_the_upserts_is_that_in_memory(
    eoc_random: random.Random, limit: Limit, names: list[str], piece: int
) -> None:
    """NULL, NaN and equal rows too, wherever the partition is cut."""
    rows = some_rows(eoc_random)
    expected = arranged(rows, names[:1], names[1:])
    limit(10_000, piece)
    found = arranged(rows, names[:1], names[1:])
    assert (expected.mapping, found.mapping is not None) == (None, True)
    assert same(found, expected)
    assert found.fingerprint() == rows.fingerprint()
    assert same(arranged(found, names[:1], names[1:]), expected)


@pytest.mark.parametrize("first", [None, slots_of])
@pytest.mark.parametrize(
    "more",
    [
        {"name": "hset"},
        {"name": "rpush", "value": "n"},
        {"name": "sadd", "value": "b"},
        {"name": "zincrby", "member": "b", "score": "i"},
        {"name": "incrby", "value": "i"},
    ],
)
def test_the_order_of_redis_is_that_in_memory(
    eoc_random: random.Random, limit: Limit, more: dict[str, Any], first: Any
) -> None:
    """By key; where arrival can't matter by content; on a Cluster by slot before."""
    told = Command(key=KeyTemplate.parse("k:{s}:{i}"), **more)
    rows = some_rows(eoc_random)
    expected = arrange(told, rows, first)
    for piece in (4_000, 30_000):
        limit(10_000, piece)
        found = arrange(told, rows, first)
        assert found.mapping is not None
        assert same(found, expected)


def test_a_hot_key_is_cut_like_others(eoc_random: random.Random, limit: Limit) -> None:
    """Else its rows would be in memory together; red without the numbers beside the columns."""
    rows = some_rows(eoc_random)
    hot = pa.chunked_array([[5] * (COUNT - 200) + list(range(200))], pa.int64())
    limit(10_000, 4_000)
    sorting = _Sorting.of(Rows(rows.table.append_column("hot", hot), rows.hashes), by("hot"))
    assert len(sorting.starts) > 10
    with tempfile.TemporaryFile() as file:
        sorting._write(file, sorting._borders())
        sizes = [len(batch) for batch in sorting._stretches(file)]
    assert sum(sizes) == COUNT
    assert max(sizes) < 3 * COUNT / len(sorting.starts)


def by(name: str) -> By:
    return lambda part: part.table.select([name])


def test_files_have_no_name_and_go_with_the_rows(
    eoc_random: random.Random, limit: Limit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that is killed leaves none behind; nor does an error in the middle."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = some_rows(eoc_random)
    limit(10_000, 5_000)
    before = len(os.listdir("/proc/self/fd"))
    seen: list[int] = []

    def columns(part: Rows) -> pa.Table:
        assert list(tmp_path.iterdir()) == []
        seen.append(len(part))
        if len(seen) == stop:
            raise OSError("no space")
        return part.table.select(["s"])

    stop = -1
    found = in_order(rows, columns)
    assert found.mapping is not None
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    del found
    stop, calls = len(seen) - 1, len(seen)
    seen.clear()
    with pytest.raises(OSError, match="no space"):
        in_order(rows, columns)
    assert len(seen) == calls - 1
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_kept_stay_in_a_file(eoc_random: random.Random, limit: Limit) -> None:
    """In their order, with marks and hashes; also none of them."""
    rows = some_rows(eoc_random)
    for share in (0.0, 0.5, 1.0):
        mask = pa.array([eoc_random.random() < share for _ in range(COUNT)], pa.bool_())
        limit(1 << 25, 1 << 22)
        expected = rows.kept(mask)
        limit(10_000, 1 << 22)
        found = rows.kept(mask)
        assert (expected.mapping, found.mapping is not None) == (None, True)
        assert same(found, expected)
