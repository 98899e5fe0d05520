"""Reading the lines of a slice, where a task runs."""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from spark_eoc.buffer.columns import values
from spark_eoc.buffer.directory import corrupt, list_segments, segment_path
from spark_eoc.buffer.frame import DATA, HEADER_BYTES, FrameHeader, frame_crc, parse_header
from spark_eoc.buffer.index import SegmentIndex
from spark_eoc.buffer.joiner import Joiner
from spark_eoc.buffer.options import MIB
from spark_eoc.buffer.published import read_start
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES, parse_segment_header
from spark_eoc.buffer.slices import Slice
from spark_eoc.errors import CorruptLogError, LogError, OffsetOutOfRangeError

_WINDOW_BYTES = 4 * MIB
_POLL_SECONDS = 0.1


def read_slice(
    piece: Slice, *, timestamp: bool = False, offset: bool = False, wait_seconds: float = 5.0
) -> Iterator[Any]:
    """Yields ``pyarrow.RecordBatch`` with exactly the ``piece.count`` records, in order.

    Columns: ``value`` binary, as received; with ``timestamp`` the time of receipt,
    ``timestamp('us', tz='UTC')``; with ``offset`` the record's offset, int64. Batches have at least
    1,000 rows where there are as many and they aren't huge.

    Waits up to ``wait_seconds`` for a shared file system to show what the driver saw. Then it
    raises: OffsetOutOfRangeError if the segment was trimmed, LogError naming the host if it isn't
    there, CorruptLogError if its bytes aren't what was written. It never yields fewer rows.
    """
    joiner = Joiner(timestamp, offset, piece.first_offset)
    for header, lines in _SliceFrames(piece, wait_seconds):
        yield from joiner.add(header, lines)
    yield from joiner.rest()


class _SliceFrames:
    """The data frames of a slice as (header, lines), the first and the last cut to measure."""

    def __init__(self, piece: Slice, wait_seconds: float) -> None:
        self._piece = piece
        self._directory = Path(piece.path)
        self._tag = bytes.fromhex(piece.buffer_id)[:8]
        self._deadline = time.monotonic() + wait_seconds
        self._next = piece.first_offset

    def __iter__(self) -> Iterator[tuple[FrameHeader, Any]]:
        place: tuple[int, int] | None = (self._piece.segment, self._piece.position)
        while self._next < self._piece.end_offset:
            before = self._next
            try:
                yield from self._segment(*(place or self._locate()))
            except (LogError, FileNotFoundError) as error:
                if self._next == before and place is None:
                    self._wait(error)
            place = None

    def _segment(self, segment: int, position: int) -> Iterator[tuple[FrameHeader, Any]]:
        """Frames from ``position`` to the end of the slice or of the segment."""
        path = segment_path(self._directory, segment)
        with path.open("rb", buffering=0) as file:
            self._check_buffer(path, os.pread(file.fileno(), SEGMENT_HEADER_BYTES, 0))
            window = _Window(file.fileno(), self._tag)
            while self._next < self._piece.end_offset:
                frame = window.frame(position)
                if frame is None and window.at_end(position):
                    return
                if frame is None:
                    raise corrupt(path, position, f"no whole frame with {self._next} is here")
                self._check(path, position, frame)
                if frame.header.kind == DATA and frame.header.end_offset > self._next:
                    yield frame.header, self._lines(frame)
                    self._next = min(frame.header.end_offset, self._piece.end_offset)
                position += frame.header.length

    def _check_buffer(self, path: Path, head: bytes) -> None:
        header = parse_segment_header(head)
        if header is None or header.buffer_id.hex() != self._piece.buffer_id:
            raise corrupt(path, 0, "it is not of this buffer")

    def _check(self, path: Path, position: int, frame: _Frame) -> None:
        if frame_crc(frame.bytes()) != frame.crc:
            raise corrupt(path, position, "its crc is not that of its bytes")
        if frame.header.base_offset > self._next:
            raise corrupt(path, position, f"record {self._next} is missing before it")

    def _lines(self, frame: _Frame) -> Any:
        header = frame.header
        skip = self._next - header.base_offset
        count = min(header.end_offset, self._piece.end_offset) - self._next
        return values(frame.buffer, frame.place, header).slice(skip, count)

    def _locate(self) -> tuple[int, int]:
        bases = list_segments(self._directory)
        number = bisect_right(bases, self._next) - 1
        if number < 0:
            raise FileNotFoundError(segment_path(self._directory, self._next))
        path = segment_path(self._directory, bases[number])
        with path.open("rb", buffering=0) as file:
            self._check_buffer(path, os.pread(file.fileno(), SEGMENT_HEADER_BYTES, 0))
        index = SegmentIndex(path, bases[number], self._tag)
        return bases[number], index.find(self._next, None, self._next + 1)[0]

    def _wait(self, error: Exception) -> None:
        start = read_start(self._directory)
        if start is not None and start > self._next:
            raise OffsetOutOfRangeError(
                f"record {self._next} of buffer {self._directory} was trimmed; start is {start}",
                applied="nothing of this partition",
                next_step="let only one query read under one consumer name",
                offset=self._next,
                start_offset=start,
            ) from error
        if time.monotonic() < self._deadline:
            time.sleep(_POLL_SECONDS)
        elif isinstance(error, CorruptLogError):
            raise error
        else:
            host = socket.gethostname()
            raise LogError(
                f"host {host} can't read record {self._next} of {self._directory}: {error}",
                applied="nothing of this partition",
                next_step="put bufferPath where each executor sees it, or run on the driver's host",
                host=host,
                path=str(self._directory),
            ) from error


class _Frame(NamedTuple):
    """A frame at ``place`` of an Arrow buffer; ``crc`` is what its header says."""

    header: FrameHeader
    crc: int
    buffer: Any
    place: int

    def bytes(self) -> memoryview:
        """Header and payload."""
        return memoryview(self.buffer)[self.place : self.place + self.header.length]


class _Window:
    """Big reads of a segment; batches keep their bytes alive, so each read is a new buffer."""

    def __init__(self, descriptor: int, tag: bytes) -> None:
        self._descriptor = descriptor
        self._tag = tag
        self._buffer = pa.py_buffer(b"")
        self._start = 0

    def frame(self, position: int) -> _Frame | None:
        """The frame at ``position``; None if no header or not all of it is there."""
        frame = self._held(position)
        if frame is None:
            header = self._load(position, _WINDOW_BYTES)
            frame = self._held(position)
            if frame is None and header is not None:
                self._load(position, header.length)
                frame = self._held(position)
        return frame

    def at_end(self, position: int) -> bool:
        """True if the file has no byte at ``position``."""
        return not os.pread(self._descriptor, 1, position)

    def _load(self, position: int, length: int) -> FrameHeader | None:
        self._buffer = pa.py_buffer(os.pread(self._descriptor, length, position))
        self._start = position
        if self._buffer.size < HEADER_BYTES:
            return None
        parsed = parse_header(memoryview(self._buffer), 0, self._tag)
        return parsed[0] if parsed else None

    def _held(self, position: int) -> _Frame | None:
        place = position - self._start
        if place < 0 or place + HEADER_BYTES > self._buffer.size:
            return None
        parsed = parse_header(memoryview(self._buffer), place, self._tag)
        if parsed is None or place + parsed[0].length > self._buffer.size:
            return None
        return _Frame(parsed[0], parsed[1], self._buffer, place)
