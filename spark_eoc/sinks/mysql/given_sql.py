"""Staged partitions as the frame gave them, for the dead letters of a whole batch.

What the target refuses shows when the batch is published, on the driver, and staged rows have
neither all columns of the frame nor their types. So where bad rows are put aside, a partition is
kept a second time. Under the ledger's prefix: ``given`` has its rows in blocks, each a compressed
Arrow stream in parts that a packet holds; ``refused`` names the rows that could not be staged.
Rows are counted from 0 in the staged partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from spark_eoc.errors import ReplayMismatchError
from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.mysql.connection import max_packet
from spark_eoc.sinks.mysql.dead_letter_sql import clipped, grouped
from spark_eoc.sinks.mysql.ledger_sql import LedgerSql
from spark_eoc.sinks.rows import Rows

_BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 * 1024 * 1024
_PART_BYTES = 256 * 1024
_TABLES = {
    "given": "staging_id BINARY(16) NOT NULL, at_row INT UNSIGNED NOT NULL, "
    "part INT UNSIGNED NOT NULL, data LONGBLOB NOT NULL, "
    "PRIMARY KEY (staging_id, at_row, part)",
    "refused": "staging_id BINARY(16) NOT NULL, at_row INT UNSIGNED NOT NULL, "
    "column_name VARCHAR(255) NULL, error INT NULL, reason TEXT NOT NULL, "
    "PRIMARY KEY (staging_id, at_row)",
}
_NO_HASHES = pa.chunked_array([], pa.int64())


class GivenSql:
    """The statements; each method runs on a connection, all but ``make`` in a transaction."""

    def __init__(self, ledger: LedgerSql) -> None:
        self._ledger = ledger
        self._given, self._refused = ledger.table("given"), ledger.table("refused")

    def make(self, connection: Any) -> None:
        """Creates what is missing; never inside a transaction, since DDL commits."""
        for kind, columns in _TABLES.items():
            self._ledger.make(connection, kind, columns)

    def is_there(self, connection: Any) -> bool:
        """Whether some writer of this ledger stages so, or did."""
        return all(self._ledger.has(connection, kind) for kind in _TABLES)

    def keep(
        self, connection: Any, staging_id: str, rows: Rows, refused: Sequence[RefusedRow]
    ) -> None:
        """Stores the rows, and which of them were refused."""
        size, first = min(_PART_BYTES, max_packet(connection) // 4), 0
        for block in _blocks(rows.table):
            for part, data in enumerate(_cut(_packed(block), size)):
                connection.query(
                    f"INSERT INTO {self._given} (staging_id, at_row, part, data) "
                    f"VALUES (0x{staging_id},{first},{part},0x{data.hex()})"
                )
            first += block.num_rows
            rows.release()
        with connection.cursor() as cursor:
            form = f"(0x{staging_id}, %s, %s, %s, %s)"
            values = (cursor.mogrify(form, _fields(one)) for one in refused)
            for some in grouped(values, size):
                connection.query(
                    f"INSERT INTO {self._refused} (staging_id, at_row, column_name, error, "
                    f"reason) VALUES {some}"
                )

    def refused(self, connection: Any, staging_id: str) -> list[RefusedRow]:
        """The rows that could not be staged, in their order."""
        found = _rows(
            connection,
            f"SELECT at_row, reason, column_name, error FROM {self._refused} "
            f"WHERE staging_id=0x{staging_id} ORDER BY at_row",
        )
        return [RefusedRow(*fields) for fields in found]

    def with_rows(
        self, connection: Any, staging_id: str, refused: Sequence[RefusedRow]
    ) -> Iterator[tuple[Rows, list[RefusedRow]]]:
        """Block by block the rows that hold refused ones, and these by their numbers in them.

        ReplayMismatchError if a row is not there any more.
        """
        starts = _rows(
            connection,
            f"SELECT at_row FROM {self._given} WHERE staging_id=0x{staging_id} AND part=0 "
            "ORDER BY at_row",
        )
        found = 0
        for first, stop in pairwise([*(at for (at,) in starts), math.inf]):
            some = [replace(one, row=one.row - first) for one in refused if first <= one.row < stop]
            if some:
                table = self._block(connection, staging_id, first)
                some = [one for one in some if one.row < table.num_rows]
                found += len(some)
                yield Rows(table, _NO_HASHES), some
        if found != len(refused):
            raise ReplayMismatchError(
                f"{len(refused)} rows of a staged partition are refused, and {found} of them are "
                "still there as the frame gave them",
                applied="nothing of this batch",
                next_step="look for what deletes staged rows, then restart the query",
            )

    def _block(self, connection: Any, staging_id: str, first: int) -> pa.Table:
        parts = _rows(
            connection,
            f"SELECT data FROM {self._given} WHERE staging_id=0x{staging_id} "
            f"AND at_row={first} ORDER BY part",
        )
        return pa.ipc.open_stream(b"".join(data for (data,) in parts)).read_all()

    def delete(self, connection: Any, staging_id: str, start: int, stop: int) -> None:
        """Deletes what is kept of rows ``[start, stop)``, a block with its first row."""
        for table in (self._given, self._refused):
            connection.query(
                f"DELETE FROM {table} WHERE staging_id=0x{staging_id} AND at_row >= {start} "
                f"AND at_row < {stop}"
            )


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    step = max(1, min(_BLOCK_ROWS, table.num_rows * _BLOCK_BYTES // max(table.nbytes, 1)))
    return (table.slice(start, step) for start in range(0, table.num_rows, step))


def _packed(block: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    codec = "zstd" if pa.Codec.is_available("zstd") else None
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, block.schema, options=options) as stream:
        stream.write_table(block)
    return memoryview(sink.getvalue())


def _cut(data: memoryview, size: int) -> Iterator[memoryview]:
    return (data[start : start + size] for start in range(0, len(data), size))


def _fields(one: RefusedRow) -> tuple[Any, ...]:
    return (one.row, *clipped(one))


def _rows(connection: Any, sql: str) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return tuple(cursor.fetchall())
