"""It can fail: each variant with one rule left out is caught, and by which check of the checker.

Every scenario is run with the product too, and then nothing is found. The variants are those of
the sinks' and the buffer's own tests; here only the checker judges, from what was sent, the rows
in the server and the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.buffer import BufferOptions, LineBlock, LogWriter
from spark_eoc.buffer.files import Files
from spark_eoc.errors import SparkEocError
from spark_eoc.failpoints import DIRECTORY
from spark_eoc.testing.checker import (
    BUFFER_LOST,
    LOST,
    ROWS_WITHOUT_LEDGER,
    TWICE,
    Row,
    Verdict,
    check,
)
from spark_eoc.testing.evidence import mysql_ledger, read_buffer, redis_ledger
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.transcript import Transcript
from tests.buffer.file_system import CHOICES, RecordingDisk, crash
from tests.buffer.test_power_cut import PublishesFirst
from tests.sinks.broken import KINDS
from tests.sinks.mysql import test_units as units
from tests.sinks.mysql import test_whole_batches as whole
from tests.sinks.redis.broken import LedgerApartSink, PositionalSink, TokenlessSink
from tests.sinks.redis.driving import Run, fail_after_chunk, redis_sink, rows_of

Scenario = Callable[[Any, Database, pytest.MonkeyPatch], object]


def two_partitions(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
    """A batch of two partitions, nothing else."""
    run = units.Run(sink, "a")
    unit = run.open()
    run.apply(unit(0), 1, 2)
    run.apply(unit(1), 3, 4)
    run.close(p0=(1, 2), p1=(3, 4))


def another_split(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
    """Partition 0 is applied, then the batch is run again with the partitions exchanged."""
    units.another_split_on_replay(sink, table)


def crash_between(sink: Any, table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task dies when its rows are sent and its entry is not; then again."""
    units.crash_after_rows(sink, table, monkeypatch)


