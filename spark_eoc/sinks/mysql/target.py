"""The table that is written: what the server says of it, and what is refused before any row."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.store import Column

LOGGER = logging.getLogger("spark_eoc.sinks")
_TIMES = ("timestamp", "timestamp_ntz")
#: Whole numbers that a column of this type holds exactly, up to here.
_EXACT = {"float": 1 << 24, "double": 1 << 53}


@dataclass(frozen=True)
class TableColumn:
    """A column of the table as ``information_schema`` describes it; ``definition`` makes another
    column that keeps the same values."""

    name: str
    type: str
    scale: int | None
    time_digits: int | None
    nullable: bool
    defaulted: bool
    generated: bool
    collation: str = ""
    characters: int | None = None
    definition: str = ""

    @property
    def exact_integers(self) -> int | None:
        """The largest whole number up to which all are kept; None where the server refuses what
        it can't keep."""
        return _EXACT.get(self.type)

    @property
    def cut_text(self) -> str | None:
        """A pattern of the texts that the server would round or cut in silence; None for columns
        that keep or refuse every text."""
        if self.type == "date":
            return "[0-9][ T].*[1-9]"
        digits = self.fraction_digits
        if digits is None:
            return None
        finer = rf"\.[0-9]{{{digits}}}[0-9]*[1-9]"
        return finer if self.type in ("datetime", "timestamp", "time") else f"{finer}|[0-9.][eE]"

    @property
    def fraction_digits(self) -> int | None:
        """Decimals of seconds, or of a DECIMAL; None for other types."""
        if self.type in ("datetime", "timestamp", "time"):
            return self.time_digits
        return self.scale if self.type == "decimal" else 0 if self.type.endswith("int") else None


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
    found = _rows(
        connection,
        "SELECT table_schema, table_name, engine, table_type FROM information_schema.tables "
        "WHERE table_schema=%s AND table_name=%s",
        database,
        table,
    )
    if not found:
        raise ConfigError(
            f"there is no table {quoted(database)}.{quoted(table)}",
            next_step="create it, InnoDB, with a column for each column of the frame",
        )
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
        length if kind.lower() in ("char", "varchar") else None,
        f"{full} CHARACTER SET {charset} COLLATE {collation}" if charset else full,
    )


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


def check_table(
    shape: TableShape, columns: Sequence[Column], key: Sequence[str] | None, allow: Sequence[str]
) -> dict[str, TableColumn]:
    """The table's column of each column of the frame; ``key`` is None for an append.

    ConfigError names what can't be written unharmed.
    """
    where = f"table {quoted(shape.database)}.{quoted(shape.name)}"
    if shape.kind != "BASE TABLE" or shape.engine != "InnoDB":
        raise ConfigError(
            f"{where} is a {shape.kind} of engine {shape.engine or 'none'}: only InnoDB can take "
            "rows and ledger entry in one transaction",
            next_step=f"ALTER TABLE {quoted(shape.name)} ENGINE=InnoDB",
        )
    matched = {column.name: _match(shape, column, where) for column in columns}
    taken = {column.name for column in matched.values()}
    if len(taken) < len(matched):
        raise ConfigError(
            f"two columns of the frame are one column of {where}: names there have no case",
            next_step="rename or drop one of them",
        )
    _check_left_out(shape, taken, where)
    if key is not None:
        _check_key(shape, [matched[name].name for name in key], allow, where)
        _warn_collation(shape, [matched[name] for name in key], where)
    return matched


def _match(shape: TableShape, column: Column, where: str) -> TableColumn:
    by_lower = {name.lower(): found for name, found in shape.columns.items()}
    found = by_lower.get(column.name.lower())
    if found is None:
        near = difflib.get_close_matches(column.name.lower(), by_lower, 1)
        hint = f"; did you mean {by_lower[near[0]].name!r}?" if near else ""
        raise ConfigError(
            f"{where} has no column {column.name!r}{hint}",
            next_step="rename or drop the frame's column, or add it to the table",
            column=column.name,
        )
    if found.generated:
        raise ConfigError(
            f"column {column.name!r} of {where} is generated by the server",
            next_step="drop it from the frame",
            column=column.name,
        )
    _refuse_rounding(column, found, where)
    if column.type in _TIMES and found.type in ("date", "time", "year"):
        raise ConfigError(
            f"column {column.name!r} is a {column.type}, and {found.type} in {where}, which would "
            "cut it silently",
            next_step="cast it in the query, or make the table's column DATETIME(6)",
            column=column.name,
        )
    return found


def _refuse_rounding(column: Column, found: TableColumn, where: str) -> None:
    inexact = (
        (column.type in ("float", "double") and found.fraction_digits is not None)
        or (column.type == "double" and found.type == "float")
        or (column.type.startswith("decimal(") and found.type in _EXACT)
    )
    if inexact:
        raise ConfigError(
            f"column {column.name!r} is {column.type}, and {found.type} in {where}, which would "
            "round it silently",
            next_step=f"cast it in the query, or make the table's column "
            f"{'DOUBLE' if column.type in _EXACT else column.type.upper()}",
            column=column.name,
        )


def _warn_collation(shape: TableShape, key: Sequence[TableColumn], where: str) -> None:
    for column in key:
        if column.collation and not column.collation.endswith("_bin"):
            LOGGER.warning(
                "column %r of %s, part of the key, compares by %s: texts that it takes for equal "
                "(by case, accents or trailing spaces) are one row there, and different keys for "
                "Spark, of which the last one written stays",
                column.name,
                where,
                column.collation,
            )


def _check_left_out(shape: TableShape, taken: set[str], where: str) -> None:
    missing = [
        column.name
        for column in shape.columns.values()
        if column.name not in taken
        and not (column.nullable or column.defaulted or column.generated)
    ]
    if missing:
        raise ConfigError(
            f"{where} needs a value for {', '.join(map(repr, missing))}, which the frame does not "
            "have",
            next_step="add the column to the frame, or give it a default in the table",
        )


def _check_key(shape: TableShape, key: Sequence[str], allow: Sequence[str], where: str) -> None:
    indexes = {name: sorted(columns) for name, columns in shape.unique.items()}
    if sorted(key) not in indexes.values():
        raise ConfigError(
            f"{where} has no primary key or unique index on exactly {list(key)}, so an upsert "
            "would append",
            next_step="add one: ALTER TABLE … ADD UNIQUE KEY ("
            f"{', '.join(quoted(name) for name in key)})",
        )
    others = [
        name
        for name, columns in indexes.items()
        if columns != sorted(key) and f"unique_key:{name}" not in allow
    ]
    if others:
        raise ConfigError(
            f"{where} has another unique index, {others[0]!r}: a row that meets it would overwrite "
            "a stranger",
            next_step=f"drop it, upsert by it, or pass allow=['unique_key:{others[0]}']",
        )


def _rows(connection: Any, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return list(cursor.fetchall())
