"""Batch atomicity on a real MariaDB, step by step and without Spark."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import (
    BadRowError,
    ConfigError,
    FencedError,
    ReplayMismatchError,
    SinkUnavailableError,
)
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FAILPOINTS, FailpointError
from spark_eoc.sinks.entries import Outcome, Refused
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.wait import until
from tests.sinks.broken import broken_writer
from tests.sinks.mysql.test_units import COLUMNS, rows_of
from tests.sinks.mysql.whole import Whole, write_by_partitions


@pytest.fixture
def table(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    return mariadb


@pytest.fixture
def everywhere(database: Database) -> Database:
    """The same table on each server that the writer knows."""
    database.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    return database


@pytest.fixture(autouse=True)
def _fresh_failpoints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))


def ids(database: Database) -> list[int]:
    return [row[0] for row in database.query("SELECT id FROM t ORDER BY id")]


def left(database: Database) -> tuple[int, int]:
    """Staged partitions that are known, and staged rows."""
    (name,) = database.query(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_schema=DATABASE() AND table_name LIKE 'spark\\_eoc\\_rows\\_%'"
    )[0]
    ((known,),) = database.query("SELECT COUNT(*) FROM spark_eoc_staged")
    ((rows,),) = database.query(f"SELECT COUNT(*) FROM {name}")
    return known, rows


def sink_of(database: Database, **arguments: Any) -> MySQLSink:
    return MySQLWriter(database.url(), "t", atomicity="batch", **arguments)._sink  # type: ignore[return-value]


def broken(kind: str, database: Database) -> MySQLSink:
    return broken_writer(kind, database.url(), "t", atomicity="batch")._sink  # type: ignore[return-value]


def whole(database: Database, run_id: str = "a", **arguments: Any) -> Whole:
    return Whole(sink_of(database, **arguments), run_id, COLUMNS, rows_of)


def refused(outcome: Outcome, error: str) -> bool:
    return isinstance(outcome, Refused) and outcome.error == error


def test_a_batch_appears_at_once_and_leaves_nothing_staged(table: Database) -> None:
    """Staged rows are nobody's; published ones are all there, with the batch's history."""
    run = whole(table)
    run.open()
    staged = [run.stage(0, 1, 2), run.stage(2, 3)]
    assert (ids(table), left(table)) == ([], (2, 3))
    run.publish(*staged)
    assert ids(table) == [1, 2, 3]
    run.clear()
    assert left(table) == (0, 0)
    history = table.query("SELECT batch_id, atomicity, fingerprint FROM spark_eoc_history")
    assert history == [(0, "batch", str(rows_of(1, 2, 3).fingerprint()))]
    run.write(1, [4, 5], [], [6])
    assert (ids(table), left(table)) == ([1, 2, 3, 4, 5, 6], (0, 0))


def copies_of_tasks(sink: MySQLSink, table: Database) -> list[int]:
    """Three copies of each task stage, one of each comes back."""
    run = Whole(sink, "a", COLUMNS, rows_of)
    run.open()
    copies = [[run.stage(p, 2 * p + 1, 2 * p + 2) for _ in range(3)] for p in range(2)]
    run.publish(copies[0][1], copies[1][2])
    run.clear()
    return ids(table)


def test_exactly_what_came_back_is_published(table: Database) -> None:
    """Of retries and speculative copies there is more in staging."""
    assert copies_of_tasks(sink_of(table), table) == [1, 2, 3, 4]
    assert left(table) == (0, 0)


def test_all_that_is_staged_would_be_too_much(table: Database) -> None:
    """Red without the rule."""
    found = copies_of_tasks(broken("publishes_all_staged", table), table)
    assert Counter(found) == dict.fromkeys([1, 2, 3, 4], 3)


def test_pieces_keep_the_order_and_lose_no_row(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large partition is moved by several statements of one transaction."""
    monkeypatch.setattr("spark_eoc.sinks.mysql.staging_sql.PIECE_ROWS", 7)
    table.query("ALTER TABLE t ADD COLUMN n BIGINT AUTO_INCREMENT PRIMARY KEY")
    numbers = [*range(50, 0, -1)]
    whole(table).write(0, numbers, [99])
    assert [r[0] for r in table.query("SELECT id FROM t ORDER BY n")] == [*numbers, 99]
    assert left(table) == (0, 0)


