"""The text of statements, without a server: both flavours, sizes, and what an error means."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from spark_eoc.errors import BadRowError, ConfigError
from spark_eoc.sinks.mysql import render
from spark_eoc.sinks.mysql.connection import CONTENT, TRANSIENT, Flavour
from spark_eoc.sinks.mysql.ledger_sql import LedgerSql
from spark_eoc.sinks.mysql.render import BLOCK_ROWS, Around, Fit, statements
from spark_eoc.sinks.mysql.statement import Insert, check_merge

GREETINGS = [
    ("5.5.5-10.11.14-MariaDB-0+deb12u2", Flavour(True, (10, 11, 14)), False),
    ("11.8.3-MariaDB", Flavour(True, (11, 8, 3)), False),
    ("8.0.19", Flavour(False, (8, 0, 19)), False),
    ("8.0.20", Flavour(False, (8, 0, 20)), True),
    ("9.7.0-commercial", Flavour(False, (9, 7, 0)), True),
    ("", Flavour(False, ()), False),
]


@pytest.mark.parametrize(("greeting", "flavour", "row_alias"), GREETINGS)
def test_flavours(greeting: str, flavour: Flavour, row_alias: bool) -> None:
    """M4: the row alias is a syntax error on MariaDB, VALUES() warns on MySQL 8.0.20."""
    assert Flavour.of(greeting) == flavour
    assert flavour.row_alias is row_alias


def test_upserts_of_both_flavours() -> None:
    """M4: each in its own form; names are quoted and bound to the table."""
    insert = Insert("d", "t`x", ["k", "a b"], ["k"], {"a b": "add"})
    old = "`d`.`t``x`.`a b`"
    assert insert.head() == b"INSERT INTO `d`.`t``x` (`k`,`a b`) VALUES "
    mariadb, mysql = (insert.tail(Flavour(m, (8, 0, 20))).decode() for m in (True, False))
    assert mariadb == (
        f" ON DUPLICATE KEY UPDATE {old}=COALESCE({old} + VALUES(`a b`), {old}, VALUES(`a b`))"
    )
    assert mysql == (
        " AS `spark_eoc_new` ON DUPLICATE KEY UPDATE "
        f"{old}=COALESCE({old} + `spark_eoc_new`.`a b`, {old}, `spark_eoc_new`.`a b`)"
    )
    assert Insert("d", "t", ["k"], ["k"]).tail(Flavour(True, ())).endswith(b"`k`=`d`.`t`.`k`")
    assert Insert("d", "t", ["k"]).tail(Flavour(True, ())) == b""


def test_merge_rules_are_checked() -> None:
    """Unknown rules, unknown columns and key columns are refused by name."""
    for merge in ({"n": "sum"}, {"z": "add"}, {"k": "add"}):
        with pytest.raises(ConfigError, match=r"'[nzk]'"):
            check_merge(merge, ["k", "n"], ["k"])


@pytest.mark.parametrize("size", [1, 7, 40, 1000, 10**6])
def test_statements_hold_every_row_once_in_order_and_keep_their_size(size: int) -> None:
    """Whatever the size, and over the border of a block."""
    count = BLOCK_ROWS + 500
    table = pa.table({"id": pa.array(range(count), pa.int64())})
    around = Around(b"I ", b" T", size, 10**7)
    found: list[int] = []
    for sql, rows in statements(table, {}, around):
        assert sql.startswith(b"I (")
        assert sql.endswith(b") T")
        assert len(sql) <= size or rows == 1
        ids = list(map(int, re.findall(rb"\((\d+)\)", sql)))
        assert len(ids) == rows
        found += ids
    assert found == list(range(count))


def test_a_row_beyond_the_limit_names_the_setting() -> None:
    """M3: the server would cut the connection instead."""
    table = pa.table({"v": ["x" * 200]})
    (whole,) = statements(table, {}, Around(b"", b"", 10, 204))
    assert len(whole[0]) == 204
    with pytest.raises(BadRowError, match="max_allowed_packet"):
        list(statements(table, {}, Around(b"", b"", 10, 203)))


def test_sliced_columns_with_nulls() -> None:
    """A slice's texts begin in the middle of its buffers."""
    table = pa.table({"a": ["'", None, "b"], "n": pa.array([1, None, 3], pa.int32())}).slice(1)
    ((sql, rows),) = statements(table, {}, Around(b"", b"", 1000, 1000))
    assert (sql, rows) == (b"(NULL,NULL),('b',3)", 2)


def test_a_slice_is_escaped_by_its_own_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its buffers are those of the whole column, and looking through these for each slice of a
    large partition takes far too long."""
    seen: list[int] = []

    class Pattern:
        def search(self, data: memoryview) -> bool:
            seen.append(len(data))
            return b"'" in bytes(data)

    monkeypatch.setattr(render, "_QUOTE", Pattern())
    table = pa.table({"a": ["it's", *["ab"] * 10_000, "'", "c"]})
    ((sql, _),) = statements(table.slice(10_001, 2), {}, Around(b"", b"", 1000, 1000))
    assert (sql, seen) == (b"(" + b"'" * 4 + b"),('c')", [2])


@pytest.mark.parametrize("value", [-1, -1_000_001, 999_999, 1])
def test_times_finer_than_the_column_are_refused_also_before_1970(value: int) -> None:
    """The server would round them without a word."""
    table = pa.table({"t": pa.array([0, -3_000_000, value], pa.timestamp("us"))})
    for digits in range(6):
        with pytest.raises(BadRowError, match=f"{digits} decimals"):
            list(statements(table, {"t": Fit(digits)}, Around(b"", b"", 99, 999)))
    ((sql, _),) = statements(table, {"t": Fit(6)}, Around(b"", b"", 999, 999))
    assert b"'1969-12-31 23:59:57.000000'" in sql


def test_an_error_either_passes_or_is_the_rows_or_is_fatal() -> None:
    """No number means two things; 1062 is only looked at after the unit entry."""
    assert not TRANSIENT & CONTENT
    assert {1205, 1213, 1020, 2006, 2013} <= TRANSIENT
    assert 1062 in CONTENT
    assert not {1044, 1045, 1064, 1146} & (TRANSIENT | CONTENT)


@pytest.mark.parametrize("prefix", ["", "a`b", "a%b", "x" * 51])
def test_ledger_names_that_cannot_be_are_refused(prefix: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ConfigError, match="ledger="):
        LedgerSql(prefix)
