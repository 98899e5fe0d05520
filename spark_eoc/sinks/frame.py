"""What the JVM does with a frame before it is written: JSON of nested columns, and the hash."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.rows import HASH_COLUMN
from spark_eoc.sinks.store import Column

_SCALARS = (
    "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date",
    "timestamp", "timestamp_ntz", "binary",
)  # fmt: skip
_PREFIXES = ("string", "char(", "varchar(", "decimal(")
_NESTED = ("struct", "array", "map", "variant")
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
        return Column(field.name, name, json=True)
    raise ConfigError(
        f"column {field.name!r} has type {name}, which no sink can keep unharmed",
        next_step=f"cast it, for example to a number of units or to string: "
        f"df.withColumn({field.name!r}, col({field.name!r}).cast('string'))",
        column=field.name,
    )


def _type_name(kind: DataType) -> str:
    return kind.simpleString()


def with_hashes(df: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The frame with nested columns as JSON and one hash column more.

    The hash is ``xxhash64(0, c0, 1, c1, …)`` over the columns in name order, so that it does not
    depend on their order in the frame. The numbers are there because xxhash64 passes over NULLs:
    without them (NULL, 'a') and ('a', NULL) would be equal.
    """
    plain = df.select(*[_plain(column) for column in columns])
    parts: list[SparkColumn] = []
    for number, name in enumerate(sorted(column.name for column in columns)):
        parts += [F.lit(number), F.col(quoted(name))]
    return plain.withColumn(HASH_COLUMN, F.xxhash64(*parts))


def _plain(column: Column) -> SparkColumn:
    source = F.col(quoted(column.name))
    return F.to_json(source, _JSON_OPTIONS).alias(column.name) if column.json else source


def hashed(df: DataFrame, num_partitions: int, partition_by: Sequence[str]) -> DataFrame:
    """The frame, split by content: the same row is in the same partition, whatever ran before."""
    keys = [F.col(quoted(name)) for name in partition_by] or [F.col(HASH_COLUMN)]
    return df.repartition(num_partitions, *keys)


def quoted(name: str) -> str:
    """A column's name as one reference, whatever dots or back-ticks it holds."""
    return "`" + name.replace("`", "``") + "`"
