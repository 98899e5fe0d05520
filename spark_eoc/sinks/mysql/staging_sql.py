"""What batch atomicity keeps in the database, and every statement on it.

Under the ledger's prefix ``spark_eoc``: ``spark_eoc_staged`` (one row for each staged partition:
whose it is, its epoch, its fingerprint) and, one for each target, ``spark_eoc_rows_<hash>`` with
the rows. Its primary key is (staging id, row number); beside these it has the target's columns with
their types and none of its keys, all of them nullable: what the target refuses, it refuses when
the rows are published. Both are permanent and made by the driver before a batch is opened, since
DDL commits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import Fingerprint, Unit, ledger_key
from spark_eoc.sinks.mysql.ledger_sql import LedgerSql
from spark_eoc.sinks.mysql.statement import CHANGE, ROW_NUMBER, STAGING_ID
from spark_eoc.sinks.mysql.target import TableColumn, TableShape, quoted, read_shape

#: Most rows and bytes that one statement moves or deletes; it must end long before a connection's
#: read times out, and no transaction that deletes may hold many locks.
PIECE_ROWS = 20_000
_PIECE_BYTES = 32 * 1024 * 1024

_STAGED = (
    "staging_id BINARY(16) NOT NULL PRIMARY KEY, writer BINARY(32) NOT NULL, "
    "rows_table VARCHAR(64) NOT NULL, partition_id INT NOT NULL, batch_id BIGINT NOT NULL, "
    "epoch BIGINT NOT NULL, size BIGINT NOT NULL, fingerprint VARCHAR(64) NOT NULL, KEY (writer)"
)


_CHANGE_COLUMN = TableColumn(
    CHANGE, "binary", None, None, True, False, False, length=1, definition="binary(1)"
)


@dataclass(frozen=True)
class Known:
    """What is known of one staged partition; ``size`` is roughly that of its rows, in bytes."""

    staging_id: str
    rows_table: str
    partition: int
    batch_id: int
    epoch: int
    size: int
    fingerprint: Fingerprint

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Its row numbers, as one statement each moves or deletes them."""
        return pieces(self.fingerprint.rows, self.size)


def pieces(rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of ``rows`` rows of together ``size`` bytes, each for one statement."""
    step = min(PIECE_ROWS, rows * _PIECE_BYTES // max(size, 1)) or 1
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


class StagingSql:
    """The statements; each method runs on a connection, all but ``prepare`` in a transaction."""

    def __init__(self, ledger: LedgerSql) -> None:
        self._ledger = ledger
        self._staged = ledger.table("staged")

    def prepare(
        self,
        connection: Any,
        target: TableShape,
        columns: Sequence[TableColumn],
        *,
        changes: bool = False,
    ) -> str:
        """Makes what is missing of both tables; the name of that with the rows. ConfigError.

        It follows the target: a column that the frame or the target has now is added, one whose
        type was changed is changed. What other runs have staged stays.
        """
        self._refuse_names(target, columns)
        if changes:
            columns = [*columns, _CHANGE_COLUMN]
        self._ledger.make(connection, "staged", _STAGED)
        where = f"{target.database}.{target.name}"
        name = f"rows_{hashlib.sha256(where.encode()).hexdigest()[:8]}"
        columns_sql = ", ".join(f"{quoted(c.name)} {c.definition} NULL" for c in columns)
        self._ledger.make(
            connection,
            name,
            f"{STAGING_ID} BINARY(16) NOT NULL, {ROW_NUMBER} INT UNSIGNED NOT NULL, {columns_sql}, "
            f"PRIMARY KEY ({STAGING_ID}, {ROW_NUMBER})",
            comment=f"spark_eoc stages rows for {where} here",
        )
        self._follow(connection, name, columns)
        return name

    def _refuse_names(self, target: TableShape, columns: Sequence[TableColumn]) -> None:
        own = {STAGING_ID.strip("`"), ROW_NUMBER.strip("`"), CHANGE}
        taken = sorted(own & {column.name.lower() for column in columns})
        if taken:
            raise ConfigError(
                f"column {taken[0]!r} of table {target.name!r} has a name that staged rows need",
                next_step='rename it, or use atomicity="partition"',
            )

    def _follow(self, connection: Any, name: str, columns: Sequence[TableColumn]) -> None:
        table = self._ledger.table(name)
        shape = read_shape(connection, *self._ledger.located(connection, name))
        if list(shape.unique.values()) != [(STAGING_ID.strip("`"), ROW_NUMBER.strip("`"))]:
            raise ConfigError(
                f"table {table} is there, but was not made to stage rows",
                next_step="rename it, or give the writer another ledger=",
            )
        there = {name.lower(): column for name, column in shape.columns.items()}
        changes = [
            f"{'MODIFY' if column.name.lower() in there else 'ADD'} COLUMN "
            f"{quoted(column.name)} {column.definition} NULL"
            for column in columns
            if column.name.lower() not in there
            or there[column.name.lower()].definition != column.definition
        ]
        if changes:
            connection.query(f"ALTER TABLE {table} {', '.join(changes)}")

    def rows_table(self, name: str) -> str:
        """Quoted, as statements name it."""
        return self._ledger.table(name)

    def remember(
        self, connection: Any, unit: Unit, staging_id: str, rows_table: str, size: int
    ) -> None:
        """Stores what is known of a partition, beside its rows."""
        _run(
            connection,
            f"INSERT INTO {self._staged} (staging_id, writer, rows_table, partition_id, batch_id, "
            "epoch, size, fingerprint) VALUES (UNHEX(%s), UNHEX(%s), %s, %s, %s, %s, %s, %s)",
            staging_id,
            ledger_key(unit.writer_id).hex(),
            rows_table,
            unit.partition,
            unit.batch_id,
            unit.epoch,
            size,
            str(unit.fingerprint),
        )

    def known(self, connection: Any, writer_id: str) -> dict[str, Known]:
        """All that is staged for a writer, by staging id."""
        found = _rows(
            connection,
            "SELECT LOWER(HEX(staging_id)), rows_table, partition_id, batch_id, epoch, size, "
            f"fingerprint FROM {self._staged} WHERE writer=UNHEX(%s)",
            ledger_key(writer_id).hex(),
        )
        return {i: Known(i, t, p, b, e, s, Fingerprint.parse(f)) for i, t, p, b, e, s, f in found}

    def count(self, connection: Any, one: Known) -> int:
        """How many rows are really there."""
        ((number,),) = _rows(
            connection,
            f"SELECT COUNT(*) FROM {self.rows_table(one.rows_table)} WHERE {STAGING_ID}=UNHEX(%s)",
            one.staging_id,
        )
        return int(number)

    def delete_rows(
        self, connection: Any, rows_table: str, staging_id: str, start: int, stop: int
    ) -> None:
        """Deletes rows ``[start, stop)`` of one staged partition."""
        _run(
            connection,
            f"DELETE FROM {self.rows_table(rows_table)} WHERE {STAGING_ID}=UNHEX(%s) "
            f"AND {ROW_NUMBER} >= %s AND {ROW_NUMBER} < %s",
            staging_id,
            start,
            stop,
        )

    def forget(self, connection: Any, staging_id: str) -> None:
        """Deletes what is known of one staged partition, whose rows are gone."""
        _run(connection, f"DELETE FROM {self._staged} WHERE staging_id=UNHEX(%s)", staging_id)


def _run(connection: Any, sql: str, *arguments: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)


def _rows(connection: Any, sql: str, *arguments: Any) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments or None)
        return tuple(cursor.fetchall())
