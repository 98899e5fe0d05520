"""The segment header and the names of segment files; pure, no input or output.

::

     0  magic          8s  "EOCSEG01"
     8  version        u16 1
    10  flags          u16 1: records before it were lost, and a repair left them out
    12  epoch          u32 of its first frame
    16  buffer id      16s
    32  base offset    u64 number of its first record, also its name with 20 digits
    40  created        i64 microseconds since 1970, UTC
    48  previous base  u64 base offset of the segment before it; its own for the first
    56  zero           u32
    60  crc32          u32 zlib.crc32 of bytes 0 .. 60

The previous base shows a missing segment without reading any but the headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from spark_eoc.buffer.layout import Layout

SEGMENT_MAGIC = b"EOCSEG01"
SEGMENT_HEADER_BYTES = 64
SEGMENT_SUFFIX = ".segment"
VERSION = 1
AFTER_GAP = 1

_HEADER = Layout("<8sHHI16sQqQI")
_CRC = Layout("<I")


@dataclass(frozen=True)
class SegmentHeader:
    """The first 64 bytes of a segment file."""

    epoch: int
    buffer_id: bytes
    base_offset: int
    created_us: int
    previous_base: int
    flags: int = 0

    def pack(self) -> bytes:
        """The 64 bytes."""
        head = _HEADER.pack(
            SEGMENT_MAGIC,
            VERSION,
            self.flags,
            self.epoch,
            self.buffer_id,
            self.base_offset,
            self.created_us,
            self.previous_base,
            0,
        )
        return head + _CRC.pack(crc32(head))

    @property
    def crc(self) -> int:
        """What the first frame's previous crc says."""
        return int.from_bytes(self.pack()[-4:], "little")


def parse_segment_header(data: bytes) -> SegmentHeader | None:
    """The header, or None if these bytes are none (cut, zero or damaged)."""
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    head = data[: _HEADER.size]
    magic, version, flags, epoch, buffer_id, base, created, previous, _ = _HEADER.unpack(head)
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    if magic != SEGMENT_MAGIC or version != VERSION or crc != crc32(head):
        return None
    return SegmentHeader(epoch, buffer_id, base, created, previous, flags)


def segment_name(base_offset: int) -> str:
    """File name of the segment that begins with this record."""
    return f"{base_offset:020d}{SEGMENT_SUFFIX}"


def base_of(name: str) -> int | None:
    """Base offset in a segment's file name; None for every other file."""
    digits = name[: -len(SEGMENT_SUFFIX)]
    if name.endswith(SEGMENT_SUFFIX) and len(digits) == 20 and digits.isdecimal():
        return int(digits)
    return None
