"""The bytes of a frame; pure, no input or output.

A segment is a 64-byte segment header (see ``segment.py``) and then frames, each at a multiple of
64 bytes. All numbers are little-endian::

     0  magic            4s  "EOC1"
     4  crc32            u32 zlib.crc32 of everything behind it: bytes 8 .. 64 + payload length
     8  payload length   u32 a multiple of 64, padding included
    12  type             u8  1 data, 2 producers, 3 control
    13  flags            u8  producers: 1 first frame of a table, 2 last frame of a table
    14  runs             u16
    16  base offset      u64 number of its first record
    24  records          u32
    28  epoch            u32 of the writer that appended it
    32  receive time     i64 microseconds since 1970, UTC
    40  synced_upto      u64 every record below was durable when this frame was made
    48  previous crc     u32 crc32 of the frame before it, or of the segment header
    52  buffer tag       8s  first 8 bytes of the buffer id
    60  data length      u32 bytes of all its lines

    payload of a data frame:
        runs x ( u32 name length | u32 records | u64 first sequence | name | pad to 8 )
        int32 offsets[records + 1] | pad to 8 | data | pad to 64
    payload of a producers frame, the table of sequence numbers at that place of the log:
        runs x ( u32 name length | u32 0 | u64 last sequence | name | pad to 8 )
        int64 last time in microseconds [runs] | pad to 64
    payload of a control frame: empty; it marks where a writer with a new epoch began

The tag is there because a line may hold any bytes, those of a frame too: whoever sends lines
doesn't know the buffer id, so that nothing inside a damaged frame can pass for a frame.
Offsets and data are Arrow's own binary layout: ``pa.Array.from_buffers`` takes them as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from spark_eoc.buffer.block import BytesLike, ProducerState, Run
from spark_eoc.buffer.layout import Layout

MAGIC = b"EOC1"
FRAME_ALIGN = 64
HEADER_BYTES = 64
TAG_BYTES = 8

DATA = 1
PRODUCERS = 2
CONTROL = 3

TABLE_FIRST = 1
TABLE_LAST = 2

#: int32 offsets bound the data of a frame; the payload length is an u32.
MAX_DATA_BYTES = 2**31 - 1
MAX_RUNS = 2**16 - 1
MAX_RECORDS = 2**28
#: No table of runs or producers is longer.
MAX_TABLE_BYTES = MAX_RUNS * (16 + 256 + 8)

_PREFIX = Layout("<4sI")
_BODY = Layout("<IBBHQIIqQI8sI")
_HEADER = Layout("<4sIIBBHQIIqQI8sI")
_RUN = Layout("<IIQ")


class FrameHeader(NamedTuple):
    """The header of one frame, without magic, tag and crc."""

    payload_length: int
    kind: int
    flags: int
    runs: int
    base_offset: int
    records: int
    epoch: int
    receive_time_us: int
    synced_upto: int
    previous_crc: int
    data_length: int = 0

    @property
    def end_offset(self) -> int:
        """One past its last record."""
        return self.base_offset + self.records

    @property
    def length(self) -> int:
        """Bytes of the whole frame."""
        return HEADER_BYTES + self.payload_length


def padding(length: int, align: int) -> int:
    """Bytes that are missing to the next multiple of ``align``."""
    return -length % align


def pack_frame(
    header: FrameHeader, tag: bytes, parts: Sequence[BytesLike]
) -> tuple[list[BytesLike], int, int]:
    """(pieces to write one behind the other, their length, crc32).

    ``parts`` is the payload without the padding at its end; it isn't copied, and
    ``header.payload_length`` is set from it.
    """
    length = sum(memoryview(part).nbytes for part in parts)
    pad = bytes(padding(length, FRAME_ALIGN))
    body = _BODY.pack(length + len(pad), *header[1:10], tag, header.data_length)
    crc = crc32(body)
    for part in (*parts, pad):
        crc = crc32(part, crc)
    return (
        [_PREFIX.pack(MAGIC, crc) + body, *parts, pad],
        HEADER_BYTES + length + len(pad),
        crc,
    )


class Place(NamedTuple):
    """Where the next frame must begin, the record it begins with, the crc before it."""

    position: int
    offset: int
    previous_crc: int


class FrameChain:
    """Packs frames one behind the other, each with the crc of the one before.

    ``parts`` are to be written at the first ``place``; ``place`` is then that behind them.
    """

    def __init__(self, place: Place, tag: bytes) -> None:
        self.place = place
        self.parts: list[BytesLike] = []
        self._tag = tag

    def add(self, header: FrameHeader, payload: Sequence[BytesLike]) -> None:
        """The next frame; its payload length and previous crc are set here."""
        chained = header._replace(previous_crc=self.place.previous_crc)
        pieces, length, crc = pack_frame(chained, self._tag, payload)
        self.parts += pieces
        self.place = Place(self.place.position + length, header.end_offset, crc)


def parse_header(view: BytesLike, position: int, tag: bytes) -> tuple[FrameHeader, int] | None:
    """(header, crc as stored) of 64 bytes at ``position``; None if it is none of this buffer.

    Only form is checked; whether the bytes are whole tells :func:`frame_crc`.
    """
    magic, crc, *fields, found, data_length = _HEADER.unpack_from(view, position)
    if magic != MAGIC or found != tag or fields[0] % FRAME_ALIGN:
        return None
    header = FrameHeader._make((*fields, data_length))
    return (header, crc) if header.kind in (DATA, PRODUCERS, CONTROL) else None


def frame_crc(frame: memoryview) -> int:
    """crc32 of a whole frame, header and padding included, as it should stand in its header."""
    return crc32(frame[8:])


def pack_runs(runs: Iterable[Run]) -> bytes:
    """The run table of a data frame."""
    return b"".join(_pack_run(run.producer, run.records, run.first_sequence) for run in runs)


def _pack_run(producer: bytes, records: int, sequence: int) -> bytes:
    return _RUN.pack(len(producer), records, sequence) + producer + bytes(padding(len(producer), 8))


def parse_runs(payload: BytesLike, runs: int) -> tuple[list[Run], int]:
    """(run table, its length in bytes) at the start of a payload."""
    found = []
    place = 0
    for _ in range(runs):
        length, records, sequence = _RUN.unpack_from(payload, place)
        place += _RUN.size
        found.append(Run(bytes(payload[place : place + length]), records, sequence))
        place += length + padding(length, 8)
    return found, place


def runs_length(payload: BytesLike, runs: int) -> int:
    """Length in bytes of the run table."""
    place = 0
    for _ in range(runs):
        length = _RUN.unpack_from(payload, place)[0]
        place += _RUN.size + length + padding(length, 8)
    return place


def data_parts(runs: Sequence[Run], offsets: BytesLike, data: BytesLike) -> list[BytesLike]:
    """The payload of a data frame, for :func:`pack_frame`."""
    gap = padding(memoryview(offsets).nbytes, 8)
    return [pack_runs(runs), offsets, bytes(gap), data]


def data_layout(payload: BytesLike, header: FrameHeader) -> tuple[int, int]:
    """(place of the offsets, place of the data) in a data frame's payload."""
    offsets_at = runs_length(payload, header.runs)
    length = 4 * (header.records + 1)
    return offsets_at, offsets_at + length + padding(length, 8)


def table_parts(table: Sequence[tuple[bytes, ProducerState]]) -> list[BytesLike]:
    """The payload of a producers frame, for :func:`pack_frame`."""
    names = b"".join(_pack_run(name, 0, state.last_sequence) for name, state in table)
    times = struct.pack(f"<{len(table)}q", *(state.last_time_us for _, state in table))
    return [names, times]


def parse_table(payload: BytesLike, runs: int) -> dict[bytes, ProducerState]:
    """The payload of a producers frame."""
    names, place = parse_runs(payload, runs)
    times = struct.unpack_from(f"<{runs}q", payload, place)
    return {
        run.producer: ProducerState(run.first_sequence, time)
        for run, time in zip(names, times, strict=True)
    }
