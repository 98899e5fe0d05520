"""Rows that a sink refuses for their content: named in an error, or put aside as dead letters.

A dead letter is written in the unit's own atomic step, so it is there exactly once, as the rows
beside it are. Its row is JSON with every column of the frame:

| type | form |
|---|---|
| STRING, nested types as their JSON text, DATE, TIMESTAMP (UTC, ``Z``), TIMESTAMP_NTZ | a string |
| integers, BOOLEAN, finite FLOAT and DOUBLE | as they are |
| DECIMAL | a string of digits |
| NaN and infinity | ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` |
| BINARY, and text that is no UTF-8 | ``{"base64": "..."}`` |
| a long value in a row above ``LETTER_BYTES`` | ``{"cut": "its beginning", "length": n}`` |
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import Refused, Unit
from spark_eoc.sinks.rows import Rows

#: Rows of one batch that may be put aside, unless ``dead_letter_limit`` says otherwise.
DEFAULT_LIMIT = 1000
#: A row whose JSON is longer keeps the beginning of its long values only.
LETTER_BYTES = 64 * 1024
#: The column in which ``replayable_socket`` with ``includeOffset`` gives a line's number.
OFFSET_COLUMN = "offset"
_CUT_CHARACTERS = 1000
# Of some thousand columns; a statement or script must be able to hold it.
_WIDEST_BYTES = 512 * 1024
_SHOWN_CHARACTERS = 100
_IF_RIGHT = (
    "if that many bad rows are right, raise dead_letter_limit and restart; else mend the table or "
    "the query"
)


@dataclass(frozen=True)
class RefusedRow:
    """``row`` counts from 0 in the unit's rows; ``error`` is the server's number, None where the
    row was refused before it was sent."""

    row: int
    reason: str
    column: str | None = None
    error: int | None = None


def check_limit(on_bad_row: str, limit: int | None) -> None:
    """Raises ConfigError for a limit that can't work."""
    if limit is None:
        return
    if on_bad_row != "dead_letter":
        raise ConfigError(
            'dead_letter_limit belongs to on_bad_row="dead_letter"',
            next_step='pass on_bad_row="dead_letter" with it, or leave it out',
        )
    if type(limit) is not int or limit < 1:
        raise ConfigError(
            f"dead_letter_limit={limit!r} is not a number from 1 on",
            next_step=f'leave it out for {DEFAULT_LIMIT}, or use on_bad_row="fail"',
        )


def over_limit(unit: Unit, found: int, before: int, limit: int, applied: str) -> Refused:
    """The refusal of a unit in which ``found`` rows or more were refused, after ``before`` of the
    batch's other rows."""
    others = f", after {before} of its other rows" if before else ""
    return Refused(
        "DeadLetterLimitError",
        f"{found} rows or more of partition {unit.partition}, batch {unit.batch_id}, were "
        f"refused{others}; dead_letter_limit={limit} for one batch",
        applied,
        _IF_RIGHT,
    )


def whole_over_limit(batch_id: int, found: int, limit: int) -> Refused:
    """The same of a whole batch, of which nothing is written then."""
    return Refused(
        "DeadLetterLimitError",
        f"{found} rows or more of batch {batch_id} were refused; dead_letter_limit={limit} for "
        "one batch",
        "nothing of this batch",
        _IF_RIGHT,
    )


def row_name(rows: Rows, row: int, key: Sequence[str] = ()) -> str:
    """Names a row for a message: by its source's offset, else by its key, else by its place."""
    offset = source_offset(rows.table, row)
    if offset is not None:
        return f"the row with offset {offset}"
    if key:
        values = ", ".join(f"{name}={_shown(rows.table, name, row)}" for name in key)
        return f"the row with key {values}"
    return f"row {row + 1:,} of {len(rows):,}"


def source_offset(table: pa.Table, row: int) -> int | None:
    """The row's offset in the source, where the frame carries one."""
    at = table.schema.get_field_index(OFFSET_COLUMN)
    if at < 0 or not pa.types.is_integer(table.schema.field(at).type):
        return None
    value: int | None = table.column(at)[row].as_py()
    return value


def row_json(table: pa.Table, row: int) -> str:
    """The row as JSON, in the form that this module describes."""
    values = {name: _value(table.column(name)[row]) for name in table.column_names}
    text = _dumped(values)
    if len(text.encode()) <= LETTER_BYTES:
        return text
    text = _dumped({name: _cut(value) for name, value in values.items()})
    return text if len(text.encode()) <= _WIDEST_BYTES else _dumped(_beginning(text))


def _dumped(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False, allow_nan=False)


def _value(value: pa.Scalar) -> Any:
    kind, is_a = value.type, pa.types
    form: Any
    if not value.is_valid or is_a.is_integer(kind) or is_a.is_boolean(kind):
        form = value.as_py()
    elif is_a.is_floating(kind):
        form = _number(value.as_py())
    elif is_a.is_decimal(kind):
        form = format(value.as_py(), "f")
    elif is_a.is_timestamp(kind):
        form = _instant(value)
    elif is_a.is_string(kind) or is_a.is_large_string(kind):
        form = _text(value.cast(pa.binary()).as_py())
    elif is_a.is_binary(kind) or is_a.is_large_binary(kind):
        form = _base64(value.as_py())
    else:
        form = str(value.cast(pa.string()).as_py())
    return form


def _instant(value: pa.Scalar) -> str:
    # Spark hands over microseconds in UTC, whatever zone the type names.
    text = str(pc.cast(value.cast(pa.int64()).cast(pa.timestamp("us")), pa.string()).as_py())
    return f"{text}Z" if value.type.tz else text


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _base64(data)


def _base64(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def _cut(value: Any) -> Any:
    text = value["base64"] if isinstance(value, dict) else value
    if not isinstance(text, str) or len(text) <= _CUT_CHARACTERS:
        return value
    return {**_beginning(text), "base64": True} if isinstance(value, dict) else _beginning(text)


def _beginning(text: str) -> dict[str, Any]:
    return {"cut": text[:_CUT_CHARACTERS], "length": len(text)}


def _shown(table: pa.Table, name: str, row: int) -> str:
    text = json.dumps(_value(table.column(name)[row]), ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
