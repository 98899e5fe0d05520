"""A unit's rows of a change stream, of which the refused ones are put aside.

What the rows of a key amount to is decided first, by :mod:`spark_eoc.sinks.mysql.changes`. Where
one of the rows that count is then refused, all that count for its key are put aside, its delete
among them, and the key keeps what it had: no older row takes the place. If anything of such a key
was sent by then, all is taken back to a savepoint and sent again without these keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.mysql.changes import (
    Judgement,
    counting,
    judge,
    no_order,
    no_place,
    numbers_where,
    unplaced,
)
from spark_eoc.sinks.mysql.insertion import Insertion, is_content, refused_row
from spark_eoc.sinks.mysql.layout import Layout
from spark_eoc.sinks.mysql.refusals import Refusals, check_limit
from spark_eoc.sinks.mysql.statement import Delete, Insert
from spark_eoc.sinks.mysql.write import STATEMENT_BYTES, around
from spark_eoc.sinks.rows import Rows

_SAVEPOINT, _UNDO = "SAVEPOINT spark_eoc_{}", "ROLLBACK TO SAVEPOINT spark_eoc_{}"
#: True or not for each row.
Mask: TypeAlias = "pa.Array | pa.ChunkedArray"


class AsideChanges:
    """One attempt, on a connection that is in a transaction; ``refusals`` is as for one without an
    order, of the unit's rows."""

    def __init__(
        self, connection: Any, layout: Layout, order_by: Sequence[str], refusals: Refusals
    ) -> None:
        self._connection, self._layout, self._refusals = connection, layout, refusals
        self._key, self._order_by = list(layout.key), list(order_by)
        names = [layout.names[name] for name in layout.key]
        self._delete = Delete(layout.database, layout.table, names)
        self._found: dict[int, RefusedRow] = {}

    def write(self, rows: Rows) -> list[RefusedRow]:
        """Sends what the rows, in the sink's order, amount to; returns what is to be put aside.

        DeadLetterLimitError above the limit; what passes is raised as it is.
        """
        rows, numbers, judged = self._placed(rows)
        if judged is None:
            return [*self._found.values()]
        group, written, deletes = judged.group, judged.written, judged.deletes
        if pc.any(deletes).as_py():
            self._connection.query(self._delete.create())
        self._connection.query(_SAVEPOINT.format("changes"))
        bad: list[int] = []
        while True:
            good = pc.invert(_is_in(group, bad))
            refused = self._send(rows, pc.and_(deletes, good), pc.and_(written, good))
            of = [group[row].as_py() for row in refused]
            counted = pc.and_(pc.or_(deletes, written), _is_in(group, of))
            self._put_aside(numbers, counted, group, refused)
            if pc.sum(counted).as_py() in (None, len(refused)):  # nothing else of their keys is in
                return [*self._found.values()]
            bad += of
            self._connection.query(_UNDO.format("changes"))

    # -- rows whose order is not known --------------------------------------------------------

    def _placed(self, rows: Rows) -> tuple[Rows, pa.ChunkedArray, Judgement | None]:
        """The rows that have a place in the order, their numbers and what becomes of them, if there
        are any; the others are put aside, with all rows of their keys where it is not known which
        of them comes last."""
        numbers = counting(len(rows))
        for name in self._key:
            mask = unplaced(rows.table, name)
            if pc.any(mask).as_py():
                why = RefusedRow(0, no_place("key", name), name)
                rows, numbers = self._leave_out(rows, numbers, mask, mask, why)
        for name in self._order_by:
            mask = unplaced(rows.table, name)
            if pc.any(mask).as_py():
                why = RefusedRow(0, no_place("order_by", name), name)
                whole = self._whole_keys(self._judge(rows, ()).group, mask)
                rows, numbers = self._leave_out(rows, numbers, mask, whole, why)
        if not len(rows):
            return rows, numbers, None
        judged: Judgement | None = self._judge(rows, self._order_by)
        if judged is not None and pc.any(judged.conflicts).as_py():
            mask = self._whole_keys(judged.group, judged.conflicts)
            how = no_order(self._order_by)
            why = RefusedRow(0, f"different rows of its key {how}, so which comes last is unknown")
            rows, numbers = self._leave_out(rows, numbers, mask, mask, why)
            judged = self._judge(rows, self._order_by) if len(rows) else None
        return rows, numbers, judged

    def _judge(self, rows: Rows, order_by: Sequence[str]) -> Judgement:
        return judge(rows, self._key, order_by, last_only=self._layout.last_only)

    def _whole_keys(self, group: pa.ChunkedArray, mask: Mask) -> pa.ChunkedArray:
        return pc.is_in(group, group.filter(mask))

    def _leave_out(
        self, rows: Rows, numbers: pa.ChunkedArray, mask: Mask, whole: Mask, why: RefusedRow
    ) -> tuple[Rows, pa.ChunkedArray]:
        """The rows without those in ``whole``, which are put aside for what is wrong with those in
        ``mask``."""
        self._check(pc.sum(whole).as_py())
        for row in numbers.filter(mask).to_pylist():
            self._found[row] = replace(why, row=row)
        for row in numbers.filter(pc.and_not(whole, mask)).to_pylist():
            self._found[row] = _beside(row, why)
        kept = pc.invert(whole)
        return rows.kept(kept), numbers.filter(kept)

    # -- what is sent -------------------------------------------------------------------------

    def _send(self, rows: Rows, gone: Mask, kept: Mask) -> dict[int, RefusedRow]:
        """Deletes and writes; the refused rows, by their numbers in ``rows``."""
        refused: dict[int, RefusedRow] = {}
        numbers = numbers_where(gone)
        if len(numbers):
            keys = replace(rows, table=rows.table.select(self._key), marks=None)
            self._delete_keys(keys.kept(gone), numbers, refused)
        if not pc.all(kept).as_py():
            self._insert(self._layout.insert(), rows.kept(kept), numbers_where(kept), refused)
        else:
            self._insert(self._layout.insert(), rows, None, refused)
        return refused

    def _delete_keys(self, rows: Rows, numbers: pa.Array, refused: dict[int, RefusedRow]) -> None:
        """Deletes these keys; where that is refused, in halves."""
        self._connection.query(_SAVEPOINT.format("deletes"))
        self._connection.query(self._delete.forget())
        self._insert(self._delete.keys(), rows, numbers, refused)
        try:
            self._connection.query(self._delete.sql())
        except pymysql.MySQLError as error:
            if not is_content(error):
                raise
            self._connection.query(_UNDO.format("deletes"))
            count = len(numbers)
            if count == 1:
                refused[numbers[0].as_py()] = refused_row(0, error)
                return
            for start, stop in ((0, count // 2), (count // 2, count)):
                part = numbers.slice(start, stop - start)
                self._delete_keys(rows.slice(start, stop), part, refused)

    def _insert(
        self, insert: Insert, rows: Rows, numbers: pa.Array | None, refused: dict[int, RefusedRow]
    ) -> None:
        text = around(self._connection, insert, STATEMENT_BYTES)
        refusals = replace(self._refusals, rows=rows, found=[])
        written = rows if rows.table.column_names == self._key else self._layout.written(rows)
        Insertion(self._connection, text, self._layout.fits, refusals).send(written)
        for one in refusals.found:
            refused[one.row if numbers is None else numbers[one.row].as_py()] = one

    # -- what is put aside --------------------------------------------------------------------

    def _put_aside(
        self, numbers: pa.Array, counted: pa.Array, group: pa.Array, refused: dict[int, RefusedRow]
    ) -> None:
        """Notes the rows that count for the keys of the refused ones."""
        self._check(pc.sum(counted).as_py() or 0)
        first = {group[row].as_py(): one for row, one in sorted(refused.items(), reverse=True)}
        for row in numbers_where(counted).to_pylist():
            number = numbers[row].as_py()
            one = refused.get(row)
            self._found[number] = (
                replace(one, row=number) if one else _beside(number, first[group[row].as_py()])
            )

    def _check(self, more: int) -> None:
        unit, limit = self._refusals.unit, self._refusals.limit
        if unit is not None and limit is not None:
            check_limit(unit, len(self._found) + more, 0, limit)


def _is_in(group: pa.ChunkedArray, numbers: Sequence[int]) -> pa.ChunkedArray:
    return pc.is_in(group, pa.array(numbers, pa.int32()))


def _beside(row: int, why: RefusedRow) -> RefusedRow:
    return RefusedRow(row, f"another row of its key is refused: {why.reason}")
