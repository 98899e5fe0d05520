"""Redis's wire format, encoded for whole Arrow columns at once.

A command is ``*<count>`` and then ``$<length>`` and the bytes of each argument, all ended by CRLF.
Nothing is quoted and lengths rule, so no value can become a command.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

#: Lengths up to here are looked up in a table of headers, which is faster than formatting.
_TABLE_LENGTH = 4096


def bulk(*arguments: bytes) -> bytes:
    """Arguments one by one."""
    return b"".join(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments)


def bulks(column: pa.Array) -> memoryview:
    """Every element of a binary array without NULLs as an argument of its own, without a copy."""
    return memoryview(b"") if len(column) == 0 else _content(_framed(column))


class Framed:
    """The same for stretches of a column, which is encoded once."""

    def __init__(self, column: pa.Array) -> None:
        self._framed = _framed(column) if len(column) else pa.array([], pa.binary())
        _, offsets, data = self._framed.buffers()
        self._ends = memoryview(offsets or b"").cast("i")[self._framed.offset :]
        self._data = memoryview(data or b"")

    def __getitem__(self, part: slice) -> memoryview:
        """Arguments ``[start, stop)``."""
        return self._data[self._ends[part.start] : self._ends[part.stop]]


def _framed(column: pa.Array) -> pa.Array:
    lengths = pc.binary_length(column)
    longest = pc.max(lengths).as_py()
    if longest <= _TABLE_LENGTH:
        headers = pa.array([b"$%d\r\n" % length for length in range(longest + 1)], pa.binary())
        header = headers.take(lengths)
    else:
        digits = lengths.cast(pa.string()).cast(pa.binary())
        header = pc.binary_join_element_wise(b"$", digits, b"\r\n", b"")
    return pc.binary_join_element_wise(header, column, pa.scalar(b"\r\n"), b"")


def command(name: bytes, argument_count: int, parts: Sequence[bytes | memoryview]) -> bytes:
    """One command; ``parts`` hold ``argument_count`` encoded arguments."""
    return b"".join([b"*%d\r\n" % (argument_count + 1), bulk(name), *parts])


def _content(column: pa.Array) -> memoryview:
    _, offsets, data = column.buffers()
    if data is None:
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]
