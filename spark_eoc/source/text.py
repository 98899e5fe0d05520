"""From stored bytes to a text column: the rule of option ``encodingErrors``.

Spark passes invalid UTF-8 on unchecked, and functions on such strings give nonsense, so it is
checked here. Valid text, nearly all there is, costs one pass of Arrow's validation and no copy.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_eoc.errors import BadLineError

_HEX_SHOWN = 32


def text_rule(encoding_errors: str) -> Callable[[pa.Array, int], pa.Array]:
    """The function that turns a binary array, and the offset of its first line, into `value`.

    ``binary`` keeps the bytes, ``replace`` puts U+FFFD for what isn't UTF-8 (as Spark's own
    socket source), ``strict`` raises BadLineError, which names the first bad line's offset.
    """
    return {"binary": _keep, "replace": _replace, "strict": _refuse}[encoding_errors]


def _keep(lines: pa.Array, first_offset: int) -> pa.Array:
    return lines


def _replace(lines: pa.Array, first_offset: int) -> pa.Array:
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid:
        replaced = [line.decode("utf-8", "replace") for line in lines.to_pylist()]
        return pa.array(replaced, pa.string())


def _refuse(lines: pa.Array, first_offset: int) -> pa.Array:
    try:
        return lines.cast(pa.string())
    except pa.ArrowInvalid as invalid:
        row, line = _first_bad(lines)
        shown = line[:_HEX_SHOWN].hex(" ") + (" ..." if len(line) > _HEX_SHOWN else "")
        raise BadLineError(
            f"line {first_offset + row} is not valid UTF-8 (bytes {shown})",
            applied="nothing of this partition",
            next_step="set encodingErrors to replace or binary, or skip the line with "
            f"a new checkpoint and startingOffsets={first_offset + row + 1}",
            offset=first_offset + row,
        ) from invalid


def _first_bad(lines: pa.Array) -> tuple[int, bytes]:
    for row, line in enumerate(lines.to_pylist()):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return row, line
    raise AssertionError("Arrow refused what Python reads as UTF-8")
