"""MySQL writers with one rule left out each, to show that a test or the checker catches it.

``broken_writer(kind, url, table, **arguments)`` builds one; ``KINDS`` names them. Everything else
is the product's own code, so that a kill hits the same steps.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark import cloudpickle

from spark_eoc.failpoints import hit
from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Call,
    Completed,
    Control,
    Fingerprint,
    LedgerView,
    Outcome,
    Staged,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.ledger import Close
from spark_eoc.sinks.mysql.connection import transaction
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.staging import Staging
from spark_eoc.sinks.mysql.staging_sql import Known
from spark_eoc.sinks.mysql.whole_aside import AsideStaging
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import CloseDecision, PublishDecision

# Workers can't import tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class LedgerInItsOwnTransaction(MySQLSink):
    """Rows are committed first, the unit entry after them: a crash in between doubles rows."""

    def _attempt(self, unit: Unit, rows: Rows) -> Outcome:
        with transaction(self.address) as connection:
            if self._sql.unit(connection, unit.writer_id, unit.partition) == _entry(unit):
                return AlreadyApplied()
            self._write(connection, rows)
            connection.query("COMMIT")
        hit("mysql.after_rows")
        with transaction(self.address) as connection:
            outcome = self._enter(connection, unit)
            hit("mysql.after_unit")
            hit("mysql.before_commit")
            connection.query("COMMIT")
            hit("mysql.after_commit")
        return outcome


class DeadLettersApart(MySQLSink):
    """Dead letters are committed in a transaction of their own, before the unit's."""

    def _put_aside(
        self, connection: Any, unit: Unit, rows: Rows, refused: Sequence[RefusedRow]
    ) -> None:
        with transaction(self.address) as other:
            super()._put_aside(other, unit, rows, refused)
            other.query("COMMIT")


class WholeLettersApart(AsideStaging):
    """The same of a whole batch: before the publishing transaction's COMMIT, in another."""

    def _write_letters(
        self, connection: Any, writer_id: str, one: Known, refused: Sequence[RefusedRow]
    ) -> None:
        with transaction(self.address) as other:
            super()._write_letters(other, writer_id, one, refused)
            other.query("COMMIT")


class _Blind(MySQLSink):
    """Completes a batch without looking at its units; only the token is still compared."""

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        def step(connection: Any) -> None:
            control = self._sql.view(connection, writer_id, batch_id).control
            assert control is not None
            if control.open_batch != batch_id:
                return
            done = Completed(batch_id, None, 0, Fingerprint(), "blind", "batch")
            closed = replace(control, open_batch=None, last_complete=batch_id)
            self._sql.store_close(connection, writer_id, Close(closed, done, 0))

        self._driver(f"completing batch {batch_id}", step)


class KeyWithoutThePartition(_Blind):
    """(batch) alone is the key: the second partition takes the first's entry for its own."""

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        return []

    def _enter(self, connection: Any, unit: Unit, dead_letters: int = 0) -> Outcome:
        return _by_batch_only(self, connection, replace(unit, partition=0))

    def _look(self, unit: Unit) -> Outcome | None:
        return None


class NoFingerprint(_Blind):
    """(batch, partition) is believed to mean the same rows, as Spark once promised."""

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        return []

    def _enter(self, connection: Any, unit: Unit, dead_letters: int = 0) -> Outcome:
        return _by_batch_only(self, connection, unit)


class NoToken(_Blind):
    """No unit asks who owns the writer."""

    def _owner(self, connection: Any, unit: Unit) -> Control | None:
        return _claimed(unit)


class PlainReadAtEnd(_Blind):
    """The control entry is read without a lock, after the rows."""

    def _owner(self, connection: Any, unit: Unit) -> Control | None:
        control = self._sql.control(connection, unit.writer_id, "")
        # Where the two statements meet another session's open: between the check and COMMIT.
        self.pause()
        return control

    def pause(self) -> None:
        """A test's hook; nothing here."""


class PlainReadAtStart(_Blind):
    """The control entry is read without a lock before the rows, and not again."""

    def _attempt(self, unit: Unit, rows: Rows) -> Outcome:
        with transaction(self.address) as connection:
            control = self._sql.control(connection, unit.writer_id, "")
        if control is None or control.token != unit.token:
            return super()._attempt(unit, rows)  # refused as ever
        return _NoCheck.of(self)._attempt(unit, rows)


