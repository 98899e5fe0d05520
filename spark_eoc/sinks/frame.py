"""What the JVM does with a frame before it is written: JSON of nested columns, and the hash."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CharType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.rows import HASH_COLUMN
from spark_eoc.sinks.store import Column

_SCALARS = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date",
    "timestamp", "timestamp_ntz", "binary",
)  # fmt: skip
_PREFIXES = ("string", "char(", "varchar(", "decimal(")
_NESTED = ("struct", "array", "map", "variant")
#: Types of a map's keys that Spark's JSON writes as they are.
_KEYS = (StringType, CharType, VarcharType, NumericType, BooleanType)
# Spark's own default for JSON keeps milliseconds only.
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def describe_columns(df: DataFrame) -> tuple[Column, ...]:
    """The frame's columns in its order; ConfigError names a type or a name that can't be written.

    Nested columns are written as JSON text. Intervals and other types without a form that every
    database keeps are refused by name.
    """
    columns = tuple(_describe(field) for field in df.schema.fields)
    names = [column.name for column in columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated or HASH_COLUMN in names or not columns:
        raise ConfigError(
            f"the frame can't be written: column names {repeated or [HASH_COLUMN]} are used twice"
            if columns
            else "the frame has no columns",
            next_step="select the columns to write, under names of their own",
        )
    return columns


def _describe(field: StructField) -> Column:
    name = _type_name(field.dataType)
    if name in _SCALARS or name.startswith(_PREFIXES):
        return Column(field.name, name)
    if name.startswith(_NESTED) and "interval" not in name:
        _refuse_keys(field.name, field.dataType)
        return Column(field.name, name, json=True)
    raise ConfigError(
        f"column {field.name!r} has type {name}, which no sink can keep unharmed",
        next_step=f"cast it, for example to a number of units or to string: "
        f"df.withColumn({field.name!r}, col({field.name!r}).cast('string'))",
        column=field.name,
    )


def _refuse_keys(name: str, kind: DataType) -> None:
    """Spark writes a map's keys in its own inner form: dates as days, binary as an address."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _refuse_keys(name, field.dataType)
    elif isinstance(kind, ArrayType):
        _refuse_keys(name, kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, _KEYS):
            raise ConfigError(
                f"column {name!r} holds a map with keys of type {_type_name(kind.keyType)}, which "
                "Spark can't write as JSON unharmed",
                next_step="cast the keys to string, with transform_keys",
                column=name,
            )
        _refuse_keys(name, kind.valueType)


def _type_name(kind: DataType) -> str:
    return kind.simpleString()


def with_hashes(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The frame with nested columns as JSON, columns named by their number, and a hash column.

    The hash is ``xxhash64(0, c0, 1, c1, …)`` over the columns in name order, so that it does not
    depend on their order in the frame. The numbers are there because xxhash64 passes over NULLs:
    without them (NULL, 'a') and ('a', NULL) would be equal. Columns travel to Python under their
    numbers, because mapInArrow can't pass names with dots or back-ticks.

    Written with few calls, because each is a question to the JVM, in every batch.
    """
    numbers = {column.name: number for number, column in enumerate(columns)}
    plain = df.toDF(*[_numbered(number) for number in range(len(columns))])
    changed = {
        _numbered(numbers[column.name]): kept
        for column in columns
        if (kept := _kept(column, _numbered(numbers[column.name]))) is not None
    }
    if changed:
        plain = plain.withColumns(changed)
    parts = ", ".join(
        f"{place}, {_numbered(numbers[name])}" for place, name in enumerate(sorted(numbers))
    )
    return plain.selectExpr("*", f"xxhash64({parts}) AS {HASH_COLUMN}")


def _kept(column: Column, name: str) -> SparkColumn | None:
    """The form in which a column is kept, None where it is as it is."""
    if column.json:
        return F.to_json(F.col(name), _JSON_OPTIONS)
    if column.type.startswith("string collate"):
        return F.col(name).cast("string")  # texts that a collation takes for equal differ here
    return None


def _numbered(number: int) -> str:
    return f"c{number}"


def hashed(
    frame: DataFrame, columns: Sequence[Column], num_partitions: int, partition_by: Sequence[str]
) -> DataFrame:
    """The frame of ``with_hashes``, split by content: the same row is in the same partition,
    whatever ran before. ConfigError if ``partition_by`` names no column of the frame."""
    names = [column.name for column in columns]
    absent = [name for name in partition_by if name not in names]
    if absent:
        raise ConfigError(
            f"partition_by names {absent[0]!r}, which the frame does not have",
            next_step=f"name columns of {', '.join(names)}",
        )
    keys = [_numbered(names.index(name)) for name in partition_by] or [HASH_COLUMN]
    return frame.repartition(num_partitions, *[F.col(key) for key in keys])
