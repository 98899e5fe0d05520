"""A partition's rows with their hashes, read whole before anything is written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.entries import Fingerprint

#: Name of the hash column that the JVM computes; it is never written.
HASH_COLUMN = "__spark_eoc_hash"
#: Above this many bytes a partition is kept in a local file instead of memory.
SPILL_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Rows:
    """``table`` holds the columns to write, ``hashes`` one int64 a row, in the same order."""

    table: pa.Table
    hashes: pa.ChunkedArray

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def slice(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``, without a copy."""
        return Rows(self.table.slice(start, stop - start), self.hashes.slice(start, stop - start))

    def take(self, order: pa.Array) -> Rows:
        """The rows in another order; ``order`` holds row numbers."""
        return Rows(self.table.take(order), self.hashes.take(order))

    def fingerprint(self) -> Fingerprint:
        """Row count and the sum of the hashes modulo 2^64."""
        return Fingerprint(len(self), hash_sum(self.hashes))


def hash_sum(hashes: pa.ChunkedArray) -> int:
    """The sum modulo 2^64, of two halves, so that no kernel's overflow rule matters."""
    low = pc.sum(pc.bit_wise_and(hashes, pa.scalar(0xFFFFFFFF, pa.int64()))).as_py() or 0
    high = pc.sum(pc.shift_right(hashes, pa.scalar(32, pa.int64()))).as_py() or 0
    return int(((high << 32) + low) % (1 << 64))


def read_rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Rows | None:
    """Takes in the whole partition, columns renamed to ``names``; None if it holds no row.

    Spark's input can be read once, and local mode retries no task: fingerprint, look-ups and
    retries all use this copy, so no transaction ever waits for Spark. Above ``SPILL_BYTES`` the
    copy lies in an unlinked local file that is mapped into memory.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    iterator = iter(batches)
    for batch in iterator:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size > SPILL_BYTES:
            return _split(_spill(held, iterator), names)
    return _split(pa.Table.from_batches(held), names) if held else None


def _spill(held: list[pa.RecordBatch], rest: Iterable[pa.RecordBatch]) -> pa.Table:
    descriptor, path = tempfile.mkstemp(prefix="spark-eoc-", suffix=".arrow")
    os.close(descriptor)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].schema) as writer:
            while held:
                writer.write_batch(held.pop(0))
            for batch in rest:
                if batch.num_rows:
                    writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        os.unlink(path)  # the mapping keeps the content until the task ends, however it ends


def _split(table: pa.Table, names: Sequence[str]) -> Rows:
    columns = table.drop_columns([HASH_COLUMN]).rename_columns(list(names))
    return Rows(columns, table.column(HASH_COLUMN))