def test_wide_rows_are_moved_in_small_pieces(table: Database) -> None:
    """A statement must end long before the connection's read times out."""
    from spark_eoc.sinks.mysql.staging_sql import pieces  # noqa: PLC0415

    assert [*pieces(5, 5 * 40 * 1024 * 1024)] == [(n, n + 1) for n in range(5)]
    assert [*pieces(50_000, 100)] == [(0, 20_000), (20_000, 40_000), (40_000, 50_000)]
    assert [*pieces(0, 0)] == []


# -- upserts ----------------------------------------------------------------------------------

MERGED = [Column("k", "string")] + [
    Column(name, kind)
    for name, kind in [
        ("replace", "bigint"), ("add", "decimal(20,2)"), ("min", "double"), ("max", "timestamp"),
        ("keep", "string"), ("coalesce", "int"),
    ]
]  # fmt: skip
RULES = {column.name: column.name for column in MERGED[1:]}
ARROW = [pa.string(), pa.int64(), pa.decimal128(20, 2), pa.float64(), pa.timestamp("us", "UTC"),
         pa.string(), pa.int32()]  # fmt: skip


def merged_rows(*rows: tuple[Any, ...]) -> Rows:
    arrays = [
        pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), ARROW, strict=True)
    ]
    table = pa.table(arrays, names=[column.name for column in MERGED])
    return Rows(table, pa.chunked_array([pa.array([hash(row) for row in rows], pa.int64())]))


#: Batches, their partitions, their rows; one key in two rows, in two partitions, and with NULLs.
BATCHES: list[list[list[tuple[Any, ...]]]] = [
    [
        [("b", 1, Decimal("1.1"), 2.5, 10**15, "1", None), ("a", 5, None, None, None, None, 3)],
        [("c", 7, Decimal(-3), -1.5, 5, "c", 9)],
    ],
    [
        [("a", 6, Decimal("2.25"), 1.0, 7, "2", None), ("b", None, None, None, 3, None, 4)],
        [("c", 8, Decimal(1), -2.5, 4, "3", None), ("c", 9, Decimal(2), 5.0, 6, "4", 1)],
    ],
    [[("a", 7, Decimal(1), 0.5, 9, None, 8)], [("a", 8, Decimal(1), 0.75, 8, "x", None)]],
]


def test_every_merge_rule_gives_what_it_gives_by_partitions(database: Database) -> None:
    """Also with NULLs, and with one key in two rows and two partitions: there the later row, and
    the partition with the higher number, is the later one."""
    for name in ("t", "u"):
        database.query(
            f"CREATE TABLE {name} (k VARCHAR(5) PRIMARY KEY, `replace` BIGINT, "
            "`add` DECIMAL(20,2), `min` DOUBLE, `max` DATETIME(6), keep VARCHAR(9), `coalesce` INT)"
        )
    how: dict[str, Any] = {"mode": "upsert", "key": ["k"], "merge": RULES}
    by_batch = Whole(sink_of(database, **how), "a", MERGED, merged_rows)
    for batch_id, partitions in enumerate(BATCHES):
        by_batch.write(batch_id, *partitions)
    other: Any = MySQLWriter(database.url(), "u", ledger="other", **how)._sink
    write_by_partitions(other, MERGED, merged_rows, BATCHES)
    found = database.query("SELECT * FROM t ORDER BY k")
    assert found == database.query("SELECT * FROM u ORDER BY k")
    assert [row[:2] for row in found] == [("a", 8), ("b", None), ("c", 9)]
    assert left(database) == (0, 0)


