"""Batch atomicity on MySQL and MariaDB: tasks stage, one transaction of the driver publishes.

A publish may take minutes, so its time is not limited; but each of its statements moves a bounded
piece, and between two of them the server waits for the client no longer than in any transaction
(``TIME_LIMIT_S``). So a driver that is stopped in the middle holds its successor up for the limit,
and the server's rollback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from spark_eoc.errors import BadRowError, ReplayMismatchError
from spark_eoc.failpoints import hit
from spark_eoc.sinks.entries import Applied, Control, Outcome, Staged, Unit
from spark_eoc.sinks.ledger import check_staged, decide_unit, is_left_over
from spark_eoc.sinks.mysql.address import Address
from spark_eoc.sinks.mysql.connection import (
    CONTENT,
    Budget,
    max_packet,
    message,
    number,
    repeat,
    transaction,
)
from spark_eoc.sinks.mysql.given_sql import GivenSql
from spark_eoc.sinks.mysql.insertion import Insertion, Refuse
from spark_eoc.sinks.mysql.ledger_sql import LedgerSql
from spark_eoc.sinks.mysql.refusals import Refusals
from spark_eoc.sinks.mysql.render import Around, Fit
from spark_eoc.sinks.mysql.staging_sql import Known, StagingSql, pieces
from spark_eoc.sinks.mysql.statement import CHANGE, Insert, staging_head
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import PublishDecision

LOGGER = logging.getLogger("spark_eoc.sinks")
#: As for a unit's statements.
STATEMENT_BYTES = 128 * 1024
#: Left-overs can wait for the next batch; the batch must not wait for them.
_CLEAR_BUDGET_S = 10.0


@dataclass(frozen=True)
class Staging:
    """Where the rows for one target are staged; ``insert`` is how they get into it.

    With ``changes`` a column of labels follows those of ``insert``, and says what becomes of a row.
    ``given`` is there where some writer of this ledger keeps what the frame gave, for dead letters.
    """

    address: Address
    ledger: LedgerSql
    sql: StagingSql
    rows_table: str
    insert: Insert
    fits: Mapping[str, Fit]
    changes: bool = False
    given: GivenSql | None = None

    def stage(
        self, unit: Unit, staging_id: str, rows: Rows, whole: Rows, *, again: bool
    ) -> Outcome:
        """One try: rows, control entry under a shared lock, what is known of them, COMMIT.

        ``rows`` are ``whole``, which the frame gave, with the columns that are written. ``again``
        deletes first what a try before it may have left; that waits for a transaction of it that
        is still alive.
        """
        with transaction(self.address) as connection:
            if again:
                for piece in pieces(len(rows), rows.table.nbytes):
                    self._delete(connection, self.rows_table, staging_id, piece)
                self.sql.forget(connection, staging_id)
            self._send(connection, unit, staging_id, rows, whole)
            outcome = decide_unit(self._owner(connection, unit), None, unit)
            if isinstance(outcome, Applied):
                size = rows.table.nbytes
                self.sql.remember(connection, unit, staging_id, self.rows_table, size)
                connection.query("COMMIT")
                hit("mysql.after_stage")
            return outcome

    def _owner(self, connection: Any, unit: Unit) -> Control | None:
        return self.ledger.control(connection, unit.writer_id, "LOCK IN SHARE MODE")

    def _send(self, connection: Any, unit: Unit, staging_id: str, rows: Rows, whole: Rows) -> None:
        refuse = Refusals(whole, self._key(), unit, None, unknown, offer=not self.changes)
        self._insert(connection, staging_id, rows, refuse)

    def _key(self) -> list[str]:
        return [name for name, fit in self.fits.items() if fit.key]

    def _insert(self, connection: Any, staging_id: str, rows: Rows, refuse: Refuse) -> None:
        # The same rendering as for the target, so that every type gets there in the same way.
        table = rows.table.append_column("", _numbers(len(rows)))
        around = Around(
            staging_head(
                self.sql.rows_table(self.rows_table),
                [*self.insert.columns, *([CHANGE] if self.changes else [])],
            ),
            b"",
            STATEMENT_BYTES,
            max_packet(connection),
            lead=f"0x{staging_id},",
        )
        Insertion(connection, around, self.fits, refuse).send(replace(rows, table=table))

    def publish(
        self,
        writer_id: str,
        batch_id: int,
        staged: Sequence[Staged],
        decide: PublishDecision,
        budget_s: float,
    ) -> None:
        """See :meth:`Sink.publish`; errors that may pass are tried again for ``budget_s``.

        Each try asks ``decide`` under the lock before it moves a row, so that after a lost answer
        to COMMIT it never meets its own rows.
        """
        budget: Budget | None = None
        while True:
            try:
                return self._publish(writer_id, batch_id, staged, decide)
            except (pymysql.MySQLError, OSError) as error:
                budget = budget or Budget(budget_s, self.address)
                budget.spend(error, f"publishing batch {batch_id}")

    def _publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        with transaction(self.address) as connection:
            decision = decide(self.ledger.view(connection, writer_id, batch_id))
            if decision is None:
                return
            told = self._move_all(connection, writer_id, batch_id, staged)
            hit("mysql.publish_after_rows")
            self.ledger.store_close(connection, writer_id, decision)
            hit("mysql.publish_before_commit")
            connection.query("COMMIT")
            hit("mysql.publish_after_commit")
        for line in told:
            LOGGER.warning("%s", line)

    def _move_all(
        self, connection: Any, writer_id: str, batch_id: int, staged: Sequence[Staged]
    ) -> list[str]:
        """Moves what was staged; returns what is to be said of it once it is committed."""
        for one in self._counted(connection, writer_id, batch_id, staged):
            self._move(connection, one)
        return []

    def _counted(
        self, connection: Any, writer_id: str, batch_id: int, staged: Sequence[Staged]
    ) -> list[Known]:
        """What is to be moved, in the order of partitions; all of it is there, and counted."""
        known = self.sql.known(connection, writer_id)
        chosen = [known[one.staging_id] for one in staged if one.staging_id in known]
        found = {
            one.staging_id: replace(one.fingerprint, rows=self._count(connection, one))
            for one in chosen
            if one.batch_id == batch_id
        }
        check_staged(batch_id, staged, found)
        return sorted(chosen, key=lambda one: one.partition)

    def _count(self, connection: Any, one: Known) -> int:
        return self.sql.count(connection, one)

    def _move(self, connection: Any, one: Known) -> None:
        for start, stop in one.pieces():
            try:
                self._move_piece(connection, one, (start, stop))
            except pymysql.MySQLError as error:
                if number(error) in CONTENT:
                    raise _bad_row(error, one, start, stop, upsert=bool(self.insert.key)) from error
                raise
            if not self.insert.key:
                check_moved(connection, one, (start, stop), stop - start)

    def _move_piece(self, connection: Any, one: Known, piece: tuple[int, int]) -> None:
        table = self.sql.rows_table(one.rows_table)
        if self.changes:  # rows of a key that are written come after the one that deletes it
            connection.query(self.insert.delete_staged(table, one.staging_id, piece))
        sql = self.insert.from_staging(table, one.staging_id, piece, changes=self.changes)
        connection.query(sql)

    def clear(self, writer_id: str) -> None:
        """See :meth:`Sink.clear_staged`; piece by piece, each in a transaction of its own."""
        repeat(
            self.address,
            _CLEAR_BUDGET_S,
            f"deleting what writer_id {writer_id!r} has staged",
            lambda connection: self._clear(connection, writer_id),
        )

    def _clear(self, connection: Any, writer_id: str) -> None:
        control = self.ledger.control(connection, writer_id, "")
        for one in self.sql.known(connection, writer_id).values():
            if not is_left_over(control, one.epoch, one.batch_id):
                continue
            for start, stop in one.pieces():
                self._delete(connection, one.rows_table, one.staging_id, (start, stop))
                connection.query("COMMIT")
                connection.query("BEGIN")
            self.sql.forget(connection, one.staging_id)

    def _delete(
        self, connection: Any, rows_table: str, staging_id: str, piece: tuple[int, int]
    ) -> None:
        self.sql.delete_rows(connection, rows_table, staging_id, *piece)
        if self.given is not None:
            self.given.delete(connection, staging_id, *piece)


def check_moved(connection: Any, one: Known, piece: tuple[int, int], expected: int) -> None:
    """ReplayMismatchError unless the statement before, which moved the piece, found all rows."""
    found = connection.affected_rows()
    if found != expected:
        raise ReplayMismatchError(
            f"of rows {piece[0]} to {piece[1]} of partition {one.partition}, batch "
            f"{one.batch_id}, {found} could be published",
            applied="nothing of this batch",
            next_step="look for what deletes staged rows, then restart the query",
        )


def unknown(_: Unit) -> None:
    """What is staged has no entry to be looked at."""


def _numbers(count: int) -> pa.Array:
    one = pa.scalar(1, pa.int32())
    return pc.cumulative_sum(pa.repeat(one, count), start=pa.scalar(-1, pa.int32()))


def _bad_row(error: Exception, one: Known, start: int, stop: int, *, upsert: bool) -> BadRowError:
    return BadRowError(
        f"the server refused a row of batch {one.batch_id} when it was published: error "
        f"{number(error)}, {message(error)} (partition {one.partition}, among its rows from "
        f"{start} up to {stop}, of which the server's row 1 is the first)",
        applied="nothing of this batch",
        next_step="mend the row or the table, then restart the query"
        + ("" if upsert else "; rows with the key of an earlier one need mode='upsert'"),
    )
