"""Units, tokens and interleavings on MariaDB and MySQL, step by step and without Spark.

Each rule of the ledger has its interleaving here, and a writer without the rule that loses or
doubles rows by it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import FencedError, ReplayMismatchError, SinkUnavailableError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Call,
    Fingerprint,
    Outcome,
    Refused,
    Unit,
)
from spark_eoc.sinks.ledger import Open, decide_close, decide_open
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import PlainReadAtEnd, broken_writer

COLUMNS = [Column("id", "bigint"), Column("v", "string")]


def rows_of(*ids: int) -> Rows:
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids]})
    return Rows(table, pa.chunked_array([pa.array([i * 7919 for i in ids], pa.int64())]))


class Run:
    """One run of a query on one sink, its calls made by hand."""

    def __init__(self, sink: MySQLSink, run_id: str) -> None:
        self.sink, self.run_id = sink, run_id
        self.sink.check(COLUMNS)
        self.token: Callable[[], str] = lambda: secrets.token_hex(16)
        self.call: Call | None = None

    def open(self, batch_id: int = 0) -> Callable[[int], Unit]:
        """Opens a batch; the result makes the units of this call."""
        first = self.call is None
        call = Call("w", "q", self.run_id, batch_id, self.token(), first)
        decision = self.sink.open_batch("w", batch_id, lambda view: decide_open(view, call))
        assert isinstance(decision, Open)
        self.call, epoch = call, decision.control.epoch
        return lambda partition: Unit("w", partition, batch_id, epoch, call.token, Fingerprint())

    def apply(self, unit: Unit, *ids: int) -> Outcome:
        rows = rows_of(*ids)
        return self.sink.apply(replace(unit, fingerprint=rows.fingerprint()), rows)

    def close(self, **reported: tuple[int, ...]) -> None:
        """Closes the newest call's batch with the ids that each partition wrote."""
        call = self.call
        assert call is not None
        prints = {int(p[1:]): rows_of(*ids).fingerprint() for p, ids in reported.items()}
        self.sink.close_batch(
            "w",
            call.batch_id,
            lambda view, units: decide_close(view, units, prints, call, len(prints)),
        )


@pytest.fixture(params=["mariadb", "mysql"])
def table(request: pytest.FixtureRequest, database_on: Callable[[str], Database]) -> Database:
    database = database_on(request.param)
    database.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    return database


def ids(database: Database) -> list[int]:
    return [row[0] for row in database.query("SELECT id FROM t ORDER BY id")]


def good(database: Database, **arguments: Any) -> MySQLSink:
    return MySQLWriter(database.url(), "t", **arguments)._sink  # type: ignore[return-value]


def broken(kind: str, database: Database) -> MySQLSink:
    return broken_writer(kind, database.url(), "t")._sink  # type: ignore[return-value]


def refused(outcome: Outcome, error: str) -> bool:
    return isinstance(outcome, Refused) and outcome.error == error


def test_a_unit_is_applied_once(table: Database) -> None:
    """A repeat is AlreadyApplied, other rows are a mismatch, and neither leaves a row."""
    run = Run(good(table), "a")
    unit = run.open()
    assert run.apply(unit(0), 1, 2, 3) == Applied()
    assert run.apply(unit(0), 3, 2, 1) == AlreadyApplied()
    assert refused(run.apply(unit(0), 1, 2, 4), "ReplayMismatchError")
    assert ids(table) == [1, 2, 3]
    run.close(p0=(1, 2, 3))


def test_close_refuses_a_unit_that_no_task_reported(table: Database) -> None:
    """A straggler's unit beside the reported ones is doubled rows."""
    run = Run(good(table), "a")
    unit = run.open()
    run.apply(unit(0), 1)
    run.apply(unit(1), 2)
    with pytest.raises(ReplayMismatchError):
        run.close(p0=(1,))
    run.close(p0=(1,), p1=(2,))


