"""How the frame meets the table: which column goes where, and what the table's column keeps."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.render import Fit
from spark_eoc.sinks.mysql.statement import Insert
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column


@dataclass(frozen=True)
class Layout:
    """``names`` gives the table's column for each of the frame's that is written, ``fits`` what
    it keeps; ``key`` and ``merge`` are the frame's names, ``key`` is empty for an append."""

    database: str
    table: str
    names: Mapping[str, str]
    fits: Mapping[str, Fit]
    key: tuple[str, ...] = ()
    merge: Mapping[str, str] | None = None

    def insert(self) -> Insert:
        """The INSERT of all columns that are written, in the order of ``names``."""
        return Insert(
            self.database,
            self.table,
            list(self.names.values()),
            [self.names[name] for name in self.key],
            {self.names[name]: rule for name, rule in (self.merge or {}).items()},
        )

    def written(self, rows: Rows) -> Rows:
        """The rows with the columns that are written, in the order of ``names``."""
        return replace(rows, table=rows.table.select(list(self.names)))

    @property
    def last_only(self) -> bool:
        """Whether a row replaces all that rows of its key wrote before it."""
        rules = self.merge or {}
        return all(rules.get(name, "replace") == "replace" for name in self.names)


def written_columns(
    columns: Sequence[Column], renamed: Mapping[str, str | None], needed: Sequence[str]
) -> dict[str, Column]:
    """The columns that are written, as the table shall have them, by their names in the frame.

    ``renamed`` is the writer's ``columns``; ``needed`` must be among them. ConfigError names what
    is unknown, with the nearest.
    """
    names = [column.name for column in columns]
    for name in renamed:
        if name not in names:
            raise ConfigError(
                f"columns={{{name!r}: …}} names no column of the frame{nearest(name, names)}",
                next_step=f"name columns of {', '.join(names)}; the table's name comes second",
            )
    for name in needed:
        if renamed.get(name, name) is None:
            raise ConfigError(
                f"columns={{{name!r}: None}} leaves out a column that key or merge needs",
                next_step="write it, or take it out of key and merge",
            )
    kept = {column.name: (renamed.get(column.name, column.name), column) for column in columns}
    return {
        name: Column(target, column.type, column.json)
        for name, (target, column) in kept.items()
        if target is not None
    }


def nearest(name: str, known: Sequence[str]) -> str:
    """``; did you mean …?``, or nothing."""
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
