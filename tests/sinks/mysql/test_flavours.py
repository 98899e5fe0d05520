"""Both flavours of server take every statement without a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.sinks.entries import Applied
from spark_eoc.sinks.mysql.changes import DELETED
from spark_eoc.sinks.mysql.statement import MERGES
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from tests.sinks.mysql.test_changes import stream


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The statements that ended with a warning or a note, with the server's text."""
    found: list[tuple[Any, Any]] = []
    connection = pymysql.connections.Connection
    real = connection.query

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        answer = real(self, sql, unbuffered)
        if self._result.warning_count:
            found.append((sql, real(self, "SHOW WARNINGS") and self._result.rows))
        return answer

    monkeypatch.setattr(connection, "query", query)
    return found


@pytest.mark.parametrize("server", ["mariadb", "mysql"])
@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_no_statement_of_a_batch_warns(
    database_on: Callable[[str], Database],
    warned: list[tuple[Any, Any]],
    server: str,
    atomicity: str,
) -> None:
    """M4: VALUES() warns on MySQL, the row alias is a syntax error on MariaDB; every merge, a
    delete, an insert and an update, with the table and its ledger made on the way."""
    database = database_on(server)
    names = ["id", *MERGES]
    how: dict[str, Any] = {"merge": {rule: rule for rule in MERGES}, "atomicity": atomicity}
    columns = [Column(name, "bigint") for name in names]
    writes = stream(database, columns, delete_when="true", create_table=True, **how)

    def rows(*values: int, gone: bool = False) -> Rows:
        ids = pa.array(range(len(values)), pa.int64())
        table = pa.table([ids, *[pa.array(values, pa.int64())] * len(MERGES)], names=names)
        marks = pa.table({DELETED: [gone and value < 0 for value in values]})
        return Rows(table, pa.chunked_array([ids]), marks=marks)

    for unit in (rows(3, 3), rows(5, 1, 1), rows(5, -1, gone=True)):
        assert writes.apply(unit) == Applied()
    found = dict(zip(names, database.query("SELECT * FROM t ORDER BY id")[0], strict=True))
    assert found == {"id": 0, "replace": 5, "add": 13, "min": 3, "max": 5, "keep": 3, "coalesce": 5}
    assert warned == []
