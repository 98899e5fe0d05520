"""What the JVM does with a frame before it is written: JSON of nested columns, and the hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException, ParseException
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
from spark_eoc.sinks.store import Column, Mark

#: What stands in brackets or after a blank (length, precision, collation) is cut off first.
_SCALARS = frozenset((
    "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "boolean", "date", "time",
    "timestamp", "timestamp_ntz", "binary", "string", "char", "varchar",
))  # fmt: skip
#: Types without a form of their own that Spark's JSON keeps.
_IN_JSON = _SCALARS | {"variant", "void"}
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

    Nested columns and variants are written as JSON text. Intervals, geometry, user-defined types
    and others without a form that every database keeps are refused by name, also inside of nested
    columns.
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
    kind = field.dataType
    if _base(kind) in _SCALARS:
        return Column(field.name, _type_name(kind))
    if not isinstance(kind, (StructType, ArrayType, MapType)) and _base(kind) != "variant":
        raise _not_kept(field.name, _type_name(kind))
    _refuse_harmed(field.name, kind)
    return Column(field.name, _type_name(kind), json=True)


def _base(kind: DataType) -> str:
    return _type_name(kind).partition("(")[0].split()[0]


def _not_kept(name: str, what: str) -> ConfigError:
    return ConfigError(
        f"column {name!r} has type {what}, which no sink can keep unharmed",
        next_step="cast it, for example to a number of units or to string: "
        f"df.withColumn({name!r}, col({name!r}).cast('string'))",
        column=name,
    )


def _refuse_harmed(name: str, kind: DataType) -> None:
    """Refuses what Spark's JSON harms: map keys are written in Spark's own inner form, dates as
    days, binary as an address; intervals and geometry as no JSON at all."""
    if isinstance(kind, StructType):
        for field in kind.fields:
            _refuse_harmed(name, field.dataType)
    elif isinstance(kind, ArrayType):
        _refuse_harmed(name, kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, _KEYS):
            raise ConfigError(
                f"column {name!r} holds a map with keys of type {_type_name(kind.keyType)}, which "
                "Spark can't write as JSON unharmed",
                next_step="cast the keys to string, with transform_keys",
                column=name,
            )
        _refuse_harmed(name, kind.valueType)
    elif _base(kind) not in _IN_JSON:
        raise _not_kept(name, f"{_type_name(kind)} inside of it")


def _type_name(kind: DataType) -> str:
    return kind.simpleString()


def check_marks(df: DataFrame, marks: Mapping[str, Mark]) -> None:
    """ConfigError for a mark's expression that Spark can't evaluate on ``df`` to true or false."""
    for mark in marks.values():
        try:
            found = df.select(F.expr(mark.expression)).schema.fields[0].dataType
        except (AnalysisException, ParseException) as error:
            raise ConfigError(
                f"{mark.option}={mark.expression!r} can't be evaluated on the frame, which has the "
                f"columns {', '.join(df.columns)}: {str(error).strip().splitlines()[0]}",
                next_step="write it as a condition of Spark's SQL over the frame's columns",
            ) from error
        if not isinstance(found, BooleanType):
            raise ConfigError(
                f"{mark.option}={mark.expression!r} gives {_type_name(found)}, not true or false",
                next_step="write it as a condition, for example \"op = 'D'\"",
            )


def with_hashes(
    df: DataFrame, columns: Sequence[Column], marks: Mapping[str, Mark] | None = None
) -> DataFrame:
    """The frame with nested columns as JSON, columns named by their number, and a hash column.

    The hash is ``xxhash64(0, c0, 1, c1, …)`` over the columns in name order, so that it does not
    depend on their order in the frame. The numbers are there because xxhash64 passes over NULLs:
    without them (NULL, 'a') and ('a', NULL) would be equal. Columns travel to Python under their
    numbers, because mapInArrow can't pass names with dots or back-ticks.

    ``marks`` follow the columns under their own names, NULL as false; they are not hashed.

    Written with few calls, because each is a question to the JVM, in every batch.
    """
    numbers = {column.name: number for number, column in enumerate(columns)}
    marks = marks or {}
    marked = df
    if marks:
        conditions = [
            F.coalesce(F.expr(mark.expression), F.lit(False)).alias(name)
            for name, mark in marks.items()
        ]
        marked = df.select("*", *conditions)
    plain = marked.toDF(*[_numbered(number) for number in range(len(columns))], *marks)
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
