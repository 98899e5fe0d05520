"""The server's warnings: none of ours, and one that says that a value was changed is an error."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.sinks.entries import Applied, Refused
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from tests.sinks.mysql.test_harm import apply


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every warning and note that a statement of this process has got."""
    seen: list[Any] = []
    kind = pymysql.connections.Connection
    show = kind.show_warnings

    def show_warnings(self: Any) -> Any:
        found = show(self)
        seen.extend(found)
        return found

    monkeypatch.setattr(kind, "show_warnings", show_warnings)
    return seen


def test_a_value_that_is_changed_with_a_note_only_is_refused(
    database: Database, warnings: list[Any]
) -> None:
    """M4, M11: no strict mode makes an error of it, and nothing of the unit stays."""
    database.query("CREATE TABLE t (x TIME(6))")
    texts = pa.array(["10:00:00", "2024-01-31 01:02:03.5"])
    refused = apply(database, Column("x", "string"), texts)
    assert isinstance(refused, Refused)
    assert refused.error == "BadRowError"
    assert "for column" in refused.what
    assert warnings
    assert database.query("SELECT * FROM t") == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_our_own_statements_warn_of_nothing(
    every_database: Database, warnings: list[Any], mode: str
) -> None:
    """M4: from the ledger's tables to a completed batch, with VALUES() on MariaDB and the row
    alias on MySQL."""
    key: dict[str, Any] = {"mode": mode, "key": ["x"]} if mode == "upsert" else {}
    for batch_id in range(2):
        writer = MySQLWriter(every_database.url(), "t", create_table=not batch_id, **key)
        writer._sink.check([Column("x", "bigint"), Column("y", "string")])
    values = pa.array([1, 2, 2] if mode == "upsert" else [1, 2, 3])
    assert apply(every_database, Column("x", "bigint"), values, **key) == Applied()
    assert warnings == []
