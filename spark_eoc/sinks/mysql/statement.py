"""The fixed text around the rows of an INSERT, by flavour of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.connection import Flavour
from spark_eoc.sinks.mysql.target import quoted

_ALIAS = "`spark_eoc_new`"
#: The key of staged rows: the id of their partition's staging, and their number in it.
STAGING_ID, ROW_NUMBER = "`spark_eoc_id`", "`spark_eoc_row`"
#: What an upsert does with a column that is no key: ``{old}`` in the table, ``{new}`` given.
MERGES: dict[str, str] = {
    "replace": "{new}",
    "add": "COALESCE({old} + {new}, {old}, {new})",
    "min": "COALESCE(LEAST({old}, {new}), {old}, {new})",
    "max": "COALESCE(GREATEST({old}, {new}), {old}, {new})",
    "keep": "{old}",
    "coalesce": "COALESCE({new}, {old})",
}


@dataclass(frozen=True)
class Insert:
    """What is inserted, by the names of the table; with ``key`` it is an upsert."""

    database: str
    table: str
    columns: Sequence[str]
    key: Sequence[str] = ()
    merge: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """``INSERT INTO … (…) VALUES`` and a space."""
        names = ",".join(quoted(column) for column in self.columns)
        return f"INSERT INTO {self._where()} ({names}) VALUES ".encode()

    def tail(self, flavour: Flavour) -> bytes:
        """What follows the rows: nothing, or the rules of the upsert."""
        if not self.key:
            return b""
        alias = f" AS {_ALIAS}" if flavour.row_alias else ""
        return (alias + self._updates(f"{_ALIAS}.{{}}" if alias else "VALUES({})")).encode()

    def from_staging(self, table: str, staging_id: str, start: int, stop: int) -> str:
        """Moves rows ``[start, stop)`` of one staged partition, in their order, from ``table``
        (quoted), whose columns have the same names and types."""
        names = ",".join(quoted(column) for column in self.columns)
        chosen = ",".join(f"{_ALIAS}.{quoted(column)}" for column in self.columns)
        return (
            f"INSERT INTO {self._where()} ({names}) SELECT {chosen} FROM {table} AS {_ALIAS} "
            f"WHERE {_ALIAS}.{STAGING_ID}=0x{staging_id} AND {_ALIAS}.{ROW_NUMBER} >= {start} "
            f"AND {_ALIAS}.{ROW_NUMBER} < {stop} ORDER BY {_ALIAS}.{ROW_NUMBER}"
            + (self._updates(f"{_ALIAS}.{{}}") if self.key else "")
        )

    def _updates(self, new: str) -> str:
        """The rules of the upsert; ``new`` is how a new row's column is named."""
        sets = [self._rule(column, new) for column in self.columns if column not in self.key]
        if not sets:  # the key is all there is; the row that is there stays as it is
            same = f"{self._where()}.{quoted(self.key[0])}"
            sets = [f"{same}={same}"]
        return f" ON DUPLICATE KEY UPDATE {','.join(sets)}"

    def _rule(self, column: str, new: str) -> str:
        old = f"{self._where()}.{quoted(column)}"
        rule = MERGES[self.merge.get(column, "replace")]
        return f"{old}={rule.format(old=old, new=new.format(quoted(column)))}"

    def _where(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"


def staging_head(table: str, columns: Sequence[str]) -> bytes:
    """``INSERT INTO … (…) VALUES`` for rows that are staged in ``table`` (quoted)."""
    names = ",".join((STAGING_ID, *map(quoted, columns), ROW_NUMBER))
    return f"INSERT INTO {table} ({names}) VALUES ".encode()


def check_merge(merge: Mapping[str, str], columns: Sequence[str], key: Sequence[str]) -> None:
    """ConfigError for an unknown rule, an unknown column, or a rule for a key column."""
    for column, rule in merge.items():
        if rule not in MERGES:
            raise ConfigError(
                f"merge={{{column!r}: {rule!r}}} is not known",
                next_step=f"use one of {', '.join(MERGES)}",
            )
        if column not in columns or column in key:
            raise ConfigError(
                f"merge names {column!r}, which is "
                + ("part of the key" if column in key else "no column of the frame"),
                next_step="name a column of the frame that is not in key",
            )
