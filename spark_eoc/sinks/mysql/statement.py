"""The fixed text around the rows of an INSERT, by flavour of the server."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.connection import Flavour
from spark_eoc.sinks.mysql.target import quoted

_ALIAS = "`spark_eoc_new`"
#: The key of staged rows: the id of their partition's staging, and their number in it.
STAGING_ID, ROW_NUMBER = "`spark_eoc_id`", "`spark_eoc_row`"
#: What becomes of a staged row of a change stream, one of the labels in ``changes``.
CHANGE = "spark_eoc_change"
_DELETED_KEYS = "spark_eoc_deleted_keys"
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

    def from_staging(
        self, table: str, staging_id: str, piece: tuple[int, int], *, changes: bool = False
    ) -> str:
        """Moves rows ``[start, stop)`` of one staged partition, in their order, from ``table``
        (quoted), whose columns have the same names and types; of ``changes`` what is written."""
        names = ",".join(quoted(column) for column in self.columns)
        chosen = ",".join(f"{_ALIAS}.{quoted(column)}" for column in self.columns)
        return (
            f"INSERT INTO {self._where()} ({names}) SELECT {chosen} FROM {table} AS {_ALIAS} "
            f"WHERE {_piece(staging_id, piece, 'w' if changes else None)} "
            f"ORDER BY {_ALIAS}.{ROW_NUMBER}"
            + (self._updates(f"{_ALIAS}.{{}}") if self.key else "")
        )

    def delete_staged(self, table: str, staging_id: str, piece: tuple[int, int]) -> str:
        """Deletes the keys that rows ``[start, stop)`` of a staged change stream delete; it walks
        the staged rows, so that it locks no other rows of the target."""
        same = " AND ".join(f"t.{quoted(c)}={_ALIAS}.{quoted(c)}" for c in self.key)
        return (
            f"DELETE t FROM {table} AS {_ALIAS} STRAIGHT_JOIN {self._where()} AS t ON {same} "
            f"WHERE {_piece(staging_id, piece, 'd')}"
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


def _piece(staging_id: str, piece: tuple[int, int], label: str | None) -> str:
    return (
        f"{_ALIAS}.{STAGING_ID}=0x{staging_id} AND {_ALIAS}.{ROW_NUMBER} >= {piece[0]} "
        f"AND {_ALIAS}.{ROW_NUMBER} < {piece[1]}"
        + (f" AND {_ALIAS}.{quoted(CHANGE)}=_binary'{label}'" if label else "")
    )


def staging_head(table: str, columns: Sequence[str]) -> bytes:
    """``INSERT INTO … (…) VALUES`` for rows that are staged in ``table`` (quoted)."""
    names = ",".join((STAGING_ID, *map(quoted, columns), ROW_NUMBER))
    return f"INSERT INTO {table} ({names}) VALUES ".encode()


@dataclass(frozen=True)
class Load:
    """LOAD DATA LOCAL of tab-separated lines, in the order of ``columns``.

    With ``raw`` the file is bytes, and ``texts`` are those of its columns that are utf8mb4.
    """

    database: str
    table: str
    columns: Sequence[str]
    texts: Collection[str]
    raw: bool

    def sql(self, file: str) -> str:
        """The statement; the session's mode knows no back-slash, so signs are in hexadecimal."""
        fields = [
            f"@v{place}" if column in self.texts else quoted(column)
            for place, column in enumerate(self.columns)
        ]
        sets = [
            f"{quoted(column)}=CONVERT(@v{place} USING utf8mb4)"
            for place, column in enumerate(self.columns)
            if column in self.texts
        ]
        return (
            f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {quoted(self.database)}."
            f"{quoted(self.table)} CHARACTER SET {'binary' if self.raw else 'utf8mb4'} FIELDS "
            "TERMINATED BY X'09' ENCLOSED BY '' ESCAPED BY X'5C' LINES STARTING BY '' TERMINATED "
            f"BY X'0A' ({','.join(fields)})" + (f" SET {','.join(sets)}" if sets else "")
        )


@dataclass(frozen=True)
class Delete:
    """Deletes by key, the keys in a temporary table of this connection; by the table's names."""

    database: str
    table: str
    key: Sequence[str]

    def create(self) -> str:
        """Makes the temporary table, with the columns that the key has in the target."""
        names = ",".join(quoted(column) for column in self.key)
        return (
            f"CREATE TEMPORARY TABLE {self._keys()} (PRIMARY KEY ({names})) ENGINE=InnoDB "
            f"SELECT {names} FROM {quoted(self.database)}.{quoted(self.table)} WHERE FALSE"
        )

    def forget(self) -> str:
        """Empties it; TRUNCATE and DROP would be refused or commit in some places."""
        return f"DELETE FROM {self._keys()}"

    def keys(self) -> Insert:
        """What fills it; two keys that the target takes for one are one here."""
        return Insert(self.database, _DELETED_KEYS, self.key, self.key)

    def sql(self) -> str:
        """The DELETE; it walks the keys, so that it locks no other rows of the target."""
        same = " AND ".join(f"t.{quoted(c)}=k.{quoted(c)}" for c in self.key)
        return (
            f"DELETE t FROM {self._keys()} AS k STRAIGHT_JOIN "
            f"{quoted(self.database)}.{quoted(self.table)} AS t ON {same}"
        )

    def _keys(self) -> str:
        return f"{quoted(self.database)}.{quoted(_DELETED_KEYS)}"


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
