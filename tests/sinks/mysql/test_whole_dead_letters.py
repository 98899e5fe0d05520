"""Dead letters in batch atomicity on a real MariaDB: bad rows that a task or only the target finds,
deaths around them, limits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import DeadLetterLimitError, FencedError, ReplayMismatchError, SinkError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FAILPOINTS, FailpointError
from spark_eoc.sinks.entries import Applied, Refused
from spark_eoc.sinks.mysql.given_sql import GivenSql
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import WholeLettersApart
from tests.sinks.mysql.driving import columns_of, rows_of
from tests.sinks.mysql.test_dead_letters import CASES, ON_MYSQL, counting, thousands
from tests.sinks.mysql.whole import Whole

INT = pa.int64()
SERVERS = ("mariadb", "mariadb11", "mysql")


@pytest.fixture(autouse=True)
def _fresh_failpoints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))


@pytest.fixture
def table(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE t (id BIGINT PRIMARY KEY, v TINYINT NOT NULL)")
    return mariadb


def sink_of(database: Database, **arguments: Any) -> MySQLSink:
    arguments = {"on_bad_row": "dead_letter", "retry_minutes": 0.1, **arguments}
    return MySQLWriter(database.url(), "t", atomicity="batch", **arguments)._sink  # type: ignore[return-value]


def whole(
    database: Database, run_id: str = "a", like: pa.Table | None = None, **arguments: Any
) -> Whole:
    columns: Sequence[Column] = columns_of(pairs((1, 1)) if like is None else like)
    return Whole(sink_of(database, **arguments), run_id, columns, rows_of)


def pairs(*rows: tuple[int | None, int | None]) -> pa.Table:
    return pa.table(
        {"id": pa.array([i for i, _ in rows], INT), "v": pa.array([v for _, v in rows], INT)}
    )


def ids(database: Database) -> Counter[int]:
    return Counter(row[0] for row in database.query("SELECT id FROM t"))


def letters(database: Database) -> list[tuple[Any, ...]]:
    """(batch, partition, error, row) of each dead letter, in the order of their rows."""
    found = database.query(
        "SELECT batch_id, partition_id, error, row_json FROM spark_eoc_dead_letters ORDER BY id"
    )
    return [(*some, json.loads(row)) for *some, row in found]


def left(database: Database) -> list[int]:
    """What is kept of staged partitions, in each of the tables."""
    names = [n for (n,) in database.query("SHOW TABLES LIKE 'spark\\_eoc\\_rows\\_%'")]
    names += ["spark_eoc_staged", "spark_eoc_given", "spark_eoc_refused"]
    return [database.query(f"SELECT COUNT(*) FROM {name}")[0][0] for name in names]


def one_bad_row(database: Database, name: str) -> None:
    """Each kind of bad row, among others and with a partition beside it."""
    column, good, bad, kind, error = CASES[name]
    database.query("DROP TABLE IF EXISTS t, spark_eoc_dead_letters")
    database.query(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {column}) CHARSET=utf8mb4")
    data, run_id = thousands(good, bad, kind, 20), name
    run = Whole(sink_of(database, ledger="spark_eoc"), run_id, columns_of(data), rows_of)
    database.query("DELETE FROM spark_eoc_control")
    database.query("DELETE FROM spark_eoc_history")
    other = pa.table({"id": pa.array([100], INT), "v": pa.array([good], kind)})
    run.write(0, [data], [other])
    assert ids(database) == Counter({*range(21), 100} - {10}), name
    ((batch, partition, number, row),) = letters(database)
    assert (batch, partition, row["id"]) == (0, 0, 10), name
    assert row["v"] == {"no UTF-8": {"base64": "//4="}, "NaN": "NaN"}.get(name, bad), name
    assert number in (error, ON_MYSQL.get(name)), name
    assert left(database) == [0] * 4


#: What a task finds, what its server finds, and what only the target does.
SOME = ("NaN", "out of range", "NULL", "a foreign key")
_SLOW = [pytest.param(name, CASES, marks=pytest.mark.slow) for name in SERVERS]


@pytest.mark.parametrize(("server", "names"), [("mariadb", SOME), *_SLOW])
def test_each_kind_of_bad_row_goes_aside_and_the_batch_is_published(
    database_on: Callable[[str], Database], server: str, names: Sequence[str]
) -> None:
    """With the same reason and JSON as in partition atomicity; nothing stays staged."""
    database = database_on(server)
    database.query("CREATE TABLE parents (id BIGINT PRIMARY KEY)")
    database.query("INSERT INTO parents VALUES (1)")
    for name in names:
        one_bad_row(database, name)


def test_what_only_the_target_refuses_is_found_in_order(table: Database) -> None:
    """A duplicate of what was there, of another partition, of the same one; a NULL. Of two rows
    with one key the first stays: that of the lower partition, as they are published."""
    table.query("INSERT INTO t VALUES (1, 1)")
    run = whole(table)
    run.write(
        0,
        [pairs((2, 2), (1, 9), (2, 8))],
        [pairs((2, 7), (3, 3), (4, None), (5, 500))],
    )
    assert table.query("SELECT * FROM t ORDER BY id") == [(1, 1), (2, 2), (3, 3)]
    assert letters(table) == [
        (0, 0, 1062, {"id": 1, "v": 9}),
        (0, 0, 1062, {"id": 2, "v": 8}),
        (0, 1, 1062, {"id": 2, "v": 7}),
        (0, 1, 1048, {"id": 4, "v": None}),
        (0, 1, 1264, {"id": 5, "v": 500}),
    ]
    history = table.query("SELECT fingerprint FROM spark_eoc_history")
    assert history[0][0].startswith("7:"), "bad rows are in the batch's fingerprint"
    assert left(table) == [0] * 4


def test_an_upsert_merges_the_good_rows_of_a_key(table: Database) -> None:
    """A sum that leaves the column's range is its row's fault alone."""
    table.query("INSERT INTO t VALUES (1, 100)")
    run = whole(table, mode="upsert", key=["id"], merge={"v": "add"})
    run.write(0, [pairs((1, 20), (1, 50), (1, 7), (None, 3), (2, 5))])
    assert table.query("SELECT * FROM t ORDER BY id") == [(1, 127), (2, 5)]
    assert Counter(str(row) for *_, row in letters(table)) == Counter(
        ["{'id': 1, 'v': 50}", "{'id': None, 'v': 3}"]
    )


def test_letters_have_the_columns_that_are_not_written(table: Database) -> None:
    """And the source's offset, from rows that are kept in many blocks and parts."""
    count, wrong = 10_000, {999: None, 1999: 500}
    data = pa.table(
        {
            "id": pa.array(range(count), INT),
            "v": pa.array([wrong.get(i % 2500, 1) for i in range(count)], INT),
            "offset": pa.array(range(70_000, 70_000 + count), INT),
            "said": [f"{i} 'é' {i * 7919}" for i in range(count)],
        }
    )
    run = whole(table, like=data, columns={"offset": None, "said": None})
    run.write(0, [data])
    bad = [i for i in range(count) if i % 2500 in (999, 1999)]
    assert ids(table) == Counter(set(range(count)) - set(bad))
    found = table.query("SELECT source_offset FROM spark_eoc_dead_letters ORDER BY id")
    assert [offset for (offset,) in found] == [70_000 + i for i in bad]
    assert [row for *_, row in letters(table)] == [data.slice(i, 1).to_pylist()[0] for i in bad]