class _NoCheck(NoToken):
    @classmethod
    def of(cls, sink: MySQLSink) -> _NoCheck:
        copy = cls.__new__(cls)
        copy.__dict__.update(sink.__dict__)
        return copy


class PublishesAllStaged(MySQLSink):
    """Publishes what is in staging for the batch, not what came back."""

    def check_batch(self) -> None:
        super().check_batch()
        assert self._staging is not None
        self._staging = _AllStaged(**self._staging.__dict__)


class _AllStaged(Staging):
    def _counted(
        self, connection: Any, writer_id: str, batch_id: int, staged: Sequence[Staged]
    ) -> list[Known]:
        known = self.sql.known(connection, writer_id).values()
        return [one for one in known if one.batch_id == batch_id]


class PublishesWithoutToken(MySQLSink):
    """Publishes whoever owns the writer by now."""

    def publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        def blind(view: LedgerView) -> Close:
            assert view.control is not None
            control = replace(view.control, open_batch=None, last_complete=batch_id)
            total = Fingerprint.sum([one.fingerprint for one in staged])
            return Close(control, Completed(batch_id, None, 0, total, "blind", "batch"), 0)

        super().publish(writer_id, batch_id, staged, blind)

    def check_batch(self) -> None:
        super().check_batch()
        assert self._staging is not None
        self._staging = _HistoryReplaced(**self._staging.__dict__)


class _HistoryReplaced(Staging):
    def _move(self, connection: Any, one: Known) -> None:
        super()._move(connection, one)
        # The other run's history of this batch would stop what the token should have stopped.
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM spark_eoc_history WHERE batch_id=%s", (one.batch_id,))


class OneTokenARunWriter(MySQLWriter):
    """A straggler of an earlier call of this run has the same token as the call that followed."""

    def _call(self, *arguments: Any) -> Call:
        call = super()._call(*arguments)
        return replace(call, token=hashlib.md5(call.run_id.encode()).hexdigest())


class LastPartitionFails(MySQLSink):
    """No broken rule: the task of partition 3 fails before it begins."""

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        if unit.partition == 3:
            raise RuntimeError("the last partition fails")
        return super().apply(unit, rows)

    def stage(self, unit: Unit, staging_id: str, rows: Rows) -> Outcome:
        if unit.partition == 3:
            raise RuntimeError("the last partition fails")
        return super().stage(unit, staging_id, rows)


_SINKS: dict[str, type[MySQLSink]] = {
    "ledger_in_its_own_transaction": LedgerInItsOwnTransaction,
    "key_without_the_partition": KeyWithoutThePartition,
    "no_fingerprint": NoFingerprint,
    "no_token": NoToken,
    "plain_read_at_start": PlainReadAtStart,
    "plain_read_at_end": PlainReadAtEnd,
    "publishes_all_staged": PublishesAllStaged,
    "publishes_without_token": PublishesWithoutToken,
}
KINDS: Sequence[str] = (*_SINKS, "one_token_a_run")


def broken_writer(kind: str, url: str, table: str, **arguments: Any) -> MySQLWriter:
    """A writer without the rule that ``kind`` names; arguments are those of MySQLWriter."""
    if kind == "one_token_a_run":
        return OneTokenARunWriter(url, table, **arguments)
    writer = MySQLWriter(url, table, **arguments)
    writer._sink.__class__ = _SINKS[kind]
    return writer


def _by_batch_only(sink: MySQLSink, connection: Any, unit: Unit) -> Outcome:
    control = sink._owner(connection, unit)
    if control is None or control.token != unit.token:
        return super(type(sink), sink)._enter(connection, unit)
    entry = sink._sql.unit(connection, unit.writer_id, unit.partition)
    if entry is not None and entry.batch_id == unit.batch_id:
        return AlreadyApplied()
    sink._sql.set_unit(connection, unit.writer_id, _entry(unit), exists=entry is not None)
    return Applied()


def _entry(unit: Unit) -> UnitEntry:
    return UnitEntry(unit.partition, unit.batch_id, unit.fingerprint)


def _claimed(unit: Unit) -> Control:
    return Control("", "", unit.epoch, unit.token, unit.batch_id, unit.batch_id - 1)