def test_two_copies_of_a_task_at_the_same_time(table: Database) -> None:
    """E6: one applies, the other finds it done; with a unique key it meets error 1062 first,
    which is not taken for a bad row."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    run = Run(good(table), "a")
    for batch_id in range(5):
        unit = run.open(batch_id)(0)
        numbers = range(batch_id * 100, batch_id * 100 + 50)
        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(lambda _, u=unit, n=numbers: run.apply(u, *n), range(4)))
        assert sorted(type(o).__name__ for o in outcomes) == ["AlreadyApplied"] * 3 + ["Applied"]
        run.close(p0=tuple(numbers))
    assert len(ids(table)) == 250


def late_unit_of_the_old_run(sink: MySQLSink, table: Database) -> list[int]:
    """A splits batch 0 in two and is slow; B splits it in one and completes it; A goes on."""
    old, new = Run(sink, "a"), Run(sink, "b")
    late = old.open()
    unit = new.open()
    new.apply(unit(0), 1, 2, 3)
    old.apply(late(1), 2, 3)
    with_suppressed_mismatch(lambda: new.close(p0=(1, 2, 3)))
    return ids(table)


def with_suppressed_mismatch(step: Callable[[], None]) -> None:
    try:
        step()
    except ReplayMismatchError:
        return


def test_a_late_unit_of_an_old_run_is_fenced(table: Database) -> None:
    """The token is compared in the unit's own transaction."""
    assert late_unit_of_the_old_run(good(table), table) == [1, 2, 3]


def test_without_the_token_a_late_unit_doubles_rows(table: Database) -> None:
    """Red without the rule."""
    assert late_unit_of_the_old_run(broken("no_token", table), table) == [1, 2, 2, 3, 3]


def straggler_of_the_same_run(sink: MySQLSink, table: Database, token: str | None) -> list[int]:
    """A call fails, its run calls again for the same batch, split otherwise; then a task of the
    first call goes on."""
    run = Run(sink, "a")
    if token is not None:
        run.token = lambda: token
    late = run.open()
    unit = run.open()
    run.apply(unit(0), 1, 2, 3)
    run.apply(late(1), 2, 3)
    return ids(table)


def test_each_call_has_its_own_token(table: Database) -> None:
    """A straggler of the same run must not pass."""
    assert straggler_of_the_same_run(good(table), table, None) == [1, 2, 3]


def test_with_one_token_a_run_a_straggler_doubles_rows(table: Database) -> None:
    """Red without the rule."""
    assert straggler_of_the_same_run(good(table), table, "t" * 32) == [1, 2, 2, 3, 3]


def owner_changes_while_a_unit_commits(
    sink: MySQLSink, table: Database, monkeypatch: pytest.MonkeyPatch, where: str
) -> list[int]:
    """A's unit is between its control read and COMMIT; B opens, and writes the batch in one."""
    old, new = Run(sink, "a"), Run(good(table), "b")
    late = old.open()
    reached, go_on = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == where and threading.current_thread().name.startswith("late"):
            reached.set()
            go_on.wait(30)

    monkeypatch.setattr("spark_eoc.sinks.mysql.sink.hit", pause)
    with ThreadPoolExecutor(2, thread_name_prefix="late") as pool:
        unit_a = pool.submit(old.apply, late(1), 2, 3)
        assert reached.wait(30)
        opened = ThreadPoolExecutor(1, thread_name_prefix="new").submit(_open_and_read, new)
        # With the shared lock, B can't finish opening before A's unit is committed; without it, B
        # has opened and read the units by now.
        finished = _finished(opened, 1.0)
        go_on.set()
        unit_a.result(30)
        unit, seen = opened.result(30)
    assert finished is not (seen > 0)
    if not seen:
        new.apply(unit(0), 1, 2, 3)
    return ids(table)


def _open_and_read(run: Run) -> tuple[Callable[[int], Unit], int]:
    unit = run.open()
    return unit, len(run.sink.units("w", 0))


def _finished(future: Any, seconds: float) -> bool:
    try:
        future.result(seconds)
    except TimeoutError:
        return False
    return True


