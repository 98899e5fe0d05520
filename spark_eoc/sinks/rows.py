"""A partition's rows with their hashes, read whole before anything is written."""

from __future__ import annotations

import mmap
import os
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.entries import Fingerprint

#: Name of the hash column that the JVM computes; it is never written.
HASH_COLUMN = "__spark_eoc_hash"
#: Above this many bytes a partition is kept in a local file instead of memory.
SPILL_BYTES = 32 * 1024 * 1024
_PIECE_ROWS = 65_536


@dataclass(frozen=True)
class Rows:
    """``table`` holds the columns to write, ``hashes`` one int64 a row, in the same order.

    ``marks`` holds the columns of :meth:`Sink.marks`, of as many rows. ``mapping`` is the file
    that they lie in, None where they lie in memory.
    """

    table: pa.Table
    hashes: pa.ChunkedArray
    mapping: mmap.mmap | None = None
    marks: pa.Table | None = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def slice(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``, without a copy."""
        count = stop - start
        marks = None if self.marks is None else self.marks.slice(start, count)
        hashes = self.hashes.slice(start, count)
        return Rows(self.table.slice(start, count), hashes, self.mapping, marks)

    def release(self) -> None:
        """Lets go of the file's pages that were read; what is used again is read again.

        Call it every some megabytes of a long walk, so that a task's memory stays small whatever
        its partition's size.
        """
        if self.mapping is not None:
            self.mapping.madvise(mmap.MADV_DONTNEED)

    def take(self, order: pa.Array) -> Rows:
        """The rows in another order; ``order`` holds row numbers."""
        marks = None if self.marks is None else self.marks.take(order)
        return Rows(self.table.take(order), self.hashes.take(order), None, marks)

    def fingerprint(self) -> Fingerprint:
        """Row count and the sum of the hashes modulo 2^64."""
        return Fingerprint(len(self), hash_sum(self.hashes))


def in_order(rows: Rows, order: pa.Array) -> Rows:
    """The rows in another order; a partition that was too large for memory stays in a file."""
    if rows.table.nbytes <= SPILL_BYTES:
        return rows.take(order)
    order = order.cast(pa.uint32())
    pa.default_memory_pool().release_unused()  # what it took to find the order
    arranged = read_rows(_pieces(rows, order), rows.table.column_names)
    return rows if arranged is None else arranged


def _pieces(rows: Rows, order: pa.Array) -> Iterator[pa.RecordBatch]:
    whole = rows.table
    if rows.marks is not None:
        for name in rows.marks.column_names:
            whole = whole.append_column(name, rows.marks[name])
    whole = whole.append_column(HASH_COLUMN, rows.hashes)
    count = max(1, min(_PIECE_ROWS, SPILL_BYTES * len(rows) // whole.nbytes))
    for start in range(0, len(order), count):
        columns = _gathered(whole, order.slice(start, count))
        yield pa.RecordBatch.from_arrays(columns, schema=whole.schema)
        rows.release()


def _gathered(table: pa.Table, numbers: pa.Array) -> list[pa.Array]:
    """The columns of these rows. Arrow's own ``take`` would join all of a column's chunks first,
    each time: twice the memory of the partition."""
    by_place = pc.sort_indices(numbers)
    places = numbers.take(by_place).cast(pa.int64())
    sorted_places = memoryview(places.buffers()[1]).cast("q")[places.offset :][: len(places)]
    back = pc.sort_indices(by_place)
    found = []
    for column in table.columns:
        parts, start, first = [], 0, 0
        for chunk in column.chunks:
            end = bisect_left(sorted_places, start + len(chunk), first)
            if end > first:
                parts.append(chunk.take(pc.subtract(places.slice(first, end - first), start)))
            start, first = start + len(chunk), end
        found.append(pa.concat_arrays(parts).take(back))
    return found


def hash_sum(hashes: pa.ChunkedArray) -> int:
    """The sum modulo 2^64, of two halves, so that no kernel's overflow rule matters."""
    low = pc.sum(pc.bit_wise_and(hashes, pa.scalar(0xFFFFFFFF, pa.int64()))).as_py() or 0
    high = pc.sum(pc.shift_right(hashes, pa.scalar(32, pa.int64()))).as_py() or 0
    return int(((high << 32) + low) % (1 << 64))


def read_rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Rows | None:
    """Takes in the whole partition, columns renamed to ``names``; None if it holds no row.

    What follows these columns, but for the hash, are marks.

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
            mapping = _spill(held, iterator)
            return _split(_mapped(mapping), names, mapping)
    return _split(pa.Table.from_batches(held), names) if held else None


def _spill(held: list[pa.RecordBatch], rest: Iterable[pa.RecordBatch]) -> mmap.mmap:
    descriptor, path = tempfile.mkstemp(prefix="spark-eoc-", suffix=".arrow")
    os.close(descriptor)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, held[0].schema) as writer:
            while held:
                writer.write_batch(held.pop(0))
            for batch in rest:
                if batch.num_rows:
                    writer.write_batch(batch)
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    finally:
        os.unlink(path)  # the mapping keeps the content until the task ends, however it ends


def _mapped(mapping: mmap.mmap) -> pa.Table:
    return pa.ipc.open_file(pa.py_buffer(mapping)).read_all()


def _split(table: pa.Table, names: Sequence[str], mapping: mmap.mmap | None = None) -> Rows:
    columns = table.select(range(len(names))).rename_columns(list(names))
    marks = [n for n in table.column_names[len(names) :] if n != HASH_COLUMN]
    kept = table.select(marks) if marks else None
    return Rows(columns, table.column(HASH_COLUMN), mapping, kept)
