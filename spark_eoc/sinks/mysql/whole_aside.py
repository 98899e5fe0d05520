"""Batch atomicity with dead letters: what a batch's tasks and its target refuse is put aside.

A task stages what the staging table takes, and notes the rest. What only the target refuses (a
duplicate, a NULL, a CHECK) is found when the batch is published: a statement that is refused for a
row's content is taken back to its savepoint, halved and sent again, in order. All dead letters are
written in the publishing transaction.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from spark_eoc.errors import DeadLetterLimitError
from spark_eoc.sinks.dead_letters import RefusedRow, whole_over_limit
from spark_eoc.sinks.entries import Staged, Unit
from spark_eoc.sinks.mysql.connection import max_packet
from spark_eoc.sinks.mysql.dead_letter_sql import DeadLetterSql
from spark_eoc.sinks.mysql.given_sql import GivenSql
from spark_eoc.sinks.mysql.insertion import is_content, refused_row
from spark_eoc.sinks.mysql.refusals import Refusals
from spark_eoc.sinks.mysql.staging import STATEMENT_BYTES, Staging, check_moved, unknown
from spark_eoc.sinks.mysql.staging_sql import Known
from spark_eoc.sinks.rows import Rows

_SAVEPOINT, _UNDO = "SAVEPOINT spark_eoc_piece", "ROLLBACK TO SAVEPOINT spark_eoc_piece"


@dataclass(frozen=True, kw_only=True)
class AsideStaging(Staging):
    """Puts up to ``limit`` rows of a batch into the table of ``letters``; above it nothing of the
    batch is written."""

    given: GivenSql
    letters: DeadLetterSql
    limit: int

    def _send(self, connection: Any, unit: Unit, staging_id: str, rows: Rows, whole: Rows) -> None:
        refuse = Refusals(whole, self._key(), unit, self.limit, unknown)
        self._insert(connection, staging_id, rows, refuse)
        self.given.keep(connection, staging_id, whole, refuse.found)

    def _count(self, connection: Any, one: Known) -> int:
        not_staged = len(self.given.refused(connection, one.staging_id))
        return super()._count(connection, one) + not_staged

    def _move_all(
        self, connection: Any, writer_id: str, batch_id: int, staged: Sequence[Staged]
    ) -> list[str]:
        """See :meth:`Staging._move_all`; the letters are the last that is written."""
        chosen = self._counted(connection, writer_id, batch_id, staged)
        aside = _Aside(batch_id, self.limit)
        for one in chosen:
            for refused in self.given.refused(connection, one.staging_id):
                aside.put(one, refused)
        for one in chosen:
            for start, stop in one.pieces():
                self._move_good(connection, one, start, stop, aside)
        for one in chosen:
            self._write_letters(connection, writer_id, one, aside.of(one))
        return [
            f"batch {batch_id}, partition {one.partition}: {len(aside.of(one))} of "
            f"{one.fingerprint.rows} rows were refused and put aside in table {self.letters.name}"
            for one in chosen
            if aside.of(one)
        ]

    def _move_good(self, connection: Any, one: Known, start: int, stop: int, aside: _Aside) -> None:
        """Moves rows ``[start, stop)``, but for those that are or must be put aside."""
        there = aside.left(one, start, stop)
        if not there:
            return
        connection.query(_SAVEPOINT)
        try:
            self._move_piece(connection, one, (start, stop))
        except pymysql.MySQLError as error:
            if not is_content(error):
                raise
            connection.query(_UNDO)
            if stop - start == 1:
                aside.put(one, refused_row(start, error))
                return
            middle = (start + stop) // 2
            self._move_good(connection, one, start, middle, aside)
            self._move_good(connection, one, middle, stop, aside)
            return
        if not self.insert.key:
            check_moved(connection, one, (start, stop), there)

    def _write_letters(
        self, connection: Any, writer_id: str, one: Known, refused: Sequence[RefusedRow]
    ) -> None:
        size = min(STATEMENT_BYTES, max_packet(connection) // 4)
        unit = Unit(writer_id, one.partition, one.batch_id, one.epoch, "", one.fingerprint)
        if refused:
            for rows, some in self.given.with_rows(connection, one.staging_id, refused):
                self.letters.insert(connection, unit, rows, some, size)


@dataclass
class _Aside:
    """The refused rows of one try to publish, by staging id, in order; DeadLetterLimitError where
    they come to be more than ``limit``."""

    batch_id: int
    limit: int
    found: dict[str, list[RefusedRow]] = field(default_factory=dict)
    count: int = 0

    def put(self, one: Known, refused: RefusedRow) -> None:
        insort(self.found.setdefault(one.staging_id, []), refused, key=_row)
        self.count += 1
        if self.count > self.limit:
            refusal = whole_over_limit(self.batch_id, self.count, self.limit)
            raise DeadLetterLimitError(
                refusal.what, applied=refusal.applied, next_step=refusal.next_step
            )

    def of(self, one: Known) -> Sequence[RefusedRow]:
        return self.found.get(one.staging_id, [])

    def left(self, one: Known, start: int, stop: int) -> int:
        """How many of these rows are staged and not refused."""
        refused = self.of(one)
        within = bisect_left(refused, stop, key=_row) - bisect_left(refused, start, key=_row)
        return stop - start - within


def _row(refused: RefusedRow) -> int:
    return refused.row
