"""Producers frames: the table of sequence numbers at the start of each segment; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from spark_eoc.buffer.block import BytesLike, ProducerState
from spark_eoc.buffer.frame import (
    PRODUCERS,
    TABLE_FIRST,
    TABLE_LAST,
    FrameChain,
    FrameHeader,
    Place,
    table_parts,
)
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES, SegmentHeader

_PER_FRAME = 10_000


def table_frames(
    table: Mapping[bytes, ProducerState], base_offset: int, epoch: int, synced_upto: int = 0
) -> Iterator[tuple[FrameHeader, list[BytesLike]]]:
    """(header without previous crc, payload) of the frames that hold a table; at least one."""
    states = list(table.items())
    pieces = [states[at : at + _PER_FRAME] for at in range(0, len(states), _PER_FRAME)] or [[]]
    for number, piece in enumerate(pieces):
        first = TABLE_FIRST if number == 0 else 0
        last = TABLE_LAST if number == len(pieces) - 1 else 0
        header = FrameHeader(
            payload_length=0,
            kind=PRODUCERS,
            flags=first | last,
            runs=len(piece),
            base_offset=base_offset,
            records=0,
            epoch=epoch,
            receive_time_us=0,
            synced_upto=synced_upto,
            previous_crc=0,
        )
        yield header, table_parts(piece)


def begin_segment(
    header: SegmentHeader, table: Mapping[bytes, ProducerState], tag: bytes
) -> FrameChain:
    """The bytes that a segment begins with: its header and the table; frames are added behind.

    Every record before its base offset is durable when a segment is begun.
    """
    chain = FrameChain(Place(SEGMENT_HEADER_BYTES, header.base_offset, header.crc), tag)
    chain.parts.append(header.pack())
    for frame, payload in table_frames(table, header.base_offset, header.epoch, header.base_offset):
        chain.add(frame, payload)
    return chain
