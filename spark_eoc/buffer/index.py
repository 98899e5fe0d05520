"""Finding a record in a segment: a sparse index, made by hopping from header to header."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spark_eoc.buffer.directory import corrupt
from spark_eoc.buffer.frame import HEADER_BYTES, FrameHeader, parse_header
from spark_eoc.buffer.scan import ByteReader
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES

_WINDOW_BYTES = 16 * 1024
_EVERY_BYTES = 64 * 1024


@dataclass
class SegmentIndex:
    """What is known of one segment's frames; grows with it, up to the published end.

    ``offsets`` and ``positions`` belong together, one entry for each 64 KiB or longer frame;
    ``epochs`` holds each epoch with the first offset at which it was seen.
    """

    path: Path
    base_offset: int
    tag: bytes
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    _position: int = SEGMENT_HEADER_BYTES
    _offset: int = -1

    @property
    def end_offset(self) -> int:
        """One past the last record taken in."""
        return max(self._offset, self.base_offset)

    def extend(self, end_position: int | None, end_offset: int) -> None:
        """Takes in all frames below ``end_offset`` and, if given, ``end_position``."""
        if self._offset < 0:
            self._offset = self.base_offset
        for position, header in self.hop(self._position, self._offset, end_position, end_offset):
            if not self.positions or position - self.positions[-1] >= _EVERY_BYTES:
                self.offsets.append(header.base_offset)
                self.positions.append(position)
            if not self.epochs or header.epoch > self.epochs[-1][0]:
                self.epochs.append((header.epoch, header.base_offset))
            self._position = position + header.length
            self._offset = header.end_offset

    def hop(
        self, position: int, offset: int, end_position: int | None, end_offset: int
    ) -> Iterator[tuple[int, FrameHeader]]:
        """(position, header) of each frame from ``position``, whose first record is ``offset``.

        Raises CorruptLogError where a header is not the next one.
        """
        if end_position is None and offset >= end_offset:
            return
        with self.path.open("rb", buffering=0) as file:
            reader = ByteReader(file.fileno(), _WINDOW_BYTES)
            while offset < end_offset or (end_position is not None and position < end_position):
                head = reader.view(position, HEADER_BYTES)
                parsed = parse_header(head, 0, self.tag) if len(head) == HEADER_BYTES else None
                if parsed is None or parsed[0].base_offset != offset:
                    raise corrupt(self.path, position, f"no frame with record {offset} is here")
                yield position, parsed[0]
                position += parsed[0].length
                offset = parsed[0].end_offset

    def find(
        self, offset: int, end_position: int | None, end_offset: int
    ) -> tuple[int, FrameHeader]:
        """(position, header) of the frame that holds record ``offset``, below ``end_offset``."""
        self.extend(end_position, end_offset)
        at = max(bisect_right(self.offsets, offset) - 1, 0)
        # Frames without records share an offset with the one behind them; an entry may be such.
        for position, header in self.hop(
            self.positions[at], self.offsets[at], end_position, end_offset
        ):
            if header.base_offset <= offset < header.end_offset:
                return position, header
        raise corrupt(self.path, self._position, f"record {offset} is missing")
