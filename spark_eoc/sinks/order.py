"""Rows in an order, whatever their number: a large partition is sorted by way of local files.

The order is that of a stable sort in memory, to the row, since a unit that is applied in part goes
on at a position in it. It depends neither on the limit of memory nor on how a partition is cut:

* rows are compared by their columns and then by their number, so that no two are equal;
* some rows, drawn from all over the partition, are the borders between as many stretches of the
  order; each piece of the partition is sorted and cut there, and written to a file;
* each stretch is then read from all pieces, sorted, and written behind the one before it.

Borders decide only how large a stretch gets. In memory are a piece or a stretch, some MB: pages of
files count as memory of the task too, and are let go of as soon as they are read.
"""

from __future__ import annotations

import mmap
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.rows import Rows, in_file

#: Of rows alone, without the others, the columns that they are ordered by, the first first.
By = Callable[[Rows], pa.Table]
#: Bytes that are sorted at a time.
PIECE_BYTES = 4 * 1024 * 1024
#: What a piece has of a stretch is not to get smaller: pieces grow instead.
_LEAST_BYTES = 64 * 1024
#: Rows drawn from each piece, from which borders are chosen.
_DRAWN = 64


def in_order(rows: Rows, by: By) -> Rows:
    """The rows by these columns, ascending, NULL last; those that are equal there as they came.

    Rows that are too large for memory are in a file afterwards, as they were before.
    """
    if not rows.is_large:
        return rows.take(_sorted(by(rows)))
    pa.default_memory_pool().release_unused()
    return _Sorting.of(rows, by).sorted()


def _sorted(columns: pa.Table) -> pa.Array:
    if columns.num_columns == 1:
        return pc.sort_indices(columns.column(0))
    return pc.sort_indices(columns, sort_keys=[(n, "ascending") for n in columns.column_names])


@dataclass(frozen=True)
class _Sorting:
    """``starts`` are the numbers of the pieces' first rows; there are as many stretches."""

    rows: Rows
    whole: pa.Table
    by: By
    starts: range

    @classmethod
    def of(cls, rows: Rows, by: By) -> _Sorting:
        whole = rows.whole()
        size = max(PIECE_BYTES, isqrt(whole.nbytes * _LEAST_BYTES))
        count = max(1, size * len(rows) // whole.nbytes)
        return cls(rows, whole, by, range(0, len(rows), count))

    def sorted(self) -> Rows:
        with tempfile.TemporaryFile(prefix="spark-eoc-", suffix=".arrow") as file:
            self._write(file, self._borders())
            return in_file(self._stretches(file), self.whole.schema, self.rows.table.column_names)

    def _piece(self, start: int) -> pa.Table:
        piece = self.whole.slice(start, self.starts.step).combine_chunks()
        self.rows.release()
        return piece

    def _columns(self, piece: pa.Table, numbers: pa.Array) -> pa.Table:
        """What these rows are compared by."""
        columns = list(self.by(Rows.of(piece, self.rows.table.column_names)).columns)
        names = [f"by {at}" for at in range(len(columns))]
        return pa.table([*columns, numbers], names=[*names, "number"])

    def _borders(self) -> pa.Table:
        """The first row of each stretch but the first, in order."""
        drawing, drawn = random.Random(0), []
        for start in self.starts:
            piece = self._piece(start)
            few = min(_DRAWN, len(piece))
            places = pa.array(sorted(drawing.sample(range(len(piece)), few)), pa.int64())
            drawn.append(self._columns(piece.take(places), pc.add(places, start)))
        whole, count = pa.concat_tables(drawn), len(self.starts)
        chosen = [len(whole) * at // count for at in range(1, count)]
        return whole.take(_sorted(whole)).take(pa.array(chosen, pa.int64())).combine_chunks()

    def _write(self, file: IO[bytes], borders: pa.Table) -> None:
        """Each piece's part of each stretch: a batch, with the columns that it is ordered by."""
        writer: pa.RecordBatchFileWriter | None = None
        for start in self.starts:
            piece = self._piece(start)
            columns = self._columns(piece, _counting(start, len(piece)))
            order, ends = _cut(borders, columns)
            for name in columns.column_names[:-1]:
                piece = piece.append_column(name, columns[name])
            (batch,) = piece.take(order).combine_chunks().to_batches()
            writer = writer or pa.ipc.new_file(file, batch.schema)
            for first, end in zip([0, *ends], [*ends, len(batch)], strict=True):
                writer.write_batch(batch.slice(first, end - first))
        if writer is not None:
            writer.close()
        file.flush()

    def _stretches(self, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = pa.ipc.open_file(pa.py_buffer(mapping))
        count, width = len(self.starts), self.whole.num_columns
        for stretch in range(count):
            parts = [reader.get_batch(piece * count + stretch) for piece in range(count)]
            table = pa.Table.from_batches(parts).combine_chunks()
            parts.clear()
            mapping.madvise(mmap.MADV_DONTNEED)
            order = _sorted(table.select(range(width, table.num_columns)))
            yield from table.select(range(width)).take(order).to_batches()


def _cut(borders: pa.Table, columns: pa.Table) -> tuple[pa.Array, Sequence[int]]:
    """The order of a piece's rows, and where in it the stretches end, but for the last."""
    order = _sorted(pa.concat_tables([borders, columns]))
    count = pa.scalar(len(borders), order.type)
    is_border = pc.less(order, count)
    ends = [place - at for at, place in enumerate(pc.indices_nonzero(is_border).to_pylist())]
    return pc.subtract(order.filter(pc.invert(is_border)), count), ends


def _counting(start: int, count: int) -> pa.Array:
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.add(pc.cumulative_sum(ones), pa.scalar(start - 1, pa.int64()))
