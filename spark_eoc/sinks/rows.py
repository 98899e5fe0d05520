"""A partition's rows with their hashes, read whole before anything is written."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.entries import Fingerprint

#: Name of the hash column that the JVM computes; it is never written.
HASH_COLUMN = "__spark_eoc_hash"
#: Above this many bytes a partition is kept in a local file instead of memory.
SPILL_BYTES = 32 * 1024 * 1024
#: Statements of some KB after which it is time for :meth:`Rows.release`.
RELEASE_EVERY = 128
#: Rows whose hashes are summed before their pages are let go of.
_SUMMED_ROWS = 1_000_000


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

    def kept(self, mask: pa.Array) -> Rows:
        """The rows where ``mask`` is true; of many rows the kept ones are in a file, too."""
        if not self.is_large:
            return self.take(pc.indices_nonzero(mask).cast(pa.int64()))
        return in_file(self._kept(mask), self.whole().schema, self.table.column_names)

    def _kept(self, mask: pa.Array) -> Iterator[pa.RecordBatch]:
        whole = self.whole()
        count = max(1, SPILL_BYTES // 8 * len(self) // whole.nbytes)
        for start in range(0, len(self), count):
            piece = whole.slice(start, count).filter(mask.slice(start, count))
            yield from piece.combine_chunks().to_batches()
            self.release()

    def fingerprint(self) -> Fingerprint:
        """Row count and the sum of the hashes modulo 2^64."""
        total = 0
        for start in range(0, len(self), _SUMMED_ROWS):
            total += hash_sum(self.hashes.slice(start, _SUMMED_ROWS))
            if start:
                self.release()
        return Fingerprint(len(self), total % (1 << 64))

    @property
    def is_large(self) -> bool:
        """Whether they are too large to be in memory a second time."""
        return int(self.table.nbytes) > SPILL_BYTES

    def whole(self) -> pa.Table:
        """Columns, marks and hashes as one table, which :meth:`of` takes apart."""
        table = self.table
        if self.marks is not None:
            for name in self.marks.column_names:
                table = table.append_column(name, self.marks[name])
        return table.append_column(HASH_COLUMN, self.hashes)

    @classmethod
    def of(cls, whole: pa.Table, names: Sequence[str], mapping: mmap.mmap | None = None) -> Rows:
        """Of a table whose first columns are those to write, here renamed to ``names``. What
        follows these, but for the hash, are marks."""
        columns = whole.select(range(len(names))).rename_columns(list(names))
        marks = [name for name in whole.column_names[len(names) :] if name != HASH_COLUMN]
        kept = whole.select(marks) if marks else None
        return cls(columns, whole.column(HASH_COLUMN), mapping, kept)


def hash_sum(hashes: pa.ChunkedArray) -> int:
    """The sum modulo 2^64, of two halves, so that no kernel's overflow rule matters."""
    total = 0
    for chunk in hashes.chunks:
        low = pc.sum(pc.bit_wise_and(chunk, pa.scalar(0xFFFFFFFF, pa.int64()))).as_py() or 0
        high = pc.sum(pc.shift_right(chunk, pa.scalar(32, pa.int64()))).as_py() or 0
        total += (high << 32) + low
    return int(total % (1 << 64))


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
            return in_file(_emptied(held, iterator), held[0].schema, names)
    return Rows.of(pa.Table.from_batches(held), names) if held else None


def in_file(batches: Iterable[pa.RecordBatch], schema: pa.Schema, names: Sequence[str]) -> Rows:
    """The rows of ``batches``, as :meth:`Rows.of` takes them apart, in a file that is mapped."""
    # It has no name, so that it is gone when the task ends, however it ends.
    with tempfile.TemporaryFile(prefix="spark-eoc-", suffix=".arrow") as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.write_batch(batch)
        file.flush()
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Rows.of(pa.ipc.open_file(pa.py_buffer(mapping)).read_all(), names, mapping)


def _emptied(
    held: list[pa.RecordBatch], rest: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    while held:
        yield held.pop(0)
    yield from rest
