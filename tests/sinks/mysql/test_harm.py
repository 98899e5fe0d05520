"""What MySQL and MariaDB would round, cut or merge without an error, also in strict mode."""

from __future__ import annotations

import logging
import secrets
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import Applied, Call, Outcome, Refused, Unit
from spark_eoc.sinks.ledger import Open, decide_open
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database


def apply(database: Database, column: Column, values: pa.Array, **arguments: Any) -> Outcome:
    """Writes one column into table t as one unit."""
    sink = MySQLWriter(database.url(), "t", retry_minutes=0.1, **arguments)._sink
    sink.check([column])
    call = Call("w", "q", "r", 0, secrets.token_hex(16), first=True)
    decision = sink.open_batch("w", 0, lambda view: decide_open(view, call))
    assert isinstance(decision, Open)
    hashes = pa.chunked_array([pa.array(range(len(values)), pa.int64())])
    rows = Rows(pa.table({column.name: values}), hashes)
    unit = Unit("w", 0, 0, decision.control.epoch, call.token, rows.fingerprint())
    return sink.apply(unit, sink.arrange(rows))


TEXTS = [
    ("INT", "1.5", "12"),
    ("BIGINT", "1e-1", "-9223372036854775808"),
    ("DECIMAL(10,2)", "1.239", "1.2300"),
    ("DATETIME", "2013-01-01 00:00:00.7", "2013-01-01 00:00:00.000"),
    ("DATETIME(6)", "2013-01-01 00:00:00.0000001", "2013-01-01 00:00:00.000001"),
    ("DATE", "2013-01-01 10:00:00", "2013-01-01 00:00:00"),
    ("TIME(3)", "10:00:00.1234", "10:00:00.123"),
    ("TIME", "", "-838:59:59"),
    ("TIME", "1e2", "1 10:00:00"),
    ("YEAR", "1.5", "2013"),
]


@pytest.mark.parametrize(("kind", "harmed", "kept"), TEXTS)
def test_text_that_a_column_would_round_is_refused(
    database: Database, kind: str, harmed: str, kept: str
) -> None:
    """M11: the server rounds such text with a note only; text that it keeps is written."""
    database.query(f"CREATE TABLE t (x {kind})")
    refused = apply(database, Column("x", "string"), pa.array([kept, None, harmed]))
    assert isinstance(refused, Refused)
    assert (refused.error, "column 'x' holds text" in refused.what) == ("BadRowError", True)
    assert database.query("SELECT * FROM t") == []
    assert apply(database, Column("x", "string"), pa.array([kept, None])) == Applied()


@pytest.mark.parametrize(("kind", "limit"), [("DOUBLE", 2**53), ("FLOAT", 2**24)])
def test_whole_numbers_that_a_float_column_would_round_are_refused(
    database: Database, kind: str, limit: int
) -> None:
    """M11: up to the limit each is kept."""
    database.query(f"CREATE TABLE t (x {kind})")
    for sign in (1, -1):
        values = pa.array([sign * (limit + 1), None], pa.int64())
        refused = apply(database, Column("x", "bigint"), values)
        assert isinstance(refused, Refused)
        assert "whole numbers beyond" in refused.what
    assert apply(database, Column("x", "bigint"), pa.array([limit, -limit])) == Applied()


@pytest.mark.parametrize(("kind", "of"), [("FLOAT", "double"), ("DOUBLE", "decimal(38,18)")])
def test_columns_that_would_round_any_number_are_refused(
    database: Database, kind: str, of: str
) -> None:
    """M11: before the first row, with the type that would keep them."""
    database.query(f"CREATE TABLE t (x {kind})")
    with pytest.raises(ConfigError, match="would round it silently"):
        apply(database, Column("x", of), pa.array([Decimal("0.1")]))