def test_a_row_over_max_allowed_packet(table: Database) -> None:
    """It is kept in parts, and its letter has its beginning."""
    table.query("ALTER TABLE t ADD s LONGTEXT")
    long = "".join(chr(0x4E00 + i * i % 20_000) for i in range(700_000))
    data = pa.table({"id": pa.array([1, 2], INT), "v": [1, 2], "s": ["ok", long]})
    table.query("SET GLOBAL max_allowed_packet=1048576")
    try:
        whole(table, like=data).write(0, [data])
    finally:
        table.query("SET GLOBAL max_allowed_packet=16777216")
    assert ids(table) == Counter([1])
    ((*_, row),) = letters(table)
    assert row == {"id": 2, "v": 2, "s": {"cut": long[:1000], "length": len(long)}}


POINTS = [n for n in FAILPOINTS if n.startswith(("mysql.publish", "mysql.after_st"))]
#: Two bad rows of each kind: for a task, for the target.
MIXED = [(i, 128 if i in (3, 41) else None if i in (7, 55) else 1) for i in range(60)]
BAD = [3, 7, 41, 55]


def partitions(size: int) -> list[list[pa.Table]]:
    return [[pairs(*MIXED[at : at + size])] for at in range(0, len(MIXED), size)]


def dies_and_goes_on(
    database: Database, monkeypatch: pytest.MonkeyPatch, point: str, first: Whole, then: Whole
) -> None:
    """The first run dies at the point; the next one holds the rows in other partitions."""
    with monkeypatch.context() as failing:
        failing.setenv(ENVIRONMENT, f"{point}=raise")
        with pytest.raises(FailpointError):
            first.write(0, *partitions(20))
    if point != "mysql.publish_after_commit":
        then.write(0, *partitions(13)[::-1])
    then.clear()