def late_unit(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
    """A run that was stopped goes on after another has written its batch."""
    units.late_unit_of_the_old_run(sink, table)


def open_during_unit(where: str) -> Scenario:
    """A new owner opens while a unit of the old one is between its check and COMMIT."""

    def scenario(sink: Any, table: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        units.owner_changes_while_a_unit_commits(sink, table, monkeypatch, where)

    return scenario


def straggler(token: str | None) -> Scenario:
    """A task of a run's first call goes on after its second call."""

    def scenario(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
        units.straggler_of_the_same_run(sink, table, token)

    return scenario


def copies_of_tasks(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
    """In batch atomicity three copies of each task have staged their rows, one comes back."""
    whole.copies_of_tasks(sink, table)


def late_publish(sink: Any, table: Database, _: pytest.MonkeyPatch) -> None:
    """A run that has staged a whole batch was stopped, and goes on when another has published."""
    whole.late_publish(sink, table)


#: Variant: (scenario, rows sent, what the checker finds). A scenario with the product stops where
#: a rule refuses to go on; what is not written then is written by the run that comes after.
MYSQL: dict[str, tuple[Scenario, int, set[str]]] = {
    "ledger_in_its_own_transaction": (crash_between, 2, {TWICE, ROWS_WITHOUT_LEDGER}),
    "key_without_the_partition": (two_partitions, 4, {LOST, ROWS_WITHOUT_LEDGER}),
    "no_fingerprint": (another_split, 4, {LOST, TWICE}),
    "no_token": (late_unit, 3, {TWICE, ROWS_WITHOUT_LEDGER}),
    "plain_read_at_start": (open_during_unit("mysql.after_rows"), 3, {TWICE}),
    "plain_read_at_end": (open_during_unit("mysql.before_commit"), 3, {TWICE}),
    "publishes_all_staged": (copies_of_tasks, 4, {TWICE, ROWS_WITHOUT_LEDGER}),
    "publishes_without_token": (late_publish, 2, {TWICE, ROWS_WITHOUT_LEDGER}),
    "one_token_a_run": (straggler("t" * 32), 3, {TWICE}),
}


@pytest.fixture
def table(mariadb: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The sink of the scenarios, and failpoints that are counted anew."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    mariadb.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    return mariadb


def judge(database: Database, sent: int) -> Verdict:
    rows = [Row(b"%d" % number) for (number,) in database.query("SELECT id FROM t")]
    connection = database.connect()
    ledger = mysql_ledger(connection)
    connection.close()
    return check([Transcript.of("p", [b"%d" % n for n in range(1, sent + 1)])], rows, ledger=ledger)


def test_no_variant_is_left_out():
    """Every variant that the sinks' tests ship is judged here."""
    assert set(MYSQL) == set(KINDS)


@pytest.mark.parametrize("variant", MYSQL)
def test_the_checker_catches_a_broken_mysql_writer(
    variant: str, table: Database, monkeypatch: pytest.MonkeyPatch
):
    """The checks named in the table find something, and no other does."""
    scenario, sent, expected = MYSQL[variant]
    sink = units.good(table) if variant == "one_token_a_run" else units.broken(variant, table)
    scenario(sink, table, monkeypatch)
    found = judge(table, sent)
    assert found.checks == expected, str(found)


@pytest.mark.parametrize("variant", [name for name in MYSQL if name != "no_fingerprint"])
def test_the_product_in_the_same_scenario_doubles_and_invents_nothing(
    variant: str, table: Database, monkeypatch: pytest.MonkeyPatch
):
    """Where a rule refuses to go on rows may still be missing, but ledger and rows agree.

    Another split is refused by the driver already, before the tasks of this scenario would run.
    """
    scenario, sent, _ = MYSQL[variant]
    scenario = straggler(None) if variant == "one_token_a_run" else scenario
    scenario(units.good(table), table, monkeypatch)
    assert judge(table, sent).checks <= {LOST}


def redis_verdict(client: Any, run: Run, sent: list[bytes], ledger: str) -> Verdict:
    prefix = run.writer_id.removesuffix("{k}").encode()
    rows = []
    for key in client.scan_iter(prefix + b"*"):
        rows += [Row(key[len(prefix) :])] * int(client.hget(key, "n"))
    return check([Transcript.of("p", sent)], rows, ledger=redis_ledger(client, ledger=ledger))


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (None, set()),
        (LedgerApartSink, {TWICE, ROWS_WITHOUT_LEDGER}),
        (PositionalSink, {LOST}),
        (TokenlessSink, {TWICE}),
    ],
)
def test_the_checker_catches_a_broken_redis_writer(
    variant: Any,
    expected: set[str],
    redis_server: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """Counters: a chunk is applied, the task dies, the rows come back in another order, and a
    task of the first call goes on at the end. The product is clean, each variant is not."""
    sent = [b"%d" % n for n in range(40)]
    data = {"k": list(range(40)), "n": [1] * 40}
    back = {name: values[::-1] for name, values in data.items()}
    good = redis_sink(
        redis_server.url(), f"{prefix}:{{k}}", "hincrby", ledger=f"{prefix}_ledger", chunk_rows=10
    )
    sink = good if variant is None else variant(good.target)
    first, second = Run(sink, f"{prefix}:{{k}}", "run-1"), Run(sink, f"{prefix}:{{k}}", "run-2")
    first.open(0)
    fail_after_chunk(first, rows_of(data), monkeypatch)
    second.open(0)
    second.apply(back)
    # Another split of the same rows, under the token of the first run.
    first.apply({"k": [0, 1], "n": [1, 1]}, partition=7)
    try:
        second.close()
    except SparkEocError:
        assert expected
    found = redis_verdict(redis_server.client(), second, sent, f"{prefix}_ledger")
    assert found.checks == expected, str(found)


@pytest.mark.parametrize(
    ("writer", "expected"), [(LogWriter, set()), (PublishesFirst, {BUFFER_LOST, LOST})]
)
def test_the_checker_catches_an_acknowledgement_before_the_fsync(
    tmp_path: Path, writer: type[LogWriter], expected: set[str]
):
    """SIGKILL can't show it: the power goes, and what was not synced is gone."""
    disk = RecordingDisk(tmp_path)
    log = writer.open(tmp_path / "log", BufferOptions(), files=Files(disk))
    lines = [b"line %d" % n for n in range(20)]
    for line in lines:
        log.append(LineBlock.from_lines([line]), receive_time_us=1)
        acknowledged = log.sync()
    # Not closed: the power goes here.
    crash(disk.operations, CHOICES["nothing"], 1, tmp_path / "after")
    there = read_buffer(tmp_path / "after" / "log")
    found = check(
        [Transcript.of("p", lines, acknowledged)], [Row(each.value) for each in there], buffer=there
    )
    assert acknowledged == 20
    assert found.checks == expected, str(found)
