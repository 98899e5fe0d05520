"""Dead letters in a real MariaDB: one bad row among thousands, kills around it, limits."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import ConfigError, DeadLetterLimitError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Refused
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import DeadLettersApart
from tests.sinks.mysql.driving import Run, columns_of, sink_of

GOOD = 5000
MIDDLE = 2500


@pytest.fixture(autouse=True)
def _fresh_failpoints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))


@pytest.fixture
def create(mariadb: Database) -> Callable[[str], Database]:
    """``create("v INT NOT NULL")``: table t with an id and that."""

    def build(column: str) -> Database:
        mariadb.query("CREATE TABLE parents (id BIGINT PRIMARY KEY)")
        mariadb.query("INSERT INTO parents VALUES (1)")
        mariadb.query(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {column}) CHARSET=utf8mb4")
        return mariadb

    return build


def thousands(good: Any, bad: Any, kind: pa.DataType, count: int = GOOD) -> pa.Table:
    """Rows whose ``v`` is ``good``, but for one ``bad`` in the middle."""
    values = [good] * (count // 2) + [bad] + [good] * (count - count // 2)
    return pa.table({"id": pa.array(range(count + 1), pa.int64()), "v": pa.array(values, kind)})


def letters(database: Database) -> list[tuple[Any, ...]]:
    """(batch, partition, error, column, row) of each dead letter."""
    found = database.query(
        "SELECT batch_id, partition_id, error, column_name, row_json FROM spark_eoc_dead_letters "
        "ORDER BY id"
    )
    return [(*some, json.loads(row)) for *some, row in found]


def ids(database: Database) -> Counter[int]:
    return Counter(row[0] for row in database.query("SELECT id FROM t"))


def all_but(*bad: int) -> Counter[int]:
    return Counter(set(range(GOOD + 1)) - set(bad))


INT, TEXT, FLOAT, BYTES = pa.int64(), pa.string(), pa.float64(), pa.binary()
CASES = {
    "too long, as the server finds": ("v TINYTEXT", "ok", "x" * 256, TEXT, 1406),
    "too long, as we find": ("v VARCHAR(3)", "ok", "long", TEXT, None),
    "NULL": ("v INT NOT NULL", 7, None, INT, 1048),
    "out of range": ("v TINYINT", 7, 128, INT, 1264),
    "a wrong value": ("v INT", "7", "seven", TEXT, 1366),
    "a wrong date": ("v DATE", "2013-02-28", "2013-02-30", TEXT, 1292),
    "bad JSON": ("v JSON", '{"a": 1}', "{'a'}", TEXT, 4025),
    "a check": ("v INT CHECK (v < 100)", 7, 100, INT, 4025),
    "a foreign key": ("v BIGINT, FOREIGN KEY (v) REFERENCES parents (id)", 1, 2, INT, 1452),
    "an ENUM": ("v ENUM('yes', 'no')", "yes", "maybe", TEXT, 1265),
    "no UTF-8": ("v VARCHAR(9)", b"ok", b"\xff\xfe", BYTES, 1366),
    "NaN": ("v DOUBLE", 1.5, float("nan"), FLOAT, None),
    "rounded text": ("v INT", "7", "7.5", TEXT, None),
}


@pytest.mark.parametrize("name", CASES)
def test_one_bad_row_among_thousands(create: Callable[[str], Database], name: str) -> None:
    """By default it is named, with its column or constraint, and nothing is written. Put aside, its
    letter carries row and error, every other row is written, and all of it once."""
    column, good, bad, kind, error = CASES[name]
    database = create(column)
    table = thousands(good, bad, kind)
    failing = Run(sink_of(database, on_bad_row="fail"))
    failing.open()
    refused = failing.apply(table)
    assert isinstance(refused, Refused)
    assert refused.error == "BadRowError"
    assert "row 2,501 of 5,001" in refused.what
    assert error is None or f"error {error}" in refused.what
    assert "'v'" in refused.what or "CONSTRAINT" in refused.what or "foreign" in refused.what
    assert not ids(database)
    run = Run(sink_of(database), "next")
    run.open()
    assert run.apply(table) == Applied(dead_letters=1)
    assert run.apply(table) == AlreadyApplied()
    run.close(limit=1)
    assert ids(database) == all_but(MIDDLE)
    ((batch, partition, number, of, row),) = letters(database)
    assert (batch, partition, number) == (0, 0, error)
    assert of in ("v", None)
    value = {"no UTF-8": {"base64": "//4="}, "NaN": "NaN"}.get(name, bad)
    assert row == {"id": MIDDLE, "v": value}
    assert "at row" not in database.query("SELECT reason FROM spark_eoc_dead_letters")[0][0]


#: Where MySQL has numbers of its own.
ON_MYSQL = {"bad JSON": 3140, "a check": 3819}


@pytest.mark.parametrize("server", ["mariadb11", "mysql"])
def test_other_servers_name_the_same_rows(
    database_on: Callable[[str], Database], server: str
) -> None:
    """Each kind of bad row, in the words and numbers of that server."""
    database = database_on(server)
    database.query("CREATE TABLE parents (id BIGINT PRIMARY KEY)")
    database.query("INSERT INTO parents VALUES (1)")
    for name, (column, good, bad, kind, error) in CASES.items():
        database.query("DROP TABLE IF EXISTS t, spark_eoc_dead_letters")
        database.query(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {column}) CHARSET=utf8mb4")
        run = Run(sink_of(database), name)
        run.writer_id = name
        run.open()
        assert run.apply(thousands(good, bad, kind, 20)) == Applied(1), name
        ((*_, number, of, row),) = letters(database)
        assert number == (ON_MYSQL.get(name, error) if server == "mysql" else error), name
        assert (of in ("v", None), row["id"]) == (True, 10), name
        assert ids(database) == Counter(set(range(21)) - {10}), name


def test_a_duplicate_in_append_mode_is_content(create: Callable[[str], Database]) -> None:
    """Of two rows with one key the first stays: over partitions, and within one."""
    database = create("v INT")
    run = Run(sink_of(database))
    run.open()
    table = pa.table({"id": pa.array([1, 2, 1], INT), "v": pa.array([10, 20, 11], INT)})
    assert run.apply(table) == Applied(1)
    assert run.apply(pa.table({"id": pa.array([2, 3], INT), "v": [21, 30]}), 1) == Applied(1)
    run.close()
    assert database.query("SELECT id, v FROM t ORDER BY id") == [(1, 10), (2, 20), (3, 30)]
    assert [row for *_, row in letters(database)] == [{"id": 1, "v": 11}, {"id": 2, "v": 21}]


def test_a_null_in_an_upserts_key_and_a_sum_out_of_range(mariadb: Database) -> None:
    """What is refused by its key, or together with the present value."""
    mariadb.query("CREATE TABLE t (id BIGINT UNIQUE, v TINYINT)")
    mariadb.query("INSERT INTO t VALUES (1, 100)")
    sink = sink_of(mariadb, mode="upsert", key=["id"], merge={"v": "add"})
    run = Run(sink)
    run.open()
    table = pa.table({"id": pa.array([1, 2, None, 3], INT), "v": pa.array([28, 5, 6, 7], INT)})
    assert run.apply(table) == Applied(2)
    assert mariadb.query("SELECT id, v FROM t ORDER BY id") == [(1, 100), (2, 5), (3, 7)]
    assert sorted((row["v"], error) for _, _, error, _, row in letters(mariadb)) == [
        (6, None),
        (28, 1264),
    ]
    failing = Run(sink_of(mariadb, mode="upsert", key=["id"], on_bad_row="fail"), "other")
    failing.open()
    refused = failing.apply(pa.table({"id": pa.array([4], INT), "v": pa.array([128], INT)}), 1)
    assert isinstance(refused, Refused)
    assert "the row with key id=4" in refused.what


@pytest.mark.parametrize("on_bad_row", ["dead_letter", "fail"])
def test_a_statement_that_only_warned_is_undone_before_it_is_halved(
    create: Callable[[str], Database], on_bad_row: str
) -> None:
    """M11: its rows are there already, others of the partition too; each is there once at the end,
    and the bad one is named."""
    database = create("v TIME(6), w TINYINT")
    values = ["10:00:00"] * GOOD
    values[MIDDLE] = "2024-01-31 01:02:03.5"
    numbers = [500 if i == 7 else 1 for i in range(GOOD)]
    table = pa.table({"id": pa.array(range(GOOD), INT), "v": values, "w": pa.array(numbers, INT)})
    run = Run(sink_of(database, on_bad_row=on_bad_row))
    run.open()
    if on_bad_row == "fail":
        refused = run.apply(table.set_column(2, "w", pa.array([1] * GOOD, INT)))
        assert isinstance(refused, Refused)
        assert "row 2,501 of 5,000" in refused.what
        return
    assert run.apply(table) == Applied(2)
    assert ids(database) == Counter(set(range(GOOD)) - {7, MIDDLE})
    assert sorted(row["id"] for *_, row in letters(database)) == [7, MIDDLE]


def test_a_row_over_max_allowed_packet(create: Callable[[str], Database]) -> None:
    """M3: its letter keeps the beginning of the long value, since no statement holds all of it."""
    database = create("v LONGTEXT")
    database.query("SET GLOBAL max_allowed_packet=1048576")
    try:
        run = Run(sink_of(database))
        run.open()
        assert run.apply(thousands("ok", "é" * 1_000_000, TEXT)) == Applied(1)
    finally:
        database.query("SET GLOBAL max_allowed_packet=16777216")
    assert ids(database) == all_but(MIDDLE)
    ((*_, row),) = letters(database)
    assert row == {"id": MIDDLE, "v": {"cut": "é" * 1000, "length": 1_000_000}}


POINTS = (
    "mysql.before_rows", "mysql.after_rows", "mysql.after_unit", "mysql.before_commit",
    "mysql.after_commit",
)  # fmt: skip


def died_at(run: Run, table: pa.Table, point: str, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as failing:
        failing.setenv(ENVIRONMENT, f"{point}=raise")
        with pytest.raises(FailpointError):
            run.apply(table)


@pytest.mark.parametrize("point", POINTS)
def test_dying_at_each_step_leaves_each_row_and_letter_once(
    create: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The batch is run again: rows and dead letters are there exactly once, as multisets."""
    database = create("v TINYINT")
    table = thousands(7, 128, INT)
    run = Run(sink_of(database))
    run.open()
    died_at(run, table, point, monkeypatch)
    again = run.again()
    again.open()
    assert again.apply(table) in (Applied(1), AlreadyApplied())
    again.close(limit=1)
    assert ids(database) == all_but(MIDDLE)
    assert [row for *_, row in letters(database)] == [{"id": MIDDLE, "v": 128}]


