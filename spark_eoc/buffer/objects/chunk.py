"""The bytes of a chunk object; pure, no input or output.

A chunk is a header, a list of groups, and frames as ``spark_eoc/buffer/frame.py`` draws them. All
numbers are little-endian::

      0  magic           8s  "EOCCHNK1"
      8  crc32           u32 zlib.crc32 of bytes 12 .. 128 and of the list of groups
     12  version         u16 1
     14  flags           u16 1: the control chunk with which a writer began
     16  epoch           u32 of the writer that created it
     20  groups          u32 entries in the list behind the header
     24  last crc        u32 crc32 of its last frame, 0 without frames
     28  zero            u32
     32  buffer id       16s
     48  nonce           16s random; tells a writer whether a chunk in its way is its own
     64  number          u64 its sequence number, also its name with 20 digits
     72  base offset     u64 number of its first record
     80  records         u64
     88  line bytes      u64 of all its lines
     96  bytes before    u64 line bytes of all chunks before it, from the first ever on
    104  group           u64 number of the chunk that begins its group; its own for such a one
    112  created         i64 microseconds since 1970
    120  frames length   u64 bytes of its frames

A group is to trimming what a segment is on a disk. The chunk that begins one holds a table of the
producers (producers frames) and lists the groups before it, so that a writer that starts reads
one group, however much is retained::

    groups x ( u64 number | u64 base offset | u64 end offset | u64 bytes | i64 sealed µs )

The first frame of a chunk has 0 as the crc before it; each further one has that of the frame
before, and the header that of the last: so a chunk is whole, or it is seen that it isn't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from spark_eoc.buffer.block import BytesLike
from spark_eoc.buffer.frame import (
    HEADER_BYTES,
    TAG_BYTES,
    FrameHeader,
    frame_crc,
    parse_header,
)
from spark_eoc.buffer.layout import Layout
from spark_eoc.errors import CorruptLogError

CHUNK_MAGIC = b"EOCCHNK1"
CHUNK_HEADER_BYTES = 128
VERSION = 1
CONTROL_CHUNK = 1

_HEADER = Layout("<8sIHHIIII16s16sQQQQQQqQ")
_GROUP = Layout("<QQQQq")
_CRC_FROM = 12


@dataclass(frozen=True)
class Group:
    """A sealed group: records ``[base_offset, end_offset)`` from chunk ``number`` on, ``size`` in
    bytes, sealed at ``sealed_us``, microseconds since 1970."""

    number: int
    base_offset: int
    end_offset: int
    size: int
    sealed_us: int


class ChunkHeader(NamedTuple):
    """The header of one chunk; see the module."""

    flags: int
    epoch: int
    groups: int
    last_crc: int
    buffer_id: bytes
    nonce: bytes
    number: int
    base_offset: int
    records: int
    line_bytes: int
    bytes_before: int
    group: int
    created_us: int
    frames_length: int

    @property
    def end_offset(self) -> int:
        """One past its last record."""
        return self.base_offset + self.records

    @property
    def frames_at(self) -> int:
        """Position of its first frame."""
        return CHUNK_HEADER_BYTES + self.groups * _GROUP.size

    @property
    def length(self) -> int:
        """Bytes of the whole chunk."""
        return self.frames_at + self.frames_length

    @property
    def tag(self) -> bytes:
        """What marks its frames as this buffer's."""
        return self.buffer_id[:TAG_BYTES]


def pack_chunk(header: ChunkHeader, groups: Sequence[Group], frames: Sequence[BytesLike]) -> bytes:
    """The bytes of the object; number of groups and length of the frames are set here."""
    listed = b"".join(
        _GROUP.pack(g.number, g.base_offset, g.end_offset, g.size, g.sealed_us) for g in groups
    )
    length = sum(memoryview(part).nbytes for part in frames)
    made = header._replace(groups=len(groups), frames_length=length)
    head = _HEADER.pack(CHUNK_MAGIC, 0, VERSION, *made[:4], 0, *made[4:])[_CRC_FROM:]
    crc = crc32(listed, crc32(head))
    prefix = CHUNK_MAGIC + crc.to_bytes(4, "little")
    return b"".join((prefix, head, listed, *frames))


def parse_chunk_header(data: BytesLike) -> ChunkHeader | None:
    """The header at the start of ``data``; None if there is none. Only form is checked."""
    if memoryview(data).nbytes < CHUNK_HEADER_BYTES:
        return None
    magic, _, version, *fields = _HEADER.unpack_from(data, 0)
    if magic != CHUNK_MAGIC or version != VERSION:
        return None
    return ChunkHeader._make((*fields[:4], *fields[5:]))


def check_chunk(name: str, data: memoryview, number: int, buffer_id: bytes) -> ChunkHeader:
    """The header of a whole chunk. Raises CorruptLogError unless header, list of groups and
    length are as they were written, under this number and for this buffer."""
    header = parse_chunk_header(data)
    if header is None:
        raise corrupt_chunk(name, 0, "it doesn't begin as a chunk")
    if header.buffer_id != buffer_id or header.number != number:
        raise corrupt_chunk(name, 0, "it is another buffer's, or another chunk")
    if header.length != data.nbytes:
        raise corrupt_chunk(name, 0, f"it has {data.nbytes} bytes and not {header.length}")
    crc = int.from_bytes(data[8:12], "little")
    if crc32(data[_CRC_FROM : header.frames_at]) != crc:
        raise corrupt_chunk(name, 8, "its crc is not that of its bytes")
    return header


def groups_of(header: ChunkHeader, data: memoryview) -> list[Group]:
    """The sealed groups that a chunk lists, oldest first."""
    return [
        Group(*_GROUP.unpack_from(data, CHUNK_HEADER_BYTES + at * _GROUP.size))
        for at in range(header.groups)
    ]


def frames_of(
    name: str, header: ChunkHeader, data: memoryview
) -> Iterator[tuple[FrameHeader, int]]:
    """(frame header, position) of each frame of a checked chunk; CorruptLogError where a frame
    isn't as it was written, or one is missing."""
    position, previous, offset = header.frames_at, 0, header.base_offset
    while position < header.length:
        whole = position + HEADER_BYTES <= header.length
        parsed = parse_header(data, position, header.tag) if whole else None
        if parsed is None or position + parsed[0].length > header.length:
            raise corrupt_chunk(name, position, "no whole frame is here")
        frame, crc = parsed
        if frame_crc(data[position : position + frame.length]) != crc:
            raise corrupt_chunk(name, position, "its crc is not that of its bytes")
        if frame.previous_crc != previous or frame.base_offset != offset:
            raise corrupt_chunk(name, position, "it is not the frame that belongs here")
        yield frame, position
        position, previous, offset = position + frame.length, crc, frame.end_offset
    if previous != header.last_crc or offset != header.end_offset:
        raise corrupt_chunk(name, position, "frames are missing")


def corrupt_chunk(name: str, position: int, why: str) -> CorruptLogError:
    """The error for a chunk that isn't as it was written."""
    return CorruptLogError(
        f"chunk {name} at byte {position}: {why}",
        applied="nothing was changed",
        next_step="restore that object from a version or a copy of the bucket",
        file=name,
        position=position,
        why=why,
    )