# -- errors -----------------------------------------------------------------------------------


@contextmanager
def lost_answer(monkeypatch: pytest.MonkeyPatch, statement: str = "COMMIT") -> Iterator[None]:
    """The next ``statement`` is done, and the connection breaks before its answer."""
    real, cut = pymysql.connections.Connection.query, threading.Event()

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        answer = real(self, sql, unbuffered)
        if sql == statement and not cut.is_set():
            cut.set()
            raise pymysql.OperationalError(2013, "Lost connection to server during query")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(pymysql.connections.Connection, "query", query)
        yield
    assert cut.is_set()


def test_lost_answers_to_commit(table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unique key a second publish would meet its own rows: it is recognised by the control
    entry. A task deletes what it may have staged, and begins again."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    run = whole(table)
    run.open()
    with lost_answer(monkeypatch):
        staged = run.stage(0, 1, 2)
    assert left(table) == (1, 2)
    with lost_answer(monkeypatch):
        run.publish(staged)
    assert ids(table) == [1, 2]
    with lost_answer(monkeypatch):
        run.clear()
    assert left(table) == (0, 0)
    run.write(1, [3])
    assert ids(table) == [1, 2, 3]


def test_a_lock_that_passes_is_waited_for(table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 1205 takes the whole publish back; it is tried again, and says who blocks when the
    budget is spent. Nothing of it is there."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    monkeypatch.setattr("spark_eoc.sinks.mysql.connection.TIME_LIMIT_S", 2)
    run = whole(table, retry_minutes=0.02)
    run.open()
    staged = [run.stage(0, 1, 2), run.stage(1, 3, 4)]
    blocker = table.connect(autocommit=False)
    blocker.cursor().execute("INSERT INTO t VALUES (3, 'theirs')")
    with pytest.raises(SinkUnavailableError, match=f"connection {blocker.thread_id()}"):
        run.publish(*staged)
    assert ids(table) == []
    run.sink.budget_s = 60
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(run.publish, *staged)
        # InnoDB brings the view up to date only when nobody has read it for 0.1 s.
        until(lambda: waiting(table), 30, "the publish waits", interval=0.2)
        blocker.rollback()
        published.result(30)
    assert ids(table) == [1, 2, 3, 4]


def waiting(table: Database) -> int:
    ((found,),) = table.query(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state='LOCK WAIT'"
    )
    return int(found)


def test_a_deadlock_is_tried_again(table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the publish had taken longer than the budget before it."""
    run = whole(table, retry_minutes=0.005)
    run.open()
    staged = run.stage(0, 1, 2)
    moves: list[Any] = []
    staging: Any = run.sink._staging
    move = type(staging)._move

    def slow(self: Any, *arguments: Any) -> None:
        move(self, *arguments)
        if not moves:
            moves.append(threading.Event().wait(0.4))
            raise pymysql.err.OperationalError(1213, "Deadlock found")

    monkeypatch.setattr(type(staging), "_move", slow)
    run.publish(staged)
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("ADD PRIMARY KEY (id)", r"1062.*Duplicate entry '1'.*partition 1"),
        ("MODIFY v VARCHAR(20) NOT NULL", r"1048.*Column 'v' cannot be null.*partition 1"),
        ("ADD CHECK (id <> 4)", r"(?i)(4025|3819).*constraint.*partition 1"),
    ],
)
def test_a_row_that_the_target_refuses(everywhere: Database, change: str, match: str) -> None:
    """Found when the batch is published: named, and nothing of the batch is there; once the table
    is mended the next run writes it."""
    table = everywhere
    table.query(f"ALTER TABLE t {change}")
    run = Whole(sink_of(table), "a", COLUMNS, with_null)
    run.open()
    staged = [run.stage(0, 1, 2), run.stage(1, 3, 4, 1 if "KEY" in change else 5)]
    with pytest.raises(BadRowError, match=match) as raised:
        run.publish(*staged)
    assert raised.value.applied == "nothing of this batch"
    assert ids(table) == []
    table.query("DROP TABLE t")
    table.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    again = Whole(sink_of(table), "b", COLUMNS, with_null)
    again.write(0, [1, 2], [3, 4, 1])
    assert (ids(table), left(table)) == ([1, 1, 2, 3, 4], (0, 0))


def with_null(*numbers: int) -> Rows:
    rows = rows_of(*numbers)
    texts = pa.array([None if n == 4 else f"v{n}" for n in numbers], pa.string())
    return Rows(rows.table.set_column(1, "v", texts), rows.hashes)


def test_a_sum_that_leaves_its_range(mariadb: Database) -> None:
    """Only the target knows the other summand."""
    mariadb.query("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20), n TINYINT)")
    columns = [*COLUMNS, Column("n", "tinyint")]

    def make(*numbers: int) -> Rows:
        rows = rows_of(*numbers)
        return Rows(
            rows.table.append_column("n", pa.array([100] * len(rows), pa.int8())), rows.hashes
        )

    sink = sink_of(mariadb, mode="upsert", key=["id"], merge={"n": "add"})
    run = Whole(sink, "a", columns, make)
    run.write(0, [1, 2])
    with pytest.raises(BadRowError, match=r"1264.*'n'"):
        run.write(1, [0], [2])
    assert mariadb.query("SELECT id, n FROM t ORDER BY id") == [(1, 100), (2, 100)]


def test_a_value_that_its_column_refuses_is_found_by_the_task(table: Database) -> None:
    """Staged rows have the target's types."""
    run = Whole(sink_of(table), "a", COLUMNS, with_long)
    run.open()
    _, outcome = run.try_stage(0, 1, 2)
    assert refused(outcome, "BadRowError")
    assert "row 1 of 2 of partition 0, batch 0, is refused: column 'v'" in outcome.what
    assert outcome.applied == "nothing of this batch"
    assert left(table) == (0, 0)
    run.publish()
    assert ids(table) == []


def with_long(*numbers: int) -> Rows:
    rows = rows_of(*numbers)
    return Rows(rows.table.set_column(1, "v", pa.array(["x" * 21] * len(rows))), rows.hashes)


@pytest.mark.parametrize("what", ["a row", "all rows", "what is known"])
def test_staged_rows_that_are_gone_are_not_published(table: Database, what: str) -> None:
    """A server that lost what it had acknowledged, or a hand."""
    run = whole(table)
    run.open()
    staged = [run.stage(0, 1, 2), run.stage(1, 3)]
    name = run.sink._staging.rows_table  # type: ignore[union-attr]
    table.query(
        {
            "a row": f"DELETE FROM spark_eoc_{name} WHERE id=2",
            "all rows": f"DELETE FROM spark_eoc_{name}",
            "what is known": "DELETE FROM spark_eoc_staged WHERE partition_id=0",
        }[what]
    )
    with pytest.raises(ReplayMismatchError, match="partition 0"):
        run.publish(*staged)
    assert ids(table) == []
    run.clear()
    whole(table, "b").write(0, [1, 2], [3])
    assert ids(table) == [1, 2, 3]


# -- the fence --------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["before B publishes", "after B has published"])
def test_a_zombie_never_publishes(table: Database, late: str) -> None:
    """A has staged and is stopped, B takes over, A goes on; in both orders."""
    assert zombie(whole(table, "a"), whole(table, "b"), late) == "FencedError"
    assert (ids(table), left(table)) == ([1, 2, 3], (0, 0))


def zombie(old: Whole, new: Whole, late: str) -> str:
    """What A's late publish raises."""
    old.open()
    staged = [old.stage(0, 1), old.stage(1, 2, 3)]
    new.open()
    new.clear()
    fresh = new.stage(0, 1, 2, 3)
    raised = ""
    for step in ("new", "old") if late.startswith("after") else ("old", "new"):
        try:
            new.publish(fresh) if step == "new" else old.publish(*staged)
        except (FencedError, ReplayMismatchError) as error:
            raised = type(error).__name__
    old.clear()
    new.clear()
    return raised


def late_publish(sink: MySQLSink, table: Database) -> list[int]:
    """A has staged and is stopped; B stages the same rows and publishes them; A goes on."""
    old, new = Whole(sink, "a", COLUMNS, rows_of), whole(table, "b")
    old.open()
    staged = old.stage(0, 1, 2)
    new.open()
    new.publish(new.stage(0, 1, 2))
    with suppress(FencedError):
        old.publish(staged)
    return ids(table)


def test_the_token_is_compared_when_a_batch_is_published(table: Database) -> None:
    """Under the control entry's lock, in the publishing transaction."""
    assert late_publish(sink_of(table), table) == [1, 2]


def test_a_publish_that_asks_for_no_token_doubles_rows(table: Database) -> None:
    """Red without the rule."""
    assert late_publish(broken("publishes_without_token", table), table) == [1, 1, 2, 2]


def test_a_zombie_stages_nothing_and_clears_nothing(table: Database) -> None:
    """Its tasks are refused, and what its successor has staged stays."""
    old, new = whole(table, "a"), whole(table, "b")
    old.open()
    mine = old.stage(0, 7)
    new.open()
    fresh = new.stage(0, 1)
    assert refused(old.try_stage(1, 8)[1], "FencedError")
    old.clear()
    assert left(table) == (1, 1)
    new.publish(fresh)
    with pytest.raises(FencedError):
        old.publish(mine)
    assert ids(table) == [1]


def test_a_straggler_of_a_complete_batch_stages_nothing(table: Database) -> None:
    """A task's copy that is still on its way when the batch is published."""
    run = whole(table)
    run.open()
    run.publish(run.stage(0, 1))
    assert refused(run.try_stage(0, 1)[1], "FencedError")
    run.clear()
    assert left(table) == (0, 0)


def test_a_driver_stopped_while_it_publishes(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends its idle transaction, and the next run goes on."""
    monkeypatch.setattr("spark_eoc.sinks.mysql.connection.TIME_LIMIT_S", 2)
    old, new = whole(table, "a", retry_minutes=0), whole(table, "b")
    old.open()
    staged = old.stage(0, 1, 2)
    go_on, reached = threading.Event(), threading.Event()

    def stop(name: str) -> None:
        if name == "mysql.publish_before_commit" and not reached.is_set():
            reached.set()
            assert go_on.wait(60)

    monkeypatch.setattr("spark_eoc.sinks.mysql.staging.hit", stop)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(old.publish, staged)
        assert reached.wait(30)
        new.write(0, [1, 2])
        go_on.set()
        with pytest.raises((FencedError, SinkUnavailableError)):
            late.result(30)
    assert ids(table) == [1, 2]


# -- the table that rows are staged in --------------------------------------------------------


def test_the_target_and_the_frame_may_change_between_runs(everywhere: Database) -> None:
    """A column that is added or has another type; what another run has staged stays."""
    table = everywhere
    old = whole(table, "a")
    old.open()
    staged = old.stage(0, 1)
    table.query("ALTER TABLE t MODIFY v VARCHAR(30) CHARACTER SET latin1, ADD n INT")
    columns = [Column("n", "int"), *COLUMNS]
    sink = sink_of(table)
    assert (sink.check(columns), sink.check_batch()) == (f"{table.name}.t", None)
    old.publish(staged)
    old.clear()

    def make(*numbers: int) -> Rows:
        rows = rows_of(*numbers)
        return Rows(rows.table.add_column(0, "n", pa.array(numbers, pa.int32())), rows.hashes)

    Whole(sink, "b", columns, make).write(1, [2], [3])
    whole(table, "c").write(2, [4])
    assert table.query("SELECT * FROM t ORDER BY id") == [
        (1, "v1", None), (2, "v2", 2), (3, "v3", 3), (4, "v4", None)
    ]  # fmt: skip


def test_a_column_whose_case_alone_was_changed_is_staged_as_before(everywhere: Database) -> None:
    """To the server it is the same column; also where its type is another now."""
    table = everywhere
    whole(table, "a").write(0, [1])
    for batch_id, change in enumerate(("v V VARCHAR(20)", "V v VARCHAR(30)"), 1):
        table.query(f"ALTER TABLE t CHANGE {change}")
        whole(table, f"run-{batch_id}").write(batch_id, [batch_id + 1])
    assert ids(table) == [1, 2, 3]


def test_a_strangers_table_is_refused(table: Database) -> None:
    """By name; it is not changed."""
    name = whole(table).sink._staging.rows_table  # type: ignore[union-attr]
    table.query(f"DROP TABLE spark_eoc_{name}")
    table.query(f"CREATE TABLE spark_eoc_{name} (x INT PRIMARY KEY)")
    with pytest.raises(ConfigError, match="was not made to stage rows"):
        whole(table)
    table.query("ALTER TABLE t ADD `spark_EOC_row` BIGINT")
    with pytest.raises(ConfigError, match="has a name that staged rows need"):
        Whole(sink_of(table), "a", [*COLUMNS, Column("spark_EOC_row", "bigint")], rows_of)


def test_two_writers_stage_for_one_target(table: Database) -> None:
    """They share the table of rows, and delete nothing of each other."""
    run = whole(table)
    run.open()
    staged = run.stage(0, 1)
    other = MySQLWriter(table.url(), "t", atomicity="batch")._sink
    other.check(COLUMNS)
    other.check_batch()
    other.clear_staged("another")
    assert left(table) == (1, 1)
    run.publish(staged)
    assert ids(table) == [1]


def test_the_ledger_may_lie_in_another_database(table: Database) -> None:
    """So do the staged rows."""
    ledger = f"{table.name}_l"
    table.query(f"CREATE DATABASE {ledger}")
    try:
        whole(table, ledger=f"{ledger}.eoc").write(0, [1], [2])
        assert ids(table) == [1, 2]
        names = [r[0] for r in table.query(f"SHOW TABLES IN {ledger} LIKE 'eoc\\_%'")]
        assert len(names) == len({"control", "units", "history", "staged", "rows"})
        assert all(name.startswith("eoc_") for name in names)
    finally:
        table.query(f"DROP DATABASE {ledger}")


# -- crashes ----------------------------------------------------------------------------------

POINTS = [
    n for n in FAILPOINTS if n.startswith(("mysql.publish", "mysql.before_st", "mysql.after_st"))
]


@pytest.mark.parametrize("point", POINTS)
def test_a_reader_never_sees_half_a_batch(
    table: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, point: str
) -> None:
    """It looks all the time, while each batch is cut off at the point and written by the next
    run, split otherwise and in another order."""
    seen, stop = set(), threading.Event()

    def read() -> None:
        connection = table.connect()
        with connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT COUNT(*) FROM t")
                seen.add(cursor.fetchone()[0])

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for batch_id in range(4):
                numbers = range(batch_id * 300, batch_id * 300 + 300)
                (tmp_path / f"{point}.hits").unlink(missing_ok=True)
                monkeypatch.setenv(ENVIRONMENT, f"{point}=raise")
                with pytest.raises(FailpointError):
                    whole(table, f"a{batch_id}").write(batch_id, numbers[:200], numbers[200:])
                monkeypatch.delenv(ENVIRONMENT)
                again = whole(table, f"b{batch_id}")
                if point != "mysql.publish_after_commit":
                    again.write(batch_id, numbers[150:][::-1], numbers[:150])
                again.clear()
        finally:
            stop.set()
        reading.result(30)
    assert {n % 300 for n in seen} == {0}
    assert len(seen) > 2, "the reader looked too seldom"
    assert (ids(table), left(table)) == ([*range(1200)], (0, 0))
