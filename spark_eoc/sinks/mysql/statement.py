"""The fixed text around the rows of an INSERT, by flavour of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.connection import Flavour
from spark_eoc.sinks.mysql.target import quoted

_ALIAS = "`spark_eoc_new`"
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
        sets = [self._rule(column, flavour) for column in self.columns if column not in self.key]
        if not sets:  # the key is all there is; the row that is there stays as it is
            same = f"{self._where()}.{quoted(self.key[0])}"
            sets = [f"{same}={same}"]
        alias = f" AS {_ALIAS}" if flavour.row_alias else ""
        return f"{alias} ON DUPLICATE KEY UPDATE {','.join(sets)}".encode()

    def _rule(self, column: str, flavour: Flavour) -> str:
        new = f"{_ALIAS}.{quoted(column)}" if flavour.row_alias else f"VALUES({quoted(column)})"
        old = f"{self._where()}.{quoted(column)}"
        rule = MERGES[self.merge.get(column, "replace")]
        return f"{old}={rule.format(old=old, new=new)}"

    def _where(self) -> str:
        return f"{quoted(self.database)}.{quoted(self.table)}"


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
