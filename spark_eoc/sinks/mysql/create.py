"""What ``create_table`` and ``add_columns`` make: a column for each of the frame's, none harmed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.connection import DUPLICATE_COLUMN, Flavour, flavour, number
from spark_eoc.sinks.mysql.fit import type_of
from spark_eoc.sinks.mysql.match import missing_columns
from spark_eoc.sinks.mysql.target import find_shape, quoted, read_shape
from spark_eoc.sinks.store import Column

#: An index holds no unbounded column; longer keys are refused, not cut.
_KEY_TYPES = {"LONGTEXT": "VARCHAR(255)", "LONGBLOB": "VARBINARY(255)"}
#: Bytes and columns that InnoDB takes in one index.
_INDEX_BYTES, _INDEX_COLUMNS = 3072, 16
_CHARACTER_BYTES = 4
_TABLE_COLUMNS = 1017


def create_table(
    connection: Any, where: tuple[str, str], written: Mapping[str, Column], key: Sequence[str]
) -> None:
    """Makes the table (database, table) if it is missing; ``key`` are names of ``written``."""
    if find_shape(connection, *where) is None:
        names = [written[name].name for name in key]
        columns = list(written.values())
        connection.query(create_statement(flavour(connection), *where, columns, names))


def add_columns(connection: Any, where: tuple[str, str], written: Mapping[str, Column]) -> None:
    """Adds those of the columns that the table does not have, each by a statement of its own, since
    another run may add the same at the same time."""
    shape = read_shape(connection, *where)
    for column in missing_columns(shape, written):
        try:
            connection.query(add_statement(flavour(connection), shape.database, shape.name, column))
        except pymysql.MySQLError as error:
            if number(error) != DUPLICATE_COLUMN:
                raise


def create_statement(
    flavour: Flavour, database: str, table: str, columns: Sequence[Column], key: Sequence[str]
) -> str:
    """``CREATE TABLE IF NOT EXISTS``, InnoDB, with ``key`` as its primary key where there is one.

    Its collation compares texts byte by byte and without padding, so that two keys which differ
    for Spark, by case or by a trailing space, are two rows. ConfigError for a key that no index
    holds.
    """
    kinds = {c.name: _key_type(c) if c.name in key else _type(c, flavour) for c in columns}
    parts = [
        f"{quoted(name)} {kind} {'NOT NULL' if name in key else 'NULL'}"
        for name, kind in kinds.items()
    ]
    if key:
        _check_length({name: kinds[name] for name in key})
        parts.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in key)})")
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(table)} ({', '.join(parts)}) "
        f"ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={_collation(flavour)}"
    )


def check_width(columns: int) -> None:
    """ConfigError for more columns than any table of InnoDB has."""
    if columns > _TABLE_COLUMNS:
        raise ConfigError(
            f"{columns:,} columns are to be written, and a table of InnoDB has at most "
            f"{_TABLE_COLUMNS:,}",
            next_step="gather them in a struct or a map, which is written as one JSON column",
            columns=columns,
        )


def add_statement(flavour: Flavour, database: str, table: str, column: Column) -> str:
    """Adds one column, NULL in the rows that are there; with a text's character set, since the
    table's own may be another."""
    kind = _type(column, flavour)
    if kind == "LONGTEXT":
        kind += f" CHARACTER SET utf8mb4 COLLATE {_collation(flavour)}"
    where = f"{quoted(database)}.{quoted(table)}"
    return f"ALTER TABLE {where} ADD COLUMN {quoted(column.name)} {kind} NULL"


def _collation(flavour: Flavour) -> str:
    return "utf8mb4_nopad_bin" if flavour.mariadb else "utf8mb4_0900_bin"


def _type(column: Column, flavour: Flavour) -> str:
    if column.json:
        # MySQL's JSON keeps a number with decimals as a DOUBLE; MariaDB's is the text itself.
        exact = flavour.mariadb or not re.search("decimal|variant", column.type)
        return "JSON" if exact else "LONGTEXT"
    return type_of(column)


def _key_type(column: Column) -> str:
    if column.json:
        raise ConfigError(
            f"key column {column.name!r} is {column.type}, which no index holds",
            next_step="take a plain column for the key, such as a field or a hash of it",
            column=column.name,
        )
    kind = type_of(column)
    length = re.fullmatch(r"(?:var)?char\((\d+)\)", column.type)
    if length and int(length[1]) * _CHARACTER_BYTES <= _INDEX_BYTES:
        return f"VARCHAR({length[1]})"
    return _KEY_TYPES.get(kind, kind)


def _check_length(kinds: dict[str, str]) -> None:
    size = sum(_index_bytes(kind) for kind in kinds.values())
    if size > _INDEX_BYTES or len(kinds) > _INDEX_COLUMNS:
        raise ConfigError(
            f"a primary key of {', '.join(f'{n} {k}' for n, k in kinds.items())} is longer than "
            f"the {_INDEX_BYTES} bytes and {_INDEX_COLUMNS} columns that an index holds",
            next_step="create the table yourself with shorter key columns, or take a shorter key",
        )


def _index_bytes(kind: str) -> int:
    name, _, length = kind.rstrip(")").partition("(")
    if name == "VARCHAR":
        return int(length) * _CHARACTER_BYTES
    return int(length) if name == "VARBINARY" else 17
