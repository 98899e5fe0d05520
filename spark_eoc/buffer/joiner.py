"""Small frames joined into Arrow record batches of a good size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_eoc.buffer.columns import numbers, schema, times
from spark_eoc.buffer.frame import FrameHeader
from spark_eoc.buffer.options import MIB

#: A batch is given out at the latest with so many rows or bytes, and at the earliest with MIN_ROWS.
MIN_ROWS = 1_000
TARGET_ROWS = 65_536
TARGET_BYTES = 8 * MIB
MOST_BYTES = 64 * MIB


class Joiner:
    """Joins the lines of small frames into batches; big frames go through without a copy."""

    def __init__(self, timestamp: bool, offset: bool, first_offset: int) -> None:
        self._timestamp = timestamp
        self._offset = offset
        self._schema = schema(timestamp, offset)
        self._first = first_offset
        self._lines: list[Any] = []
        self._times: list[tuple[int, int]] = []
        self._rows = 0
        self._bytes = 0

    def add(self, header: FrameHeader, lines: Any) -> Iterator[Any]:
        """Takes in lines of one frame; yields batches that are ready."""
        for start in range(0, len(lines), TARGET_ROWS):
            piece = lines.slice(start, TARGET_ROWS)
            size = header.payload_length * len(piece) // header.records
            if self._must_go(len(piece), size):
                yield from self.rest()
            self._lines.append(piece)
            self._times.append((header.receive_time_us, len(piece)))
            self._rows += len(piece)
            self._bytes += size

    def _must_go(self, rows: int, size: int) -> bool:
        if self._bytes + size > MOST_BYTES:
            return True
        full = self._rows + rows > TARGET_ROWS or self._bytes + size > TARGET_BYTES
        return full and self._rows >= MIN_ROWS

    def rest(self) -> Iterator[Any]:
        """Yields what is left."""
        if not self._rows:
            return
        columns = [_joined(self._lines)]
        if self._timestamp:
            columns.append(_joined([times(*pair) for pair in self._times]))
        if self._offset:
            columns.append(numbers(self._first, self._rows))
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._first += self._rows
        self._lines, self._times, self._rows, self._bytes = [], [], 0, 0


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
