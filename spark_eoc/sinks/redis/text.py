"""The text form of Spark's values in Redis, whole columns at a time.

| type | form |
|---|---|
| STRING, BINARY | its bytes, unchanged |
| integers, DECIMAL | decimal digits |
| FLOAT, DOUBLE | the shortest digits that read back equal; ``nan``, ``inf``, ``-inf`` |
| BOOLEAN | ``true``, ``false`` |
| DATE | ``2013-01-31`` |
| TIMESTAMP | ``2013-01-31 23:59:59.000001Z``, always UTC; TIMESTAMP_NTZ without the ``Z`` |
| nested types | JSON, made in the JVM before rows reach this module |
| intervals | refused by name |
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.store import Column

#: Spark's simple type names that have a text form; what stands in brackets is cut off first.
TEXT_TYPES = frozenset(
    [
        "string",
        "char",
        "varchar",
        "binary",
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "decimal",
        "float",
        "double",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "void",
    ]
)
#: Those that are whole numbers whatever their value.
INTEGER_TYPES = frozenset({"tinyint", "smallint", "int", "bigint"})
#: Those that INCRBYFLOAT and scores take.
NUMBER_TYPES = INTEGER_TYPES | {"decimal", "float", "double"}


def check_type(column: Column) -> None:
    """Raises ConfigError for a column whose type has no text form."""
    kind = base_type(column.type)
    if kind in TEXT_TYPES or column.json:
        return
    if kind.startswith("interval"):
        raise ConfigError(
            f"column {column.name!r} is an {column.type}, which has no agreed text form",
            next_step="cast it to a string or to a number of microseconds before the writer",
        )
    raise ConfigError(
        f"column {column.name!r} of type {column.type} can't be written to Redis",
        next_step="cast it to a string, a number, a date, a timestamp or binary, or drop it",
    )


def base_type(name: str) -> str:
    """``decimal`` of ``decimal(38,18)``, ``string`` of ``string collate UNICODE``."""
    return name.partition("(")[0].split()[0].lower()


def is_whole(name: str) -> bool:
    """Whether a Spark type holds whole numbers only."""
    return base_type(name) in INTEGER_TYPES or (
        base_type(name) == "decimal" and name.replace(" ", "").endswith(",0)")
    )


def text_column(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous binary array with the text form; NULL stays NULL."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # what pyarrow makes of a column without rows
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], values.type)
    if array.type == pa.binary():
        return array
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        return array.cast(pa.large_binary()).cast(pa.binary())
    return _to_string(array).cast(pa.binary())


def _to_string(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        # Spark hands over UTC microseconds; whatever zone the type names, the instant is the same.
        zone = array.type.tz
        text = array.cast(pa.timestamp("us", "UTC") if zone else pa.timestamp("us")).cast(
            pa.timestamp("us")
        )
        text = text.cast(pa.string())
        return pc.binary_join_element_wise(text, "Z", "") if zone else text
    text = array.cast(pa.string())
    if pa.types.is_decimal(array.type) and pc.any(pc.match_substring(text, "E")).as_py():
        return _digits(array)
    return text


def _digits(array: pa.Array) -> pa.Array:
    """Decimals without an exponent, which Arrow writes for small ones: ``0E-18``."""
    scale = array.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset
    ).cast(pa.string())
    sign = pc.if_else(pc.starts_with(whole, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(whole, "-"), scale + 1, "0")
    integer = pc.utf8_slice_codeunits(digits, 0, -scale)
    fraction = pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(sign, integer, ""), fraction, "."
    )