def test_a_new_owner_sees_every_unit_that_the_old_one_commits(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open waits for a unit that holds the shared lock, and reads units after it: what it
    sees is all there will ever be, so the batch is not written a second time."""
    sink = good(table)
    assert owner_changes_while_a_unit_commits(sink, table, monkeypatch, "mysql.before_commit") == [
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("kind", "where"),
    [("plain_read_at_end", "mysql.before_commit"), ("plain_read_at_start", "mysql.after_rows")],
)
def test_a_plain_read_of_the_control_entry_doubles_rows(
    table: Database, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    """Red without the lock: B opens, reads no units, and both write."""
    assert issubclass(PlainReadAtEnd, MySQLSink)
    found = owner_changes_while_a_unit_commits(broken(kind, table), table, monkeypatch, where)
    assert found == [1, 2, 2, 3, 3]


def crash_after_rows(
    sink: MySQLSink, table: Database, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The task dies when its rows are sent and its entry is not; the batch is run again."""
    run = Run(sink, "a")
    unit = run.open()
    monkeypatch.setenv(ENVIRONMENT, "mysql.after_rows=raise")
    with pytest.raises(FailpointError):
        run.apply(unit(0), 1, 2)
    monkeypatch.delenv(ENVIRONMENT)
    again = Run(sink, "b")
    again.apply(again.open()(0), 1, 2)
    return ids(table)


@pytest.fixture(autouse=True)
def _fresh_failpoints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))


