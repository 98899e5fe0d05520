"""Reads buffer, rows and ledger from real systems, for the checker.

On purpose with nothing of the product's own readers: a bug in them must not hide itself. The
formats are those that `spark_eoc.buffer.frame` and the ledgers' modules document.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_eoc.testing.checker import LedgerState, Line, Row, UnitState

_FRAME = struct.Struct("<4sIIBBHQIIqQI8sI")
_RUN = struct.Struct("<IIQ")
_DATA = 1


def read_buffer(path: str | os.PathLike[str]) -> list[Line]:
    """Every whole line of the segments that are there, by offset."""
    segments = sorted(Path(path).glob("*.segment"))
    bases = [int(segment.stem) for segment in segments]
    lines: list[Line] = []
    for segment, end in itertools.zip_longest(segments, bases[1:]):
        # What lies beyond the next segment's base was copied there by a recovery.
        lines += [line for line in _segment(segment) if end is None or line.offset < end]
    return lines


def _segment(path: Path) -> Iterator[Line]:
    data = path.read_bytes()
    place = 64
    while place + 64 <= len(data):
        magic, crc, length, kind, _, runs, base, records, *_ = _FRAME.unpack_from(data, place)
        frame = memoryview(data)[place : place + 64 + length]
        if magic != b"EOC1" or len(frame) < 64 + length or zlib.crc32(frame[8:]) != crc:
            return
        if kind == _DATA:
            yield from _lines(frame[64:], runs, base, records)
        place += 64 + length


def _lines(payload: memoryview, runs: int, base: int, records: int) -> Iterator[Line]:
    place = 0
    for _ in range(runs):
        name_length = _RUN.unpack_from(payload, place)[0]
        place += _RUN.size + name_length + -name_length % 8
    offsets = struct.unpack_from(f"<{records + 1}i", payload, place)
    place += 4 * (records + 1)
    place += -place % 8
    for number in range(records):
        value = payload[place + offsets[number] : place + offsets[number + 1]]
        yield Line(base + number, bytes(value))


def mysql_rows(connection: Any, table: str) -> list[Row]:
    """Rows of a table with the columns `value`, `batch_id`, `part`, `offset` and `id`.

    `id` is AUTO_INCREMENT: the order in which one transaction wrote its rows.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT value, batch_id, part, `offset`, id FROM {table}")  # noqa: S608
        return [Row(_bytes(value), *rest) for value, *rest in cursor.fetchall()]


def redis_rows(client: Any, prefix: str, field: str = "n") -> list[Row]:
    """One row for each count in the hashes ``prefix<value>``: what `hincrby` added up."""
    rows: list[Row] = []
    for key, count in _counts(client, prefix, field):
        rows += [Row(key[len(prefix) :])] * count
    return rows


def redis_count(client: Any, prefix: str, field: str = "n") -> int:
    """How many rows :func:`redis_rows` would return."""
    return sum(count for _, count in _counts(client, prefix, field))


def _counts(client: Any, prefix: str, field: str) -> list[tuple[bytes, int]]:
    keys = sorted(set(client.scan_iter(match=f"{prefix}*", count=1000)))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hget(key, field)
        return [(key, int(n or 0)) for key, n in zip(keys, pipe.execute(), strict=True)]


def mysql_ledger(
    connection: Any, writer_id: str | None = None, ledger: str = "spark_eoc"
) -> LedgerState | None:
    """A writer's ledger in MySQL; None if there is none. Without ``writer_id`` the only one."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW TABLES LIKE %s", (f"{ledger}_control",))
        if not cursor.fetchall():
            return None
        cursor.execute(
            f"SELECT writer, open_batch, last_complete FROM {ledger}_control "  # noqa: S608
            "WHERE writer_id = COALESCE(%s, writer_id)",
            (writer_id,),
        )
        found = cursor.fetchall()
        if len(found) != 1:
            return None
        writer, open_batch, last = found[0]
        where = "WHERE writer = %s"
        cursor.execute(f"SELECT batch_id, fingerprint FROM {ledger}_history {where}", (writer,))  # noqa: S608
        completed = {batch_id: _rows_of(text) for batch_id, text in cursor.fetchall()}
        cursor.execute(
            f"SELECT partition_id, batch_id, fingerprint FROM {ledger}_units {where}",  # noqa: S608
            (writer,),
        )
        units = [UnitState(p, b, _rows_of(text)) for p, b, text in cursor.fetchall()]
    return LedgerState(last, completed, units, open_batch)


def redis_ledger(
    client: Any, writer_id: str | None = None, ledger: str = "spark_eoc"
) -> LedgerState | None:
    """A writer's ledger in Redis; None if there is none. Without ``writer_id`` the only one."""
    found = [
        (key, fields)
        for key in client.scan_iter(match=f"{ledger}:*:control", count=1000)
        if (fields := client.hgetall(key))
        and (writer_id is None or fields[b"writer_id"] == writer_id.encode())
    ]
    if len(found) != 1:
        return None
    key, control = found[0]
    base = key.removesuffix(b":control")
    history = client.hgetall(base + b":history")
    completed = {
        int(batch): _rows_of(json.loads(text)["fingerprint"]) for batch, text in history.items()
    }
    units = []
    for partition, text in client.hgetall(base + b":units").items():
        batch_id, _, rest = text.decode().partition("|")
        # An entry that can't be read vouches for no row.
        if batch_id.isdigit() and rest:
            units.append(UnitState(int(partition), int(batch_id), _rows_of(rest)))
    open_batch = int(control[b"open_batch"]) if control[b"open_batch"] else None
    return LedgerState(int(control[b"last_complete"]), completed, units, open_batch)


def _rows_of(fingerprint: str) -> int:
    """A stored fingerprint is ``rows:sum:version``."""
    return int(fingerprint.partition(":")[0])


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