@pytest.mark.parametrize("point", POINTS)
def test_dying_at_each_step_leaves_each_row_and_letter_once(
    table: Database, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """As multisets; nothing stays staged, of either run."""
    dies_and_goes_on(table, monkeypatch, point, whole(table, "a"), whole(table, "b"))
    assert ids(table) == Counter(set(range(60)) - set(BAD))
    assert Counter(row["id"] for *_, row in letters(table)) == Counter(BAD)
    assert left(table) == [0] * 4


def test_with_letters_in_their_own_transaction_they_double(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the rule."""
    first = whole(table, "a")
    staging: Any = first.sink._staging
    first.sink._staging = WholeLettersApart(**staging.__dict__)
    point = "mysql.publish_before_commit"
    dies_and_goes_on(table, monkeypatch, point, first, whole(table, "b"))
    assert Counter(row["id"] for *_, row in letters(table)) == Counter(BAD * 2)


@pytest.mark.parametrize(("statement", "number"), [("COMMIT", 2013), ("INSERT INTO `spark", 1213)])
def test_an_error_that_passes_while_publishing_doubles_no_letter(
    table: Database, monkeypatch: pytest.MonkeyPatch, statement: str, number: int
) -> None:
    """A lost answer to COMMIT; a dead-lock when letters are written."""
    run = whole(table)
    run.open()
    staged = [run.stage(0, pairs(*MIXED))]
    real, hits = pymysql.connections.Connection.query, [0]

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        answer = real(self, sql, unbuffered)
        if isinstance(sql, str) and sql.startswith(statement) and not hits[0]:
            hits[0] = 1
            raise pymysql.OperationalError(number, "made by the test")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(pymysql.connections.Connection, "query", query)
        run.publish(*staged)
    assert hits == [1]
    assert ids(table) == Counter(set(range(60)) - set(BAD))
    assert [row["id"] for *_, row in letters(table)] == BAD


def test_the_limit_counts_over_the_batch_and_stops_it_whole(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tasks and the target refuse together; with a higher limit the batch goes on."""
    for limit in (3, 1):  # the second: at staging alone, in two partitions
        run = whole(table, f"limit {limit}", dead_letter_limit=limit)
        with pytest.raises(DeadLetterLimitError, match="of batch 0 were refused; dead_letter_lim"):
            run.write(0, *partitions(20))
        assert (ids(table), letters(table)) == (Counter(), [])
    again = whole(table, "again", dead_letter_limit=4)
    again.write(0, *partitions(20))
    assert ids(table) == Counter(set(range(60)) - set(BAD))
    assert Counter(row["id"] for *_, row in letters(table)) == Counter(BAD)
    again.write(1, [pairs((100, None), (101, None), (102, None), (103, 128))])
    sent = counting(monkeypatch)
    again.open(2)
    _, outcome = again.try_stage(0, pairs(*[(i, 999) for i in range(200, 9000)]))
    assert isinstance(outcome, Refused)
    assert (outcome.error, sent[0] <= 2 * 4 + 20) == ("DeadLetterLimitError", True)
    staged = again.stage(0, pairs(*[(i, None) for i in range(200, 9000)]))
    queries = statements(monkeypatch, lambda: again.publish(staged))
    assert queries < 100
    assert len(letters(table)) == 8


def statements(monkeypatch: pytest.MonkeyPatch, publish: Callable[[], None]) -> int:
    """How many statements it takes until the limit ends it."""
    sent, real = [0], pymysql.connections.Connection.query

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        sent[0] += 1
        return real(self, sql, unbuffered)

    with monkeypatch.context() as patched:
        patched.setattr(pymysql.connections.Connection, "query", query)
        with pytest.raises(DeadLetterLimitError):
            publish()
    return sent[0]


def test_one_bad_row_among_thousands_is_told_of_once(
    table: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver says where it went, once the batch is committed."""
    run = whole(table)
    run.open()
    staged = run.stage(0, pairs(*[(i, None if i == 4321 else 1) for i in range(9000)]))
    with caplog.at_level("WARNING", "spark_eoc.sinks"):
        run.publish(staged)
    assert (len(ids(table)), len(letters(table))) == (8999, 1)
    (line,) = [r.getMessage() for r in caplog.records if "put aside" in r.getMessage()]
    assert line == (
        "batch 0, partition 0: 1 of 9000 rows were refused and put aside in table "
        "spark_eoc_dead_letters"
    )


def test_a_zombie_publishes_no_letter(table: Database) -> None:
    """The token is that of the run which took over."""
    late, new = whole(table, "late"), whole(table, "new")
    late.open()
    staged = late.stage(0, pairs(*MIXED))
    new.write(0, *partitions(20))
    with pytest.raises(FencedError):
        late.publish(staged)
    assert Counter(row["id"] for *_, row in letters(table)) == Counter(BAD)


def test_a_writer_that_keeps_none_clears_what_was_kept(table: Database) -> None:
    """A run without dead letters after one that died with them."""
    dead = whole(table, "dead")
    dead.open()
    dead.stage(0, pairs(*MIXED))
    assert left(table) == [58, 1, 1, 2]
    whole(table, "next", on_bad_row="fail").write(0, [pairs((1, 1))])
    assert left(table) == [0] * 4


@pytest.mark.parametrize(
    ("harm", "error", "message"),
    [
        (
            "DELETE FROM spark_eoc_given",
            ReplayMismatchError,
            "are still there as the frame gave them",
        ),
        ("DELETE FROM spark_eoc_refused", ReplayMismatchError, "not as their tasks left them"),
        ("ALTER TABLE aside ADD CHECK (batch_id > 0)", SinkError, "refused a dead letter"),
        ("ALTER TABLE t DROP COLUMN v", Exception, "1054"),
    ],
)
def test_what_is_no_rows_fault_leaves_nothing(
    table: Database, harm: str, error: type[Exception], message: str
) -> None:
    """Of a batch that can't be published with its letters."""
    run = whole(table, dead_letter_table="aside")
    run.open()
    staged = run.stage(0, pairs(*MIXED))
    table.query(harm)
    with pytest.raises(error, match=message):
        run.publish(staged)
    assert not ids(table)
    assert table.query("SELECT COUNT(*) FROM aside") == [(0,)]


def test_a_ledger_kept_whole_is_made_once(table: Database) -> None:
    """Its tables are there before the first batch, and hold what a task stages in one step."""
    run = whole(table)
    assert left(table) == [0] * 4
    run.open()
    staged, outcome = run.try_stage(0, pairs(*MIXED))
    assert outcome == Applied()
    connection = table.connect()
    found = GivenSql(run.sink._sql).refused(connection, staged.staging_id)
    connection.close()
    assert [(one.row, one.error, one.column) for one in found] == [(3, 1264, "v"), (41, 1264, "v")]