def test_rows_and_entry_are_one_transaction(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between them leaves neither."""
    assert crash_after_rows(good(table), table, monkeypatch) == [1, 2]


def test_with_the_ledger_in_its_own_transaction_rows_double(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the rule."""
    sink = broken("ledger_in_its_own_transaction", table)
    assert crash_after_rows(sink, table, monkeypatch) == [1, 1, 2, 2]


def another_split_on_replay(sink: MySQLSink, table: Database) -> list[int]:
    """Partition 0 of 2 is applied; run again, the batch is split otherwise, with equal counts."""
    run = Run(sink, "a")
    run.apply(run.open()(0), 1, 2)
    again = Run(sink, "b")
    unit = again.open()
    again.apply(unit(0), 3, 4)
    again.apply(unit(1), 1, 2)
    return ids(table)


def test_another_split_on_replay_is_refused_by_the_fingerprint(table: Database) -> None:
    """Equal counts say nothing; the driver refuses earlier, and the task refuses too."""
    run = Run(good(table), "a")
    run.apply(run.open()(0), 1, 2)
    again = Run(good(table), "b")
    assert refused(again.apply(again.open()(0), 3, 4), "ReplayMismatchError")
    assert ids(table) == [1, 2]


def test_without_the_fingerprint_rows_are_lost_and_doubled(table: Database) -> None:
    """Red without the rule: 3 and 4 are lost, 1 and 2 are twice."""
    assert another_split_on_replay(broken("no_fingerprint", table), table) == [1, 1, 2, 2]


def test_with_a_key_without_the_partition_rows_are_lost(table: Database) -> None:
    """Red without the rule: the second partition takes the first's entry for its own."""
    run = Run(broken("key_without_the_partition", table), "a")
    unit = run.open()
    run.apply(unit(0), 1, 2)
    run.apply(unit(1), 3, 4)
    assert ids(table) == [1, 2]


def test_a_lock_wait_timeout_leaves_nothing_of_the_unit(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: error 1205 rolls back one statement only; the unit rolls back whole, tries again, and
    says who blocks when its budget is spent."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    monkeypatch.setattr("spark_eoc.sinks.mysql.sink.STATEMENT_BYTES", 60)
    monkeypatch.setattr("spark_eoc.sinks.mysql.connection.TIME_LIMIT_S", 2)
    blocker = table.connect(autocommit=False)
    blocker.cursor().execute("INSERT INTO t VALUES (3, 'theirs')")
    run = Run(good(table, retry_minutes=0.02), "a")
    unit = run.open()
    outcome = run.apply(unit(0), 1, 2, 3, 4)
    assert isinstance(outcome, Refused)
    assert outcome.error == SinkUnavailableError.__name__
    assert f"connection {blocker.thread_id()}" in outcome.what
    assert ids(table) == []
    blocker.rollback()
    assert run.apply(unit(0), 1, 2, 3, 4) == Applied()
    assert ids(table) == [1, 2, 3, 4]


def test_a_lost_answer_to_commit_is_not_a_bad_row(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit is committed, the connection breaks before the answer, and with a unique key the
    retry would meet its own rows: the unit entry is looked at first."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    import pymysql  # noqa: PLC0415

    real, cut = pymysql.connections.Connection.query, threading.Event()

    def query(self: Any, sql: Any, unbuffered: bool = False) -> Any:
        answer = real(self, sql, unbuffered)
        if sql == "COMMIT" and cut.is_set():
            cut.clear()
            raise pymysql.OperationalError(2013, "Lost connection to server during query")
        return answer

    monkeypatch.setattr(pymysql.connections.Connection, "query", query)
    run = Run(good(table), "a")
    unit = run.open()
    cut.set()
    assert run.apply(unit(0), 1, 2) == AlreadyApplied()
    assert ids(table) == [1, 2]
    cut.set()
    run.close(p0=(1, 2))
    cut.set()
    assert run.open(1)(0).batch_id == 1


def test_opposite_orders_of_keys_end_well(table: Database) -> None:
    """M1: four partitions update the same keys in opposite order; dead-locks are tried again."""
    table.query("ALTER TABLE t ADD PRIMARY KEY (id)")
    sink = good(table, mode="upsert", key=["id"])
    sink.arrange = lambda rows: rows  # type: ignore[method-assign]  # as if a trigger reordered
    run = Run(sink, "a")
    unit = run.open()
    numbers = list(range(400))
    orders = [numbers if p % 2 else numbers[::-1] for p in range(4)]
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda p: run.apply(unit(p), *orders[p]), range(4)))
    assert outcomes == [Applied()] * 4
    assert ids(table) == numbers


def test_a_run_stopped_before_its_first_open_does_not_fence(table: Database) -> None:
    """E8: A's first call began before B took over, and goes on while B works."""
    sink = good(table)
    new = Run(sink, "b")
    new.open()
    call = Call("w", "q", "a", 0, "t" * 32, first=True, age_us=60_000_000)
    with pytest.raises(FencedError):
        sink.open_batch("w", 0, lambda view: decide_open(view, call))


def test_a_stopped_run_holds_the_new_one_up_for_the_time_limit_only(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A is stopped inside its unit with the control entry locked; the server ends its
    transaction after the time limit, and B opens."""
    monkeypatch.setattr("spark_eoc.sinks.mysql.connection.TIME_LIMIT_S", 2)
    sink = good(table)
    old, new = Run(sink, "a"), Run(sink, "b")
    unit = replace(old.open()(1), fingerprint=rows_of(2).fingerprint())
    from spark_eoc.sinks.mysql.connection import transaction  # noqa: PLC0415

    with transaction(sink.address) as connection:
        sink._write(connection, rows_of(2))
        assert sink._enter(connection, unit) == Applied()
        new.apply(new.open()(0), 1)
        with pytest.raises(Exception, match=r"idle|gone away|Lost connection|4031|1927"):
            connection.query("COMMIT")
    assert ids(table) == [1]


def test_a_unit_that_takes_longer_than_the_budget_may_still_meet_a_deadlock(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The budget is for errors that don't pass, not for a long unit before the first of them."""
    sink = good(table, retry_minutes=0.005)
    unit = Run(sink, "r").open()(0)
    attempt, tries = sink._attempt, []

    def slow(*arguments: Any) -> Outcome:
        tries.append(1)
        if len(tries) == 1:
            time.sleep(0.4)
            raise pymysql.err.OperationalError(1213, "Deadlock found")
        return attempt(*arguments)

    monkeypatch.setattr(sink, "_attempt", slow)
    rows = rows_of(1, 2)
    assert sink.apply(replace(unit, fingerprint=rows.fingerprint()), rows) == Applied()
    assert ids(table) == [1, 2]
