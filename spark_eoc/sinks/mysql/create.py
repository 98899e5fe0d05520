"""The table that ``create_table=True`` makes: a column for each of the frame's, harmed by none."""

from __future__ import annotations

from collections.abc import Sequence

from spark_eoc.sinks.mysql.connection import Flavour
from spark_eoc.sinks.mysql.target import quoted
from spark_eoc.sinks.store import Column

_TYPES = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "DATETIME(6)",
    "timestamp_ntz": "DATETIME(6)",
    "binary": "LONGBLOB",
}
# An index holds no unbounded column; longer keys are refused by the server, not cut.
_KEY_TYPES = {"LONGTEXT": "VARCHAR(255)", "LONGBLOB": "VARBINARY(255)"}


def create_statement(
    flavour: Flavour, database: str, table: str, columns: Sequence[Column], key: Sequence[str]
) -> str:
    """``CREATE TABLE IF NOT EXISTS``, InnoDB, with ``key`` as its primary key where there is one.

    Its collation compares texts byte by byte and without padding, so that two keys which differ
    for Spark, by case or by a trailing space, are two rows.
    """
    collation = "utf8mb4_nopad_bin" if flavour.mariadb else "utf8mb4_0900_bin"
    parts = [_column(column, column.name in key) for column in columns]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in key)})")
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(table)} ({', '.join(parts)}) "
        f"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={collation}"
    )


def _column(column: Column, in_key: bool) -> str:
    kind = "JSON" if column.json else _TYPES.get(column.type, _parameterised(column.type))
    if in_key:
        kind = _KEY_TYPES.get(kind, kind)
    return f"{quoted(column.name)} {kind} {'NOT NULL' if in_key else 'NULL'}"


def _parameterised(kind: str) -> str:
    return kind.upper() if kind.startswith("decimal(") else "LONGTEXT"
