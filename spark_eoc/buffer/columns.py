"""Frames as Arrow columns, without a copy."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.buffer.block import BytesLike, LineBlock
from spark_eoc.buffer.frame import HEADER_BYTES, FrameHeader, data_layout

VALUE = pa.field("value", pa.binary())
TIMESTAMP = pa.field("timestamp", pa.timestamp("us", tz="UTC"))
OFFSET = pa.field("offset", pa.int64())


def schema(timestamp: bool, offset: bool) -> Any:
    """Arrow schema of what :func:`~spark_eoc.buffer.read.read_slice` yields."""
    return pa.schema([VALUE, *([TIMESTAMP] * timestamp), *([OFFSET] * offset)])


def check_offsets(block: LineBlock) -> None:
    """Raises ValueError unless a block's offsets fit its data."""
    array = _binary(pa.py_buffer(block.offsets), pa.py_buffer(block.data), block.records)
    ends = memoryview(block.offsets).cast("B")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"the offsets of a block don't fit its data: {error}") from error
    first, last = (int.from_bytes(piece, "little") for piece in (ends[:4], ends[-4:]))
    if first or last != block.data_bytes:
        raise ValueError("the offsets of a block don't cover its data")


def _binary(offsets: Any, data: Any, records: int) -> Any:
    return pa.Array.from_buffers(pa.binary(), records, [None, offsets, data])


def values(buffer: Any, place: int, header: FrameHeader) -> Any:
    """The lines of the frame at ``place`` of an Arrow buffer."""
    payload: BytesLike = memoryview(buffer)[place + HEADER_BYTES : place + header.length]
    offsets_at, data_at = data_layout(payload, header)
    start = place + HEADER_BYTES
    return _binary(
        buffer.slice(start + offsets_at, 4 * (header.records + 1)),
        buffer.slice(start + data_at, header.data_length),
        header.records,
    )


def times(microseconds: int, records: int) -> Any:
    """A column that holds one time."""
    return pa.repeat(pa.scalar(microseconds, TIMESTAMP.type), records)


def numbers(first: int, records: int) -> Any:
    """A column that counts from ``first``."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), records), start=first - 1)