def test_with_letters_in_their_own_transaction_they_double(
    create: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the rule."""
    database = create("v TINYINT")
    table = thousands(7, 128, INT, count=20)
    run = Run(sink_of(database))
    run.sink.__class__ = DeadLettersApart
    run.open()
    died_at(run, table, "mysql.after_rows", monkeypatch)
    again = run.again()
    again.open()
    again.apply(table)
    assert [row["v"] for *_, row in letters(database)] == [128, 128]


def test_the_rows_of_another_copy_are_no_bad_rows(create: Callable[[str], Database]) -> None:
    """A second copy of the task meets error 1062 with every row: the unit entry is looked at
    before the first of them is taken for bad, and again above the limit."""
    database = create("v INT")
    table = thousands(7, 7, INT)
    run = Run(sink_of(database, dead_letter_limit=3))
    run.open()
    assert run.apply(table) == Applied()
    assert run.apply(table) == AlreadyApplied()
    run.sink._look = lambda _, look=run.sink._look, seen=[]: (  # type: ignore[method-assign]
        look(_) if seen else seen.append(1)
    )
    assert run.apply(table) == AlreadyApplied()
    assert letters(database) == []
    assert ids(database) == all_but()


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts INSERTs into t."""
    sent, real = [0], pymysql.connections.Connection.query

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        sent[0] += isinstance(sql, bytes)
        return real(self, sql, unbuffered)

    monkeypatch.setattr(pymysql.connections.Connection, "query", query)
    return sent


def test_a_bad_row_costs_a_few_statements_and_bad_rows_alone_are_bounded(
    create: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One among 5,000 is found by halving; where all are bad the limit ends it."""
    database = create("v TINYINT")
    sent = counting(monkeypatch)
    run = Run(sink_of(database, dead_letter_limit=50))
    run.open()
    assert run.apply(thousands(7, 128, INT)) == Applied(1)
    assert sent[0] <= 2 * 13 + 2
    sent[0] = 0
    started = time.monotonic()
    refused = run.apply(thousands(128, 129, INT, 20_000), 1)
    assert isinstance(refused, Refused)
    assert refused.error == "DeadLetterLimitError"
    assert sent[0] <= 2 * 50 + 20
    assert time.monotonic() - started < 20
    assert ids(database) == all_but(MIDDLE)
    assert len(letters(database)) == 1


@pytest.mark.parametrize(
    ("column", "good", "bad", "kind"),
    [("v TINYINT", 7, 128, INT), ("v DOUBLE", 1.0, float("nan"), FLOAT)],
)
def test_many_bad_rows_spread_over_a_partition(
    create: Callable[[str], Database], column: str, good: Any, bad: Any, kind: pa.DataType
) -> None:
    """A hundred bad ones, each beside good ones, found by the server and by us."""
    database = create(column)
    count = GOOD + 1
    values = [bad if i % 50 == 9 else good for i in range(count)]
    table = pa.table({"id": pa.array(range(count), INT), "v": pa.array(values, kind)})
    run = Run(sink_of(database))
    run.open()
    assert run.apply(table) == Applied(100)
    expected = [i for i in range(count) if i % 50 == 9]
    assert ids(database) == all_but(*expected)
    assert [row["id"] for *_, row in letters(database)] == expected


def bad_rows(count: int, first: int) -> pa.Table:
    numbers = range(first, first + 20)
    values = [128] * count + [7] * (20 - count)
    return pa.table({"id": pa.array(numbers, INT), "v": pa.array(values, INT)})


def test_the_limit_counts_over_a_batchs_partitions(create: Callable[[str], Database]) -> None:
    """A unit that would bring its batch above the limit leaves nothing; the next batch counts anew;
    with a higher limit the batch goes on exactly once."""
    database = create("v TINYINT")
    run = Run(sink_of(database, dead_letter_limit=5))
    run.open()
    assert run.apply(bad_rows(3, 0)) == Applied(3)
    refused = run.apply(bad_rows(3, 100), 1)
    assert isinstance(refused, Refused)
    assert refused.error == "DeadLetterLimitError"
    assert "after 3 of its other rows" in refused.what
    assert (sum(ids(database).values()), len(letters(database))) == (17, 3)
    again = Run(sink_of(database, dead_letter_limit=6), "later")
    again.open()
    assert again.apply(bad_rows(3, 0)) == AlreadyApplied()
    assert again.apply(bad_rows(3, 100), 1) == Applied(3)
    again.close(limit=6)
    again.open(1)
    assert again.apply(bad_rows(5, 200)) == Applied(5)
    again.close(limit=6)
    assert (sum(ids(database).values()), len(letters(database))) == (49, 11)


def test_close_adds_up_what_tasks_could_not_see_of_each_other(
    create: Callable[[str], Database],
) -> None:
    """Two units at the same time may each stay below the limit: the batch is then not completed,
    and with a higher limit it is, without a row or a letter more."""
    database = create("v TINYINT")
    run = Run(sink_of(database, dead_letter_limit=5))
    run.sink._sql.dead_letters = lambda *_: 0  # type: ignore[method-assign]  # not committed yet
    run.open()
    assert run.apply(bad_rows(3, 0)) == Applied(3)
    assert run.apply(bad_rows(3, 100), 1) == Applied(3)
    with pytest.raises(DeadLetterLimitError, match="6 rows of batch 0"):
        run.close(limit=5)
    again = Run(sink_of(database, dead_letter_limit=6), "later")
    again.open()
    again.apply(bad_rows(3, 0))
    again.apply(bad_rows(3, 100), 1)
    again.close(limit=6)
    assert (sum(ids(database).values()), len(letters(database))) == (34, 6)


def test_errors_that_are_no_rows_fault_are_never_dead_letters(
    create: Callable[[str], Database],
) -> None:
    """A column that is gone, a column that came to be needed, a right that was taken away."""
    database = create("v INT")
    table = thousands(7, 8, INT, count=10)
    for harm, mend in (
        ("DROP COLUMN v", "ADD COLUMN v INT"),
        ("ADD COLUMN w INT NOT NULL", "DROP COLUMN w"),
    ):
        run = Run(sink_of(database), "run" + harm)
        run.open()
        run.sink.check(columns_of(table))
        database.query(f"ALTER TABLE t {harm}")
        run.sink.check = lambda _: ""  # type: ignore[method-assign]
        with pytest.raises(Exception, match=r"error (1054|1364)"):
            run.apply(table)
        database.query(f"ALTER TABLE t {mend}")
    assert (letters(database), ids(database)) == ([], Counter())


def test_a_table_that_refuses_letters_is_no_bad_row(create: Callable[[str], Database]) -> None:
    """Then the unit fails whole, and the table of dead letters is named."""
    database = create("v TINYINT")
    run = Run(sink_of(database, dead_letter_table="aside"))
    run.open()
    run.sink.check(columns_of(bad_rows(1, 0)))
    database.query("ALTER TABLE aside ADD CHECK (batch_id > 0)")
    with pytest.raises(Exception, match="`aside` refused a dead letter"):
        run.apply(bad_rows(1, 0))
    assert not ids(database)


@pytest.mark.parametrize(
    ("table", "ddl", "message"),
    [
        ("t", None, "the table that rows are written to"),
        ("u", "CREATE TABLE u (id INT) ENGINE=MyISAM", "not InnoDB"),
        ("u", "CREATE TABLE u (id INT)", "error 1054"),
    ],
)
def test_a_table_that_cannot_hold_letters_is_refused_before_the_first_row(
    create: Callable[[str], Database], table: str, ddl: str | None, message: str
) -> None:
    """With what to do."""
    database = create("v TINYINT")
    if ddl:
        database.query(ddl)
    sink = sink_of(database, dead_letter_table=table)
    with pytest.raises(ConfigError, match=message):
        sink.check(columns_of(bad_rows(1, 0)))


def test_letters_hold_any_text_and_the_sources_offset(create: Callable[[str], Database]) -> None:
    """Quotes, back-slashes, NUL and emoji; the offset where the frame has one; the row's name."""
    database = create("v TINYINT, `offset` BIGINT, s TEXT")
    nasty = "';\\' -- \"%s\0\n😀é"
    table = pa.table(
        {
            "id": pa.array([1], INT),
            "v": pa.array([500], INT),
            "offset": pa.array([12345], INT),
            "s": [nasty],
        }
    )
    run = Run(sink_of(database))
    run.open()
    assert run.apply(table) == Applied(1)
    ((*_, row),) = letters(database)
    assert row == {"id": 1, "v": 500, "offset": 12345, "s": nasty}
    assert database.query("SELECT source_offset, writer_id FROM spark_eoc_dead_letters") == [
        (12345, "w")
    ]
    failing = Run(sink_of(database, on_bad_row="fail"), "other")
    failing.open()
    refused = failing.apply(table, 1)
    assert isinstance(refused, Refused)
    assert "the row with offset 12345" in refused.what


def test_a_ledger_without_the_column_gets_it(create: Callable[[str], Database]) -> None:
    """Tables made before there were dead letters."""
    database = create("v TINYINT")
    run = Run(sink_of(database))
    run.sink.check(columns_of(bad_rows(1, 0)))
    database.query("ALTER TABLE spark_eoc_units DROP COLUMN dead_letters")
    run.open()
    assert run.apply(bad_rows(1, 0)) == Applied(1)


def test_arguments_that_mean_nothing_are_refused() -> None:
    """When the writer is built."""
    with pytest.raises(ConfigError, match="dead_letter_table belongs"):
        MySQLWriter("mysql://u@h/d", "t", dead_letter_table="x")
    with pytest.raises(ConfigError, match="can't be the name"):
        MySQLWriter("mysql://u@h/d", "t", on_bad_row="dead_letter", dead_letter_table="a`b")


def test_nan_that_would_become_null_in_a_key_is_refused(mariadb: Database) -> None:
    """No unique index finds NULL again: each batch would append such a row."""
    mariadb.query("CREATE TABLE t (k DOUBLE NULL, n BIGINT, UNIQUE KEY u (k))")
    sink = sink_of(
        mariadb, mode="upsert", key=["k"], merge={"n": "add"}, nan="null", on_bad_row="fail"
    )
    run = Run(sink)
    run.open()
    data = pa.table({"k": [float("nan"), 1.0], "n": pa.array([1, 1], pa.int64())})
    outcome = run.apply(data)
    assert isinstance(outcome, Refused)
    assert "NaN" in outcome.what
    assert mariadb.query("SELECT * FROM t") == []
