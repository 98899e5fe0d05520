"""The ledger's tables and every statement on them.

Under the prefix ``spark_eoc``: ``spark_eoc_control`` (one row a writer), ``spark_eoc_units`` (one
row a writer and partition), ``spark_eoc_history`` (the newest complete batches). Keys are 32 hashed
bytes, so that no collation takes two writers for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import (
    Completed,
    Control,
    Fingerprint,
    LedgerView,
    Unit,
    UnitEntry,
    ledger_key,
)
from spark_eoc.sinks.ledger import Close, Open

_TAIL = ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
_TABLES = {
    "control": "writer BINARY(32) NOT NULL PRIMARY KEY, writer_id VARCHAR(512) NOT NULL, "
    "query_id VARCHAR(128) NOT NULL, run_id VARCHAR(128) NOT NULL, epoch BIGINT NOT NULL, "
    "token CHAR(32) NOT NULL, open_batch BIGINT NULL, last_complete BIGINT NOT NULL, "
    "split TEXT NOT NULL, opened_us BIGINT NOT NULL",
    "units": "writer BINARY(32) NOT NULL, partition_id INT NOT NULL, batch_id BIGINT NOT NULL, "
    "fingerprint VARCHAR(64) NOT NULL, dead_letters INT NOT NULL DEFAULT 0, "
    "PRIMARY KEY (writer, partition_id)",
    "history": "writer BINARY(32) NOT NULL, batch_id BIGINT NOT NULL, "
    "offsets_digest CHAR(64) NULL, partitions INT NOT NULL, fingerprint VARCHAR(64) NOT NULL, "
    "run_id VARCHAR(128) NOT NULL, atomicity VARCHAR(16) NOT NULL, "
    "completed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (writer, batch_id)",
}
_UNIT = "partition_id, batch_id, fingerprint, dead_letters"
_CONTROL = "query_id, run_id, epoch, token, open_batch, last_complete, split, opened_us"


class LedgerSql:
    """The statements, for one table prefix; each method runs on a connection in a transaction."""

    def __init__(self, prefix: str) -> None:
        if not prefix or set("`%") & set(prefix) or len(prefix) > 50:
            raise ConfigError(
                f"ledger={prefix!r} can't be the beginning of table names",
                next_step="use up to 50 characters without back-tick and %, or leave it out",
            )
        database, dot, self._prefix = prefix.rpartition(".")
        self._database = database or None
        self._quoted_database = f"`{database}`." if dot else ""
        self._names = {kind: self.table(kind) for kind in _TABLES}

    def create(self, connection: Any) -> None:
        """Creates missing tables; never inside a transaction, since DDL commits. ConfigError if
        one exists on an engine without transactions."""
        for kind, columns in _TABLES.items():
            self.make(connection, kind, columns)
        self._add_dead_letters(connection)

    def make(self, connection: Any, kind: str, columns: str, comment: str = "") -> None:
        """Creates one table under the prefix where it is missing; rules as for ``create``."""
        table, more = self.table(kind), f" COMMENT={_literal(comment)}" if comment else ""
        if self._engine(connection, kind) is None:
            connection.query(f"CREATE TABLE IF NOT EXISTS {table} ({columns}{_TAIL}{more}")
        if self._engine(connection, kind) != "InnoDB":
            raise ConfigError(
                f"the ledger's table {table} is not InnoDB, so rows and ledger entry can't "
                "be committed together",
                next_step=f"ALTER TABLE {table} ENGINE=InnoDB",
            )

    def has(self, connection: Any, kind: str) -> bool:
        """Whether the table ``kind`` is there."""
        return self._engine(connection, kind) is not None

    def table(self, kind: str) -> str:
        """The quoted name of the table ``kind`` under the prefix."""
        return self._quoted_database + f"`{self._prefix}_{kind}`"

    def located(self, connection: Any, kind: str) -> tuple[str, str]:
        """Database and name of that table, unquoted."""
        ((database,),) = _rows(connection, "SELECT COALESCE(%s, DATABASE())", self._database)
        return str(database), f"{self._prefix}_{kind}"

    def _add_dead_letters(self, connection: Any) -> None:
        # Tables of before there were dead letters.
        found = _rows(
            connection,
            "SELECT 1 FROM information_schema.columns WHERE table_schema=COALESCE(%s, DATABASE()) "
            "AND table_name=%s AND column_name='dead_letters'",
            self._database,
            f"{self._prefix}_units",
        )
        if not found:
            connection.query(
                f"ALTER TABLE {self.table('units')} ADD COLUMN dead_letters INT NOT NULL DEFAULT 0"
            )

    def _engine(self, connection: Any, kind: str) -> str | None:
        found = _rows(
            connection,
            "SELECT engine FROM information_schema.tables "
            "WHERE table_schema=COALESCE(%s, DATABASE()) AND table_name=%s",
            self._database,
            f"{self._prefix}_{kind}",
        )
        return str(found[0][0]) if found else None

    def control(self, connection: Any, writer_id: str, lock: str) -> Control | None:
        """The control entry, read under ``lock`` (``FOR UPDATE``, ``LOCK IN SHARE MODE``)."""
        found = _rows(
            connection,
            f"SELECT {_CONTROL} FROM {self._names['control']} WHERE writer=UNHEX(%s) {lock}",
            _key(writer_id),
        )
        return Control(*found[0]) if found else None

    def view(self, connection: Any, writer_id: str, batch_id: int) -> LedgerView:
        """The ledger as it stands once the control entry is locked for a change."""
        control = self.control(connection, writer_id, "FOR UPDATE")
        found = _rows(
            connection,
            "SELECT batch_id, offsets_digest, partitions, fingerprint, run_id, atomicity "
            f"FROM {self._names['history']} WHERE writer=UNHEX(%s) AND batch_id=%s",
            _key(writer_id),
            batch_id,
        )
        history = {b: Completed(b, d, p, Fingerprint.parse(f), r, a) for b, d, p, f, r, a in found}
        opened = None if control is None else control.open_batch
        units = [] if opened is None else self.units(connection, writer_id, opened)
        # Last, because the caller sets it against a clock of its own.
        ((now_us,),) = _rows(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)")
        return LedgerView(control, history, len(units), now_us)

    def units(self, connection: Any, writer_id: str, batch_id: int) -> list[UnitEntry]:
        """The units of one batch, read plainly."""
        found = _rows(
            connection,
            f"SELECT {_UNIT} FROM {self.table('units')} "
            "WHERE writer=UNHEX(%s) AND batch_id=%s ORDER BY partition_id",
            _key(writer_id),
            batch_id,
        )
        return _units(found)

    def unit(self, connection: Any, writer_id: str, partition: int) -> UnitEntry | None:
        """One partition's entry, locked."""
        found = _rows(
            connection,
            f"SELECT {_UNIT} FROM {self.table('units')} "
            "WHERE writer=UNHEX(%s) AND partition_id=%s FOR UPDATE",
            _key(writer_id),
            partition,
        )
        return _units(found)[0] if found else None

    def dead_letters(self, connection: Any, unit: Unit) -> int:
        """Dead letters of the batch's other units, as committed by now; read plainly."""
        ((found,),) = _rows(
            connection,
            f"SELECT COALESCE(SUM(dead_letters), 0) FROM {self.table('units')} "
            "WHERE writer=UNHEX(%s) AND batch_id=%s AND partition_id<>%s",
            _key(unit.writer_id),
            unit.batch_id,
            unit.partition,
        )
        return int(found)

    def set_unit(self, connection: Any, writer_id: str, entry: UnitEntry, *, exists: bool) -> None:
        """Stores a partition's entry, whose lock is held if it ``exists``.

        A plain INSERT where it did not: a second copy of the task then meets error 1062, instead
        of writing over the first.
        """
        fields = (
            entry.batch_id,
            str(entry.fingerprint),
            entry.dead_letters,
            _key(writer_id),
            entry.partition,
        )
        units = self.table("units")
        _run(
            connection,
            f"UPDATE {units} SET batch_id=%s, fingerprint=%s, dead_letters=%s "
            "WHERE writer=UNHEX(%s) AND partition_id=%s"
            if exists
            else f"INSERT INTO {units} (batch_id, fingerprint, dead_letters, writer, partition_id) "
            "VALUES (%s, %s, %s, UNHEX(%s), %s)",
            *fields,
        )

    def store_open(self, connection: Any, writer_id: str, decision: Open, *, exists: bool) -> None:
        """Stores the control entry of an opened batch."""
        key = _key(writer_id)
        if decision.reset:
            for kind in ("units", "history"):
                _run(connection, f"DELETE FROM {self._names[kind]} WHERE writer=UNHEX(%s)", key)
        if exists:
            self._update_control(connection, key, decision.control)
            return
        _run(
            connection,
            f"INSERT INTO {self._names['control']} (writer, writer_id, {_CONTROL}) "
            "VALUES (UNHEX(%s), %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            key,
            writer_id,
            *_fields(decision.control),
        )

    def store_close(self, connection: Any, writer_id: str, decision: Close) -> None:
        """Stores control and history entry of a complete batch, and forgets the oldest."""
        key, done, history = _key(writer_id), decision.completed, self._names["history"]
        self._update_control(connection, key, decision.control)
        _run(
            connection,
            f"INSERT INTO {history} (writer, batch_id, offsets_digest, partitions, fingerprint, "
            "run_id, atomicity) VALUES (UNHEX(%s), %s, %s, %s, %s, %s, %s)",
            key,
            done.batch_id,
            done.offsets_digest,
            done.partitions,
            str(done.fingerprint),
            done.run_id,
            done.atomicity,
        )
        if decision.prune_below > 0:
            _run(
                connection,
                f"DELETE FROM {history} WHERE writer=UNHEX(%s) AND batch_id < %s",
                key,
                decision.prune_below,
            )

    def _update_control(self, connection: Any, key: str, control: Control) -> None:
        _run(
            connection,
            f"UPDATE {self._names['control']} SET query_id=%s, run_id=%s, epoch=%s, token=%s, "
            "open_batch=%s, last_complete=%s, split=%s, opened_us=%s WHERE writer=UNHEX(%s)",
            *_fields(control),
            key,
        )


def _units(found: Sequence[tuple[Any, ...]]) -> list[UnitEntry]:
    return [UnitEntry(p, b, Fingerprint.parse(f), dead_letters=d) for p, b, f, d in found]


def _fields(control: Control) -> tuple[Any, ...]:
    return (
        control.query_id,
        control.run_id,
        control.epoch,
        control.token,
        control.open_batch,
        control.last_complete,
        control.split,
        control.opened_us,
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _key(writer_id: str) -> str:
    return ledger_key(writer_id).hex()


def _run(connection: Any, sql: str, *arguments: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)


def _rows(connection: Any, sql: str, *arguments: Any) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return tuple(cursor.fetchall())
