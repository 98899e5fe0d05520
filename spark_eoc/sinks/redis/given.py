"""What a frame gave for a staged chunk, kept for its dead letters; and the letters themselves.

A chunk's rows lie as a compressed Arrow stream in a field with its number, each with the number of
the operation that it went into (from 1; 0 for none). Rows that were refused when they were staged
are letters already: JSON lists of :data:`Letter` in fields ``aside:<n>``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.dead_letters import RefusedRow, row_json, source_offset
from spark_eoc.sinks.redis.cut import CHUNK_BYTES

#: Partition, offset in the source ("" if unknown), column ("" if unknown), reason, and the row.
Letter = tuple[str, str, str, str, str]
_OPERATION = "__spark_eoc_operation"


def letter(partition: int, table: pa.Table, refused: RefusedRow) -> Letter:
    """The letter of one row of ``table``."""
    offset = source_offset(table, refused.row)
    return (
        str(partition),
        "" if offset is None else str(offset),
        refused.column or "",
        refused.reason,
        row_json(table, refused.row),
    )


def packed_rows(table: pa.Table, operations: Sequence[int]) -> bytes:
    """The rows of a chunk; ``operations`` has the number of each one's."""
    numbers = pa.array(operations, pa.int32())
    whole = table.append_column(_OPERATION, numbers)
    sink = pa.BufferOutputStream()
    codec = "zstd" if pa.Codec.is_available("zstd") else None
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, whole.schema, options=options) as stream:
        stream.write_table(whole)
    return bytes(sink.getvalue())


def size_of(letters: Iterable[Letter]) -> int:
    """Characters, of which most are a byte."""
    return sum(len(field) for letter in letters for field in letter)


def letters_of(
    packed: bytes, partition: int, reasons: Mapping[int, str], most: int
) -> list[Letter]:
    """The letters of the rows that went into these operations, up to ``most``."""
    whole = pa.ipc.open_stream(packed).read_all()
    table = whole.drop_columns([_OPERATION])
    chosen = pc.is_in(whole[_OPERATION], pa.array(list(reasons), pa.int32()))
    numbers = whole[_OPERATION].to_pylist()
    return [
        letter(partition, table, RefusedRow(row, reasons[numbers[row]]))
        for row in pc.indices_nonzero(chosen).slice(0, most).to_pylist()
    ]


def packed_letters(letters: Sequence[Letter]) -> Iterator[str]:
    """The letters as texts of a bounded size, at least one letter each."""
    some: list[Letter] = []
    size = 0
    for one in letters:
        if some and size + size_of([one]) > CHUNK_BYTES:
            yield json.dumps(some)
            some, size = [], 0
        some.append(one)
        size += size_of([one])
    if some:
        yield json.dumps(some)


def unpacked_letters(text: str) -> list[Letter]:
    """The inverse, for one of the texts."""
    return [tuple(one) for one in json.loads(text)]
