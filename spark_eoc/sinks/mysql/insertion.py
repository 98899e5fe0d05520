"""A unit's rows as INSERT statements, and which of them are refused for their content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pymysql

from spark_eoc.errors import BadRowError
from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.mysql.client import HARM, HarmError
from spark_eoc.sinks.mysql.connection import CONTENT, message, number
from spark_eoc.sinks.mysql.render import Around, Fit, RowsText, blocks, rows_text, too_long
from spark_eoc.sinks.rows import RELEASE_EVERY, Rows

#: Called with a row's number in the unit and what it was refused for; it may raise to end all.
Refuse = Callable[[int, Exception], None]

_PACKET_TOO_LARGE = 1153  # after it the server has closed the connection
_NO_DEFAULT = 1364  # of the whole table
_JSON = 3140
_SAVEPOINT, _UNDO = "SAVEPOINT spark_eoc_{}", "ROLLBACK TO SAVEPOINT spark_eoc_{}"
# 'v' on both; MariaDB writes `db`.`table`.`v` in some messages.
_COLUMN = re.compile(r"\bcolumn (?:`[^`]*`\.`[^`]*`\.)?['`]([^'`]+)['`]", re.IGNORECASE)
_AT_ROW = re.compile(r" at row \d+$")


class Insertion:
    """Inserts rows on a connection that is in a transaction; what is refused goes to ``refuse``.

    A statement that the server refuses for a row's content leaves nothing behind, since InnoDB
    undoes a failed statement whole; so it is halved and sent again, in order. One bad row among n
    costs about 2 log2(n) short statements, n bad ones 2n. Rows that are refused here are found
    the same way, without a statement. Any other error passes through.

    A statement that only warned is applied, and can't be halved; then all is undone and sent
    again, with a savepoint before each statement.
    """

    def __init__(
        self, connection: Any, around: Around, fits: Mapping[str, Fit], refuse: Refuse
    ) -> None:
        self._connection, self._around, self._fits = connection, around, fits
        self._tell = refuse
        self._refused: set[int] = set()
        self._careful = False
        self._sent = 0

    def send(self, rows: Rows) -> None:
        """Inserts all rows but the refused ones, in order."""
        self._connection.query(_SAVEPOINT.format("all"))
        try:
            self._send(rows)
        except HarmError:
            self._careful = True
            self._connection.query(_UNDO.format("all"))
            self._send(rows)

    def _refuse(self, row: int, error: Exception) -> None:
        self._refused.add(row)
        self._tell(row, error)

    def _send(self, rows: Rows) -> None:
        first = 0
        for block in blocks(rows.table):
            for text, numbers in self._rendered(block, first):
                for start, stop in text.cuts(self._around):
                    self._range(text, numbers, start, stop)
                    self._release(rows)
            first += block.num_rows

    def _release(self, rows: Rows) -> None:
        if self._sent % RELEASE_EVERY == 0:
            rows.release()
        self._sent += 1

    def _rendered(self, block: pa.Table, first: int) -> Iterator[tuple[RowsText, Sequence[int]]]:
        """The block's text with the number of each of its rows, without what can't be written."""
        numbers: Sequence[int] = range(first, first + block.num_rows)
        if not self._refused.isdisjoint(numbers):
            yield from self._rest(block, first)
            return
        try:
            text = rows_text(block, self._fits, self._around.lead)
        except BadRowError:
            self._refuse_unwritable(block, first)
            yield from self._rest(block, first)
            return
        yield RowsText(text), numbers

    def _rest(self, block: pa.Table, first: int) -> Iterator[tuple[RowsText, Sequence[int]]]:
        """The block without the rows that are refused already."""
        good = [row for row in range(block.num_rows) if first + row not in self._refused]
        if good:
            text = rows_text(block.take(pa.array(good, pa.int64())), self._fits, self._around.lead)
            yield RowsText(text), [first + row for row in good]

    def _refuse_unwritable(self, block: pa.Table, first: int) -> None:
        try:
            rows_text(block, self._fits, self._around.lead)
        except BadRowError as error:
            if block.num_rows == 1:
                self._refuse(first, error)
                return
            half = block.num_rows // 2
            self._refuse_unwritable(block.slice(0, half), first)
            self._refuse_unwritable(block.slice(half), first + half)

    def _range(self, text: RowsText, numbers: Sequence[int], start: int, stop: int) -> None:
        if text.excess(start, self._around):
            self._refuse(numbers[start], too_long(text.length(start, stop), self._around))
            return
        try:
            self._query(text.statement(start, stop, self._around))
        except pymysql.MySQLError as error:
            if not is_content(error) or (isinstance(error, HarmError) and not self._careful):
                raise
            if stop - start == 1:
                self._refuse(numbers[start], error)
                return
            middle = (start + stop) // 2
            self._range(text, numbers, start, middle)
            self._range(text, numbers, middle, stop)

    def _query(self, statement: bytes) -> None:
        if not self._careful:
            self._connection.query(statement)
            return
        self._connection.query(_SAVEPOINT.format("statement"))
        try:
            self._connection.query(statement)
        except HarmError:
            self._connection.query(_UNDO.format("statement"))
            raise


def is_content(error: Exception) -> bool:
    """Whether a row's content made this error of the server, and the connection goes on."""
    known = CONTENT | HARM - {_NO_DEFAULT} if isinstance(error, HarmError) else CONTENT
    return number(error) in known - {_PACKET_TOO_LARGE}


def refused_row(row: int, error: Exception) -> RefusedRow:
    """What is known of a row that was refused with ``error``."""
    if isinstance(error, BadRowError):
        return RefusedRow(row, error.what, error.facts.get("column"))
    text = _AT_ROW.sub("", message(error))
    found = _COLUMN.search(text)
    column = found.group(1) if found else None
    if column and number(error) == _JSON:
        column = column.rpartition(".")[2]  # 'table.column', as no other error has it
    return RefusedRow(row, text, column, number(error))