def test_an_upsert_does_not_append_rows_whose_key_is_null(database: Database) -> None:
    """M6: no unique index finds a NULL again, so each batch would append one more row."""
    database.query("CREATE TABLE t (x VARCHAR(9) COLLATE utf8mb4_bin UNIQUE)")
    refused = apply(
        database, Column("x", "string"), pa.array(["a", None]), mode="upsert", key=["x"]
    )
    assert isinstance(refused, Refused)
    assert "holds NULL" in refused.what
    assert database.query("SELECT * FROM t") == []


def test_an_upsert_by_a_prefix_of_the_key_is_refused(database: Database) -> None:
    """M6: two keys with the same beginning would be one row."""
    database.query("CREATE TABLE t (x TEXT, PRIMARY KEY (x(3)))")
    with pytest.raises(ConfigError, match="no primary key or unique index on exactly"):
        apply(database, Column("x", "string"), pa.array(["abcd"]), mode="upsert", key=["x"])


@pytest.mark.parametrize(("collation", "warned"), [("general_ci", True), ("bin", False)])
def test_a_key_that_compares_loosely_is_warned_about(
    database: Database, caplog: pytest.LogCaptureFixture, collation: str, warned: bool
) -> None:
    """M6: 'a' and 'A' are one row there, and two keys for Spark."""
    database.query(f"CREATE TABLE t (x VARCHAR(9) COLLATE utf8mb4_{collation} PRIMARY KEY)")
    with caplog.at_level(logging.WARNING, "spark_eoc.sinks"):
        apply(database, Column("x", "string"), pa.array(["a"]), mode="upsert", key=["x"])
    assert ("compares by utf8mb4" in caplog.text) == warned


def test_a_null_for_which_the_server_takes_the_current_time_is_refused(database: Database) -> None:
    """M11: MariaDB does so for TIMESTAMP NOT NULL, in strict mode too."""
    database.query("CREATE TABLE t (x TIMESTAMP NOT NULL)")
    refused = apply(database, Column("x", "timestamp"), pa.array([None], pa.timestamp("us")))
    assert isinstance(refused, Refused)
    assert "takes the current time" in refused.what
    assert database.query("SELECT * FROM t") == []


@pytest.mark.parametrize("harmed", ["abc ", "äöü  ", "abcd"])
def test_text_longer_than_its_column_is_refused_also_if_it_ends_in_blanks(
    database: Database, harmed: str
) -> None:
    """M11: blanks beyond the column's length are cut with a note only."""
    database.query("CREATE TABLE t (x VARCHAR(3)) CHARACTER SET utf8mb4")
    refused = apply(database, Column("x", "string"), pa.array(["ab ", None, harmed]))
    assert isinstance(refused, Refused)
    assert "too long for the 3 characters" in refused.what
    assert apply(database, Column("x", "string"), pa.array(["äö ", "😀😀😀", None])) == Applied()


@pytest.mark.parametrize(
    ("harmed", "kept"),
    [
        ('{"a":0.123456789012345678}', '{"a":0.5,"b":"1.23456789012345678901"}'),
        ("[1,-12345678901.234567]", "[1,-12345678901.25]"),
        ('{"a":123456789012345678901234}', '{"a":12345678901234567}'),
    ],
)
def test_decimals_that_mysqls_json_would_round_are_refused(
    mysql: Database, harmed: str, kept: str
) -> None:
    """M11: its JSON keeps numbers with decimals as DOUBLE; MariaDB's is the text itself."""
    mysql.query("CREATE TABLE t (x JSON)")
    column = Column("x", "struct<a:decimal(38,18)>", json=True)
    refused = apply(mysql, column, pa.array([kept, None, harmed]))
    assert isinstance(refused, Refused)
    assert "would be rounded silently" in refused.what
    assert mysql.query("SELECT * FROM t") == []
    assert apply(mysql, column, pa.array([kept, None])) == Applied()
    assert mysql.query("SELECT COUNT(*) FROM t") == [(2,)]
