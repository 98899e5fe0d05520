"""A third sink in one file, as an example: rows appended to a table of SQLite, exactly once.

SQLite lets one connection write at a time, and ``BEGIN IMMEDIATE`` takes that right: what is read
after it can't change before COMMIT. So one transaction reads the ledger, lets one of the pure
functions of ``spark_eoc.sinks.ledger`` decide, and stores what was decided, with the rows.

    writer = Writer(SQLiteSink("/data/shop.db", "orders"), WriterOptions())
    frame.writeStream.foreachBatch(writer)
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TypeVar

from spark_eoc.errors import BadRowError, ConfigError, SinkUnavailableError
from spark_eoc.sinks.entries import (
    Applied,
    Completed,
    Control,
    Fingerprint,
    LedgerView,
    Outcome,
    Refused,
    Unit,
    UnitEntry,
    ledger_key,
)
from spark_eoc.sinks.ledger import Close, Compare, Open, decide_after_error, decide_unit
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import CloseDecision, Column, OpenDecision, Sink

T = TypeVar("T")

LEDGER = """
CREATE TABLE IF NOT EXISTS eoc_control (writer BLOB PRIMARY KEY, entry TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS eoc_units (writer BLOB, partition_id INTEGER, batch_id INTEGER NOT NULL,
  fingerprint TEXT NOT NULL, PRIMARY KEY (writer, partition_id));
CREATE TABLE IF NOT EXISTS eoc_history (writer BLOB, batch_id INTEGER, entry TEXT NOT NULL,
  PRIMARY KEY (writer, batch_id));
"""
#: What SQLite keeps as it is; other types would be changed without an error.
TYPES = {"tinyint", "smallint", "int", "bigint", "double", "string", "boolean", "binary"}


@dataclass(frozen=True)
class SQLiteSink(Sink):
    """Appends to ``table`` in the file ``path``, which all tasks must reach: one host.

    ``busy_s`` is how long another writer is waited for.
    """

    path: str
    table: str
    busy_s: float = 60.0

    def check(self, columns: Sequence[Column]) -> str:
        """Creates the ledger; refuses a missing table or column, and types that would change."""
        wrong = [column.name for column in columns if not (column.json or column.type in TYPES)]
        if wrong:
            raise ConfigError(f"SQLite has no type for {wrong[0]!r}", next_step="cast it to STRING")
        with self._connection() as connection:
            connection.executescript(LEDGER)
            found = connection.execute(f"PRAGMA table_info({quoted(self.table)})")
            missing = {column.name for column in columns} - {row[1] for row in found}
        if missing:
            raise ConfigError(
                f"table {self.table!r} has no column {min(missing)!r}", next_step="create it"
            )
        return self.table

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        key = ledger_key(writer_id)

        def step(connection: sqlite3.Connection) -> Open | Compare:
            decision = decide(_view(connection, key, batch_id))
            if isinstance(decision, Open):
                if decision.reset:
                    connection.execute("DELETE FROM eoc_units WHERE writer=?", [key])
                    connection.execute("DELETE FROM eoc_history WHERE writer=?", [key])
                _store_control(connection, key, decision.control)
            return decision

        return self._repeat(step)

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        return self._repeat(lambda connection: _units(connection, ledger_key(writer_id), batch_id))

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        """Rows and unit entry in one transaction. After an error, what counts is the entry: the
        rows may be in, and only the answer lost."""
        try:
            with self._transaction() as connection:
                return self._write(connection, unit, rows)
        except (sqlite3.Error, SinkUnavailableError) as error:
            return self._look(unit) or _refusal(unit, error)

    def _write(self, connection: sqlite3.Connection, unit: Unit, rows: Rows) -> Outcome:
        key = ledger_key(unit.writer_id)
        entry = _unit(connection, key, unit.partition)
        outcome = decide_unit(_control(connection, key), entry, unit)
        if outcome == Applied():  # else nothing is written
            connection.execute(
                "INSERT OR REPLACE INTO eoc_units VALUES (?, ?, ?, ?)",
                [key, unit.partition, unit.batch_id, str(unit.fingerprint)],
            )
            names = ", ".join(map(quoted, rows.table.column_names))
            marks = ", ".join("?" * rows.table.num_columns)
            sql = f"INSERT INTO {quoted(self.table)} ({names}) VALUES ({marks})"
            for batch in rows.table.to_batches(max_chunksize=10_000):
                values = (column.to_pylist() for column in batch.columns)
                connection.executemany(sql, zip(*values, strict=True))
                rows.release()
        return outcome

    def _look(self, unit: Unit) -> Outcome | None:
        key = ledger_key(unit.writer_id)
        try:
            entry = self._repeat(lambda connection: _unit(connection, key, unit.partition))
        except SinkUnavailableError:
            return None
        return decide_after_error(entry, unit)

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        key = ledger_key(writer_id)

        def step(connection: sqlite3.Connection) -> None:
            units = _units(connection, key, batch_id)
            decision = decide(_view(connection, key, batch_id), units)
            if isinstance(decision, Close):
                done = decision.completed
                entry = json.dumps({**asdict(done), "fingerprint": str(done.fingerprint)})
                _store_control(connection, key, decision.control)
                connection.execute(
                    "INSERT INTO eoc_history VALUES (?, ?, ?)", [key, done.batch_id, entry]
                )
                connection.execute(
                    "DELETE FROM eoc_history WHERE writer=? AND batch_id<?",
                    [key, decision.prune_below],
                )

        self._repeat(step)

    def _repeat(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """Again after an error, once: each step sees in the ledger what it has done already."""
        try:
            with self._transaction() as connection:
                return step(connection)
        except SinkUnavailableError:
            with self._transaction() as connection:
                return step(connection)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A new connection; to close it rolls back what is not committed. The file must exist."""
        try:
            uri = f"file:{self.path}?mode=rw"
            connection = sqlite3.connect(uri, self.busy_s, isolation_level=None, uri=True)
            try:
                yield connection
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            raise SinkUnavailableError(
                f"{self.path}: {error}",
                applied="nothing by this step",
                next_step="see who holds the file, then restart the query",
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")


def _view(connection: sqlite3.Connection, key: bytes, batch_id: int) -> LedgerView:
    control = _control(connection, key)
    found = connection.execute(
        "SELECT entry FROM eoc_history WHERE writer=? AND batch_id=?", [key, batch_id]
    ).fetchone()
    opened = None if control is None else control.open_batch
    units = [] if opened is None else _units(connection, key, opened)
    history = {batch_id: _completed(found[0])} if found else {}
    now_us = time.time_ns() // 1000  # of a file, this host's clock is the server's
    return LedgerView(control, history, len(units), now_us)


def _completed(text: str) -> Completed:
    fields = json.loads(text)
    return Completed(**{**fields, "fingerprint": Fingerprint.parse(fields["fingerprint"])})


def _control(connection: sqlite3.Connection, key: bytes) -> Control | None:
    found = connection.execute("SELECT entry FROM eoc_control WHERE writer=?", [key]).fetchone()
    return Control(**json.loads(found[0])) if found else None


def _store_control(connection: sqlite3.Connection, key: bytes, control: Control) -> None:
    entry = json.dumps(asdict(control))
    connection.execute("INSERT OR REPLACE INTO eoc_control VALUES (?, ?)", [key, entry])


def _units(connection: sqlite3.Connection, key: bytes, batch_id: int) -> list[UnitEntry]:
    sql = "SELECT partition_id, batch_id, fingerprint FROM eoc_units WHERE writer=? AND batch_id=?"
    found = connection.execute(sql, [key, batch_id])
    return [UnitEntry(p, b, Fingerprint.parse(f)) for p, b, f in found]


def _unit(connection: sqlite3.Connection, key: bytes, partition: int) -> UnitEntry | None:
    sql = "SELECT batch_id, fingerprint FROM eoc_units WHERE writer=? AND partition_id=?"
    found = connection.execute(sql, [key, partition]).fetchone()
    return UnitEntry(partition, found[0], Fingerprint.parse(found[1])) if found else None


def _refusal(unit: Unit, error: Exception) -> Refused:
    """As a row, since an exception would arrive at the driver as text."""
    kind = SinkUnavailableError if isinstance(error, SinkUnavailableError) else BadRowError
    return Refused(
        kind.__name__,
        f"partition {unit.partition} of batch {unit.batch_id}: {error}",
        "nothing of this partition",
        "mend what the message names, then restart the query",
    )


def quoted(name: str) -> str:
    """An identifier, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'
