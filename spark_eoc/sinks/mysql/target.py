"""The table that is written: what the server says of it, and what is refused before any row."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError

LOGGER = logging.getLogger("spark_eoc.sinks")
_MEMBER = re.compile("'((?:[^']|'')*)'")


@dataclass(frozen=True)
class TableColumn:
    """A column of the table as ``information_schema`` describes it.

    ``length`` is in characters, in bytes for binary types; ``members`` are those of an ENUM;
    ``definition`` makes another column that keeps the same values.
    """

    name: str
    type: str
    scale: int | None
    time_digits: int | None
    nullable: bool
    defaulted: bool
    generated: bool
    collation: str = ""
    length: int | None = None
    members: tuple[str, ...] | None = None
    definition: str = ""


@dataclass(frozen=True)
class TableShape:
    """A table's name as the server spells it, its columns and its unique indexes."""

    database: str
    name: str
    engine: str
    kind: str
    columns: Mapping[str, TableColumn]
    unique: Mapping[str, tuple[str, ...]]


def quoted(identifier: str) -> str:
    """An identifier in back-ticks, whatever it holds."""
    return "`" + identifier.replace("`", "``") + "`"


def read_shape(connection: Any, database: str, table: str) -> TableShape:
    """The table's shape; ConfigError if there is no such table."""
    found = find_shape(connection, database, table)
    if found is None:
        raise ConfigError(
            f"there is no table {quoted(database)}.{quoted(table)}",
            next_step="create it, InnoDB, with a column for each column of the frame, or pass "
            "create_table=True",
        )
    return found


def find_shape(connection: Any, database: str, table: str) -> TableShape | None:
    """The table's shape, None if there is no such table."""
    found = _rows(
        connection,
        "SELECT table_schema, table_name, engine, table_type FROM information_schema.tables "
        "WHERE table_schema=%s AND table_name=%s",
        database,
        table,
    )
    if not found:
        return None
    schema, name, engine, kind = found[0]
    columns = _rows(
        connection,
        "SELECT column_name, data_type, numeric_scale, datetime_precision, is_nullable, "
        "column_default, extra, collation_name, character_maximum_length, column_type, "
        "character_set_name "
        "FROM information_schema.columns "
        "WHERE table_schema=%s AND table_name=%s ORDER BY ordinal_position",
        schema,
        name,
    )
    return TableShape(
        schema, name, engine or "", kind, {c[0]: _column(c) for c in columns},
        _unique(connection, schema, name),
    )  # fmt: skip


def _column(row: Sequence[Any]) -> TableColumn:
    name, kind, scale, digits, nullable, default, extra, collation, length, full, charset = row
    extra = (extra or "").lower()
    return TableColumn(
        name,
        kind.lower(),
        scale,
        digits,
        nullable == "YES",
        default is not None or "auto_increment" in extra or "default_generated" in extra,
        "generated" in extra.replace("default_generated", ""),
        collation or "",
        length,
        _members(full) if kind.lower() == "enum" else None,
        f"{full} CHARACTER SET {charset} COLLATE {collation}" if charset else full,
    )


def _members(column_type: str) -> tuple[str, ...]:
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(column_type))


def _unique(connection: Any, schema: str, table: str) -> dict[str, tuple[str, ...]]:
    found = _rows(
        connection,
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
        "WHERE non_unique=0 "
        "AND table_schema=%s AND table_name=%s ORDER BY index_name, seq_in_index",
        schema,
        table,
    )
    indexes: dict[str, tuple[str, ...]] = {}
    for index, column, prefix in found:
        # Of an index on a prefix two different values may be one key.
        name = "(expression)" if column is None else f"{column}({prefix})" if prefix else column
        indexes[index] = (*indexes.get(index, ()), name)
    return indexes


def check_server(connection: Any, allow: Sequence[str]) -> None:
    """Refuses servers whose shared locks don't fence, unless allowed by name; ConfigError."""
    ((version,),) = _rows(connection, "SELECT VERSION()")
    found = dict(
        _rows(
            connection,
            "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'log_bin', 'binlog_format', "
            "'group_replication_group_name', 'group_replication_single_primary_mode')",
        )
    )
    if "tidb" in version.lower():
        _refuse_unless("tidb", "TiDB", allow)
    if found.get("wsrep_on") == "ON":
        _refuse_unless("galera", "a Galera node", allow)
    if (
        found.get("group_replication_group_name")
        and found.get("group_replication_single_primary_mode") == "OFF"
    ):
        _refuse_unless("multi_primary", "a multi-primary Group Replication member", allow)
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        raise ConfigError(
            "the server's binlog_format is STATEMENT, which READ COMMITTED can't be written to",
            next_step="SET GLOBAL binlog_format=ROW (or MIXED), and in the server's configuration",
        )


def _refuse_unless(name: str, what: str, allow: Sequence[str]) -> None:
    if name not in allow:
        raise ConfigError(
            f"the server is {what}: two sessions there can both hold a lock that must exclude one "
            "of them, so an old run is not fenced",
            next_step="write to a server with one primary; if you are sure that never two runs "
            f"are alive, pass allow=[{name!r}]",
        )


def _rows(connection: Any, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())
