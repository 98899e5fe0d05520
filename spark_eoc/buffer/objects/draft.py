"""A chunk in the making: the frames that the next sync creates as one object; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_eoc.buffer.block import BytesLike, ProducerState
from spark_eoc.buffer.frame import FrameChain, FrameHeader, Place
from spark_eoc.buffer.table import table_frames


class Draft:
    """Frames one behind the other, from record ``base_offset`` on; with ``table`` it begins a
    group, and that table of producers stands first."""

    def __init__(
        self, base_offset: int, epoch: int, tag: bytes, table: Mapping[bytes, ProducerState] | None
    ) -> None:
        self.base_offset = base_offset
        self.begins_group = table is not None
        self.line_bytes = 0
        self.parts: list[bytes] = []
        self.length = 0
        self._tag = tag
        self._place = Place(0, base_offset, 0)
        if table is not None:
            for header, payload in table_frames(table, base_offset, epoch, base_offset):
                self.add(header, payload)

    @property
    def records(self) -> int:
        """Records so far."""
        return self._place.offset - self.base_offset

    @property
    def last_crc(self) -> int:
        """crc32 of the last frame."""
        return self._place.previous_crc

    def add(self, header: FrameHeader, payload: Sequence[BytesLike]) -> None:
        """The next frame; copied, since the caller's memory may be used again before the sync."""
        chain = FrameChain(self._place, self._tag)
        chain.add(header, payload)
        self.parts.append(b"".join(chain.parts))
        self.length += len(self.parts[-1])
        self.line_bytes += header.data_length
        self._place = chain.place
