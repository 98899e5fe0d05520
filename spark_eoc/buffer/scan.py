"""Reading frames one after the other, each checked; what a writer finds when it opens a log."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from spark_eoc.buffer.block import ProducerState
from spark_eoc.buffer.frame import (
    DATA,
    FRAME_ALIGN,
    HEADER_BYTES,
    MAGIC,
    MAX_TABLE_BYTES,
    PRODUCERS,
    TABLE_FIRST,
    TABLE_LAST,
    FrameHeader,
    Place,
    frame_crc,
    parse_header,
    parse_runs,
    parse_table,
)
from spark_eoc.buffer.options import MIB

_WHOLE_BYTES = 8 * MIB


class ByteReader:
    """Positioned reads of one open file through a window, without a system call each."""

    def __init__(self, descriptor: int, window_bytes: int = MIB) -> None:
        self._descriptor = descriptor
        self._window_bytes = window_bytes
        self._view = memoryview(b"")
        self._start = 0

    def view(self, position: int, length: int) -> memoryview:
        """``length`` bytes at ``position``; fewer at the end of the file."""
        place = position - self._start
        if place < 0 or place + length > self._view.nbytes:
            wanted = max(length, self._window_bytes)
            self._view = memoryview(os.pread(self._descriptor, wanted, position))
            self._start = position
            place = 0
        return self._view[place : place + length]


class Found(NamedTuple):
    """A whole frame at ``position``."""

    position: int
    header: FrameHeader
    crc: int

    @property
    def after(self) -> Place:
        """Where the frame behind it must begin."""
        return Place(self.position + self.header.length, self.header.end_offset, self.crc)


def whole_frame(reader: ByteReader, position: int, end: int, tag: bytes) -> Found | None:
    """The frame at ``position`` if it lies below ``end`` and its crc is right, else None."""
    head = reader.view(position, HEADER_BYTES)
    if position + HEADER_BYTES > end or head.nbytes < HEADER_BYTES:
        return None
    parsed = parse_header(head, 0, tag)
    if parsed is None or position + parsed[0].length > end:
        return None
    header, stored = parsed
    crc = _crc_at(reader, position, header.length)
    return Found(position, header, crc) if crc == stored else None


def _crc_at(reader: ByteReader, position: int, length: int) -> int:
    if length <= _WHOLE_BYTES:
        return frame_crc(reader.view(position, length))
    crc = 0
    for place in range(8, length, _WHOLE_BYTES):
        crc = crc32(reader.view(position + place, min(_WHOLE_BYTES, length - place)), crc)
    return crc


def walk(reader: ByteReader, place: Place, end: int, tag: bytes) -> Iterator[Found]:
    """Whole frames from ``place`` on, each the right one behind the one before; stops at the
    first that is not."""
    while True:
        found = whole_frame(reader, place.position, end, tag)
        if (
            found is None
            or found.header.base_offset != place.offset
            or found.header.previous_crc != place.previous_crc
        ):
            return
        yield found
        place = found.after


def later_frames(reader: ByteReader, position: int, end: int, tag: bytes) -> Iterator[Found]:
    """Every whole frame behind a bad one at ``position``, wherever it begins."""
    position += FRAME_ALIGN
    while position < end:
        chunk = bytes(reader.view(position, min(MIB, end - position)))
        for place in range(0, len(chunk), FRAME_ALIGN):
            if chunk.startswith(MAGIC, place):
                found = whole_frame(reader, position + place, end, tag)
                if found is not None:
                    yield found
        position += MIB


class Change(NamedTuple):
    """What one frame does to the table of producers; ``flags`` is None for a data frame."""

    flags: int | None
    states: dict[bytes, ProducerState]


def change_of(reader: ByteReader, found: Found) -> Change | None:
    """What a frame does to the table of producers; None for nothing."""
    header = found.header
    if not header.runs and header.kind != PRODUCERS:
        return None
    length = min(header.payload_length, MAX_TABLE_BYTES)
    payload = reader.view(found.position + HEADER_BYTES, length)
    if header.kind == PRODUCERS:
        return Change(header.flags, parse_table(payload, header.runs))
    states = {
        run.producer: ProducerState(run.first_sequence + run.records - 1, header.receive_time_us)
        for run in parse_runs(payload, header.runs)[0]
        if run.producer
    }
    return Change(None, states) if states else None


@dataclass
class ProducerTable:
    """The table of producers as the log tells it. A table frame counts once its last part is
    there, because a crash may come between the parts."""

    states: dict[bytes, ProducerState] = field(default_factory=dict)
    staged: dict[bytes, ProducerState] = field(default_factory=dict)

    def apply(self, change: Change | None) -> None:
        """Takes in the next frame."""
        if change is None:
            return
        if change.flags is None:
            self.states.update(change.states)
            return
        if change.flags & TABLE_FIRST:
            self.staged = {}
        self.staged.update(change.states)
        if change.flags & TABLE_LAST:
            self.states, self.staged = self.staged, {}

    def copy(self) -> ProducerTable:
        """A table that changes on its own."""
        return ProducerTable(dict(self.states), dict(self.staged))


@dataclass
class SegmentScan:
    """The whole frames of a segment, up to the first that is not whole.

    ``durable`` is the place up to which the frames themselves, or the published end, prove that
    they were synced, and ``producers`` the table there; ``pending`` are the frames behind it.
    """

    end: Place
    durable: Place
    synced_upto: int = 0
    epoch: int = 0
    last_time_us: int = 0
    frames: int = 0
    producers: ProducerTable = field(default_factory=ProducerTable)
    pending: deque[tuple[Found, Change | None]] = field(default_factory=deque)

    def add(self, found: Found, change: Change | None, published_position: int) -> None:
        """Takes in the next frame."""
        header = found.header
        self.frames += 1
        self.end = found.after
        self.epoch = max(self.epoch, header.epoch)
        news = header.synced_upto > self.synced_upto or self.end.position <= published_position
        self.synced_upto = max(self.synced_upto, header.synced_upto)
        if header.kind == DATA:
            self.last_time_us = header.receive_time_us
        self.pending.append((found, change))
        if news:
            self._settle(published_position)

    def _settle(self, published_position: int) -> None:
        # Only records prove anything: a frame without any shares its offset with the next one.
        settled = 0
        for number, (found, _) in enumerate(self.pending, 1):
            header = found.header
            if found.after.position <= published_position or (
                header.records and header.end_offset <= self.synced_upto
            ):
                settled = number
        for _ in range(settled):
            found, change = self.pending.popleft()
            self.durable = found.after
            self.producers.apply(change)

    def table(self) -> dict[bytes, ProducerState]:
        """The table of producers at the end."""
        table = self.producers.copy()
        for _, change in self.pending:
            table.apply(change)
        return table.states


def scan_segment(
    reader: ByteReader, first: Place, size: int, tag: bytes, published_position: int = 0
) -> SegmentScan:
    """Scans a segment from its first frame on."""
    scan = SegmentScan(first, first)
    for found in walk(reader, first, size, tag):
        scan.add(found, change_of(reader, found), published_position)
    return scan
