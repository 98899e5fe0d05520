"""The table of dead letters and the statements on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pymysql

from spark_eoc.errors import ConfigError, SinkError
from spark_eoc.sinks.dead_letters import RefusedRow, row_json, source_offset
from spark_eoc.sinks.entries import Unit
from spark_eoc.sinks.mysql.connection import TRANSIENT, message, number
from spark_eoc.sinks.rows import Rows

_COLUMNS = "writer_id, batch_id, partition_id, source_offset, column_name, error, reason, row_json"
_TABLE = (
    "id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, writer_id VARCHAR(512) NOT NULL, "
    "batch_id BIGINT NOT NULL, partition_id INT NOT NULL, source_offset BIGINT NULL, "
    "column_name VARCHAR(255) NULL, error INT NULL, reason TEXT NOT NULL, "
    "row_json LONGTEXT NOT NULL, "
    "refused_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
)
_REASON_CHARACTERS = 2000
_COLUMN_CHARACTERS = 255


class DeadLetterSql:
    """The statements, for the table ``name`` (``table`` or ``database.table``)."""

    def __init__(self, name: str) -> None:
        database, _, table = name.rpartition(".")
        if not table or set("`%") & set(name) or len(table) > 64:
            raise ConfigError(
                f"dead_letter_table={name!r} can't be the name of a table",
                next_step="use up to 64 characters without back-tick and %, or leave it out",
            )
        self.name = name
        self._database, self._table = database or None, table
        self._quoted = (f"`{database}`." if database else "") + f"`{table}`"
        self._insert = f"INSERT INTO {self._quoted} ({_COLUMNS})"

    def within(self, database: str) -> str:
        """The table's name on a connection to ``database``, however it was given."""
        return self._table if self._database == database else self.name

    def create(self, connection: Any, target: tuple[str, str]) -> None:
        """Creates the table if it is missing; never inside a transaction, since DDL commits.

        ConfigError if it is the ``target`` itself, on an engine without transactions, or can't be
        written.
        """
        if self._found(connection) is None:
            connection.query(
                f"CREATE TABLE IF NOT EXISTS {self._quoted} ({_TABLE}) "
                "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
            )
        database, table, engine = self._found(connection) or ("", "", "")
        if (database, table) == target:
            raise self._unfit("it is the table that rows are written to", "name another table")
        if engine != "InnoDB":
            raise self._unfit(
                "it is not InnoDB, so rows and dead letters can't be committed together",
                f"ALTER TABLE {self._quoted} ENGINE=InnoDB",
            )
        self._probe(connection)

    def _probe(self, connection: Any) -> None:
        """Asks for each column, and for the right to insert, without a row."""
        try:
            connection.query(
                f"{self._insert} SELECT '', 0, 0, NULL, NULL, NULL, '', '' FROM DUAL WHERE FALSE"
            )
        except pymysql.MySQLError as error:
            if number(error) in TRANSIENT:
                raise
            raise self._unfit(
                f"error {number(error)}, {message(error)}",
                "grant INSERT on it, or name a table that is not there yet",
            ) from error

    def _unfit(self, problem: str, next_step: str) -> ConfigError:
        return ConfigError(
            f"table {self._quoted} can't take the dead letters: {problem}", next_step=next_step
        )

    def _found(self, connection: Any) -> tuple[str, str, str] | None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_schema, table_name, engine FROM information_schema.tables "
                "WHERE table_schema=COALESCE(%s, DATABASE()) AND table_name=%s",
                (self._database, self._table),
            )
            found = cursor.fetchone()
        return None if found is None else (str(found[0]), str(found[1]), str(found[2]))

    def insert(
        self, connection: Any, unit: Unit, rows: Rows, refused: Sequence[RefusedRow], size: int
    ) -> None:
        """Writes the letters in statements of about ``size`` bytes, one letter at least.

        An error that can't pass is a SinkError: the letter is not the row.
        """
        try:
            with connection.cursor() as cursor:
                values = (
                    cursor.mogrify("(%s, %s, %s, %s, %s, %s, %s, %s)", _fields(unit, rows, one))
                    for one in sorted(refused, key=lambda one: one.row)
                )
                for some in grouped(values, size):
                    connection.query(f"{self._insert} VALUES {some}")
        except pymysql.MySQLError as error:
            if number(error) in TRANSIENT:
                raise
            raise SinkError(
                f"table {self._quoted} refused a dead letter: error {number(error)}, "
                f"{message(error)}",
                applied="nothing of this partition",
                next_step="mend that table, then restart the query",
            ) from error


def _fields(unit: Unit, rows: Rows, refused: RefusedRow) -> tuple[Any, ...]:
    return (
        unit.writer_id,
        unit.batch_id,
        unit.partition,
        source_offset(rows.table, refused.row),
        *clipped(refused),
        row_json(rows.table, refused.row),
    )


def clipped(refused: RefusedRow) -> tuple[str | None, int | None, str]:
    """Column, error and reason, as long as tables keep them."""
    column = None if refused.column is None else refused.column[:_COLUMN_CHARACTERS]
    return column, refused.error, refused.reason[:_REASON_CHARACTERS]


def grouped(texts: Iterable[str], size: int) -> Iterator[str]:
    """The texts with commas between, as many as go into ``size`` characters, one at least."""
    group: list[str] = []
    length = 0
    for text in texts:
        if group and length + len(text) > size:
            yield ",".join(group)
            group, length = [], 0
        group.append(text)
        length += len(text)
    if group:
        yield ",".join(group)
