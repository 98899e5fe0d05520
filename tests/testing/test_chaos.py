"""A query of anybody's under kills: the writer's is exactly once, and what the report is made of.

That a plain query is found out is shown by the README's own example, see test_readme.py.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.testing import chaos
from spark_eoc.testing.chaos import (
    _SUDDEN,
    SCRIPT_KILLS,
    Aim,
    Chaos,
    _Course,
    aims,
    require_empty,
    verdict,
)
from spark_eoc.testing.chaos_fixture import ChaosRunner, _servers
from spark_eoc.testing.daemons import ReceiverDaemon
from spark_eoc.testing.feeds import open_feed
from spark_eoc.testing.history import BatchLife, History
from spark_eoc.testing.inputs import FolderInput, SocketInput, made_up
from spark_eoc.testing.kills import Instants, Kill, KillSchedule
from spark_eoc.testing.page import page
from spark_eoc.testing.place import Place
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.report import ChaosReport
from spark_eoc.testing.rows import FunctionRows, KeyRows, QueryRows
from spark_eoc.testing.servers import MySQL, Redis
from spark_eoc.testing.supervisor import Event, Supervisor
from spark_eoc.testing.transcript import Transcript
from spark_eoc.testing.wait import until


def with_writer(spark, place):
    import spark_eoc  # noqa: PLC0415  this function runs in a process of its own

    lines = spark.readStream.option("maxFilesPerTrigger", 2).text(place.input)
    writer = spark_eoc.MySQLWriter(place.mysql_url, "clicks")
    lines.writeStream.foreachBatch(writer).option("checkpointLocation", place.checkpoint).start()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_with_the_writer_is_exactly_once(eoc_chaos: ChaosRunner, mariadb: Database) -> None:
    """A function as a query, a file source, MariaDB killed as well."""
    mariadb.query("CREATE TABLE clicks (value VARCHAR(100))")
    rows = lambda: mariadb.query("SELECT value FROM clicks")  # noqa: E731
    report = eoc_chaos(with_writer, rows, mariadb=mariadb, kills=6)
    report.require_exactly_once()
    assert report.starts > 3


def test_a_batch_that_has_no_commit_when_a_run_begins_is_run_again(tmp_path: Path) -> None:
    """As Spark does it; another end for the same batch is noted."""
    history = History({"q": tmp_path})
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    history.note(Event(0, "start", "run 1 started"))
    for number in range(3):
        (tmp_path / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"offset":{number}}}\n')
    for number in range(2):
        (tmp_path / "commits" / str(number)).write_text("v1\n{}")
    history.watches["q"].look()
    assert history.under_way
    assert not history.idle
    strike = KillSchedule(1, count=1, kinds=[Kill.JVM])[0]
    history.note(Event(0, "kill", "kill 1", strike))  # type: ignore[arg-type]
    history.note(Event(0, "start", "run 2 started"))
    (tmp_path / "offsets/2").write_text('v1\n{}\n{"offset":7}\n')
    history.watches["q"].look()
    (tmp_path / "commits/2").write_text("v1\n{}")
    history.close()
    lives = history.watches["q"].batches
    assert [life.repeated for life in lives.values()] == [False, False, True]
    assert lives[2].other_offsets == ('{"offset":7}',)
    assert history.idle
    assert [run.end for run in history.runs] == ["jvm", "the end"]


def given_in(folder: Path) -> FunctionRows:
    """A sink that holds what has appeared in the folder: a query that never fails."""
    files = lambda: sorted(folder.glob("*.txt"))  # noqa: E731
    return FunctionRows(lambda: [row for file in files() for row in file.read_bytes().splitlines()])


@pytest.mark.parametrize("commits", [0, 1])
def test_a_query_that_never_commits_its_last_batch_has_not_gone_on(
    tmp_path: Path, commits: int
) -> None:
    """Though all rows are there, it is stuck: it may end with an error at each start."""
    checkpoint = tmp_path / "checkpoint"
    for name, count in (("offsets", 1), ("commits", commits)):
        (checkpoint / name).mkdir(parents=True)
        for number in range(count):
            (checkpoint / name / str(number)).write_text("v1\n{}\n0")
    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput(made_up(5, seed=1), tmp_path / "input"),
        rows=given_in(tmp_path / "input"),
        kills=0,
        checkpoints={"query": checkpoint},
        settle_s=0.5,
    ).run()
    assert report.exactly_once is bool(commits)
    assert commits or "has no commit after 0.5 s" in (report.stuck or "")


def test_rows_of_a_run_before_are_not_taken_for_those_of_this_one(tmp_path: Path) -> None:
    """A seed makes up the same lines again: a query that wrote nothing passed for exactly once."""
    lines = made_up(5, seed=1)
    course = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput(lines, tmp_path / "input"),
        rows=FunctionRows(lambda: lines),
        kills=0,
        settle_s=0.5,
    )
    with pytest.raises(ConfigError, match="5 rows are in the sink before"):
        course.run()


def no_such_table() -> list[bytes]:
    raise LookupError("no table 'clikcs'")


@pytest.mark.parametrize("kills", [0, 1])
def test_rows_that_cannot_be_read_are_not_lost_and_the_report_says_why(
    tmp_path: Path, kills: int
) -> None:
    """A misspelt query of the user's; all lines looked lost, and the error was never shown."""
    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput(made_up(5, seed=1), tmp_path / "input"),
        rows=FunctionRows(no_such_table),
        kills=kills,
        settle_s=0.2,
        progress_s=0.2,
    ).run()
    assert not report.exactly_once
    assert report.verdict.clean
    assert "the sink can't be read: LookupError: no table 'clikcs'" in str(report)


def test_an_input_that_fails_is_named_at_once(tmp_path: Path) -> None:
    """The run waited for minutes, and said that nothing came."""

    class Full(FolderInput):
        def _write(self, lines: Sequence[bytes]) -> None:
            raise OSError(28, "No space left on device")

    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=Full(made_up(5, seed=1), tmp_path / "input"),
        rows=FunctionRows(list),
        kills=1,
        progress_s=10,
    ).run()
    assert "the input ended: OSError: [Errno 28] No space" in str(report.stuck)
    assert report.history.seconds < 10


@pytest.mark.parametrize("value", [b"", "", ("", None), 7, bytearray(b"x")])
def test_what_a_line_is_expected_as_may_be_what_a_row_may_be(tmp_path: Path, value: Any) -> None:
    """An empty value was taken for none, and a str for another value than its bytes."""
    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput([b"x", b"none"] * 2, tmp_path / "input"),
        rows=FunctionRows(
            lambda: [
                value for row in given_in(tmp_path / "input").values().elements() if row == b"x"
            ]
        ),
        kills=0,
        expect=lambda line: value if line == b"x" else None,
        settle_s=0.2,
    ).run()
    report.require_exactly_once()
    assert report.verdict.sizes["announced"] == report.verdict.sizes["in_sink"] == 2


@pytest.mark.parametrize(
    ("lines", "kills", "message"),
    [
        ([b"a", b"b"], 3, "2 lines are too few for 3 kills.* at least 8"),
        ([], 0, "0 lines are too few for 0 kills"),
        ([b"a", b"b\n"], 0, "line 2 holds a line break: b'b"),
    ],
)
def test_lines_that_no_run_can_be_made_of_are_refused(
    eoc_chaos: ChaosRunner, lines: list[bytes], kills: int, message: str
) -> None:
    """Before anything is started: too few ended as a query that makes no progress, lines as a file
    gives them as lost and invented rows."""
    with pytest.raises(ConfigError, match=message):
        eoc_chaos(__file__, list, lines=lines, kills=kills, kinds=[Kill.JVM], settle_s=0.2)


def test_a_run_that_has_ended_is_not_stopped_for_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a kill is aimed the run may end by itself, and its number may be another program's."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/0").write_text("v1\n{}\n0")
    course = _Course(
        Chaos(
            command=["true"],
            folder=tmp_path,
            input=FolderInput(made_up(9, seed=1), tmp_path / "input"),
            rows=FunctionRows(list),
            kills=1,
            checkpoints={"query": tmp_path},
        )
    )
    signalled: list[int] = []
    monkeypatch.setattr(chaos, "_signal", lambda pids, _: signalled.extend(pids))
    first, second = (SimpleNamespace(pids=lambda _, pid=pid: [pid]) for pid in (1, 2))

    def restarted(_: float) -> None:
        if supervisor.run is second:
            (tmp_path / "commits").mkdir()
            (tmp_path / "commits/0").write_text("v1\n{}")
        supervisor.run = second

    supervisor: Any = SimpleNamespace(run=first, pass_time=restarted)
    course.supervisor = supervisor
    assert not course._caught_before_commit(course.schedule[0])
    assert signalled == [1, 1, 2, 2]


def test_a_query_that_cannot_leave_this_process_is_refused_by_name(
    eoc_chaos: ChaosRunner,
) -> None:
    """One that uses what its test has opened; the error was pickle's own."""
    lock = threading.Lock()

    def locked(spark, place):
        lock.acquire()

    with pytest.raises(ConfigError, match="'locked' can't be sent to a process of its own"):
        eoc_chaos(locked, list)


def test_any_server_of_its_own_is_killed(tmp_path: Path) -> None:
    """A MySQL was taken for a fixture's database, and ended the call with an AttributeError."""
    own = MySQL(tmp_path)
    given: dict[Kill, Any] = {Kill.MARIADB: own}
    assert _servers(own, None) == given
    assert _servers(Database(own, "shop"), None) == given


def test_lines_reach_a_listener_whose_address_is_in_brackets(tmp_path: Path) -> None:
    """As an IPv6 address is written before a port."""
    with (
        ReceiverDaemon.on(tmp_path / "buffer") as receiver,
        ExitStack() as stack,
    ):
        place = Place(folder=str(tmp_path), listen=f"[127.0.0.1]:{receiver.port}")
        lines = made_up(5, seed=1)
        fed = open_feed("listen", lines, place, stack, per_second=1e6).input
        fed.start()
        stack.callback(fed.close)
        fed.release(5)
        until(lambda: fed.flushed, 10, "all lines durable")


def test_an_input_has_the_time_that_its_pace_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes were all, however many lines there were: the query was said to be stuck."""
    asked: list[float] = []
    monkeypatch.setattr(
        Supervisor, "until", lambda _, condition, *, timeout, what: asked.append(timeout)
    )
    monkeypatch.setattr(Supervisor, "pass_time", lambda _, seconds: None)
    folder = FolderInput(made_up(2000, seed=1), tmp_path / "input", per_second=1)
    socket = SocketInput(made_up(2000, seed=1), 1, transcript=tmp_path / "t", per_second=1)
    for slow in (folder, socket):
        course = _Course(
            Chaos(["true"], tmp_path, slow, FunctionRows(list), kills=0, settle_s=0.01)
        )
        course._settle()
    assert asked == [600 + 2000 / 5, 600 + 2000]


def test_a_report_names_the_kills_that_hit_nothing() -> None:
    """A pass with three kills asked for and none carried out looked like any other."""
    missed = tuple(KillSchedule(1, count=3, kinds=[Kill.SOURCE_RUNNER]))
    report = replace(report_of(Counter()), missed=missed)
    text = "3 kills found no such process: 3 source_runner"
    assert text in str(report)
    assert text in page(report)


def test_notes_are_in_the_text_and_on_the_page() -> None:
    """They may be why rows are missing."""
    report = replace(report_of(Counter()), notes=("no checkpoint at <here>",))
    assert "  no checkpoint at <here>" in str(report).splitlines()
    assert "<p>no checkpoint at &lt;here&gt;</p>" in page(report)


def report_of(values: Counter[bytes], stuck: str | None = None) -> ChaosReport:
    history = History({"<clicks>": "/nowhere"})
    history.watches["<clicks>"].batches[0] = BatchLife(0, 1.0, ("<&>",), 2.0, [1.5])
    history.note(Event(0, "start", "run 1 started"))
    history.close()
    lines = [b"<u>%d</u>" % number for number in range(9)]
    found = verdict(Transcript.of("p", lines), values)
    return ChaosReport(7, found, history, (), (), 1, (), ("python", "a b.py"), "/f", stuck)


def test_the_page_stands_alone_and_escapes_what_it_shows(tmp_path: Path) -> None:
    """Lines of a user may be anything; nothing is fetched from anywhere."""
    values = Counter({b"<u>%d</u>" % number: 1 + number % 2 for number in range(8)})
    report = report_of(values, stuck="<script>")
    shown = report.save(tmp_path / "r.html").read_text()
    assert "<h1>Not exactly once</h1>" in shown
    for text in ("<u>", "<&>", "<script", "http", "src=", "<clicks>"):
        assert text not in shown
    assert report.verdict.checks == {"lost", "twice"}
    assert "lost: 1" in str(report)
    assert "could not go on" in report.save(tmp_path / "r.txt").read_text()
    with pytest.raises(AssertionError, match="lost: 1"):
        report.require_exactly_once()
    clean = report_of(Counter({b"<u>%d</u>" % number: 1 for number in range(9)}))
    assert clean.exactly_once
    clean.require_exactly_once()


def test_the_page_shows_no_password_of_a_url() -> None:
    """A script gets its URLs as arguments, and the page says how it was started."""
    report = report_of(Counter())
    urls = ("--db=mysql://me:s3cr/et@h:1/d", "redis://:s3cr/et@h/0", "mysql://me@h/d")
    shown = page(replace(report, command=("python", "q.py", *urls)))
    assert "s3cr" not in shown
    for text in ("--db=mysql://me:***@h:1/d", "redis://:***@h/0", "mysql://me@h/d"):
        assert text in shown


def test_files_appear_whole_up_to_the_mark(tmp_path: Path) -> None:
    """And what has appeared is what is acknowledged."""
    given = FolderInput(made_up(500, seed=3), tmp_path / "in", per_second=10_000)
    given.start()
    given.release(200)
    until(lambda: given.transcript().acknowledged == 200, 10, "200 lines")
    assert not given.flushed
    given.release(500)
    until(lambda: given.flushed, 10, "all lines")
    given.close()
    files = sorted((tmp_path / "in").iterdir())
    lines = [line for file in files for line in file.read_bytes().splitlines()]
    assert lines == made_up(500, seed=3)


def test_rows_of_a_table_are_values(mariadb: Database) -> None:
    """One column as it is, several with tabs, or one of them as a count."""
    mariadb.query("CREATE TABLE t (a VARCHAR(9), n INT)")
    mariadb.query("INSERT INTO t VALUES ('x', 2), ('y', NULL), ('x', 2)")
    url = mariadb.url()
    assert QueryRows(url, "SELECT a FROM t").values() == {b"x": 2, b"y": 1}
    assert QueryRows(url, "SELECT * FROM t").values() == {b"x\t2": 2, b"y\t\\N": 1}
    counted = QueryRows(url, "SELECT a, n FROM t WHERE n > 0", count="n")
    assert counted.values() == {b"x": 4}
    with pytest.raises(ConfigError, match="no column 'm'"):
        QueryRows(url, "SELECT a, n FROM t", count="m").values()


def test_keys_of_redis_are_values(redis_server: Redis, prefix: str) -> None:
    """Whatever their type, and counters count their own names."""
    client = redis_server.client()
    client.rpush(f"{prefix}:l:1", "x", "x", "y")
    client.sadd(f"{prefix}:s:1", "x")
    client.zadd(f"{prefix}:s:2", {"y": 1})
    client.hset(f"{prefix}:h:1", "f", "x")
    client.incrby(f"{prefix}:c:word", 3)
    client.xadd(f"{prefix}:x:1", {"f": "x"})

    def values(pattern: str, **more: object) -> Counter[bytes]:
        return KeyRows(redis_server.url(), f"{prefix}:{pattern}", **more).values()  # type: ignore[arg-type]

    assert values("l:*") == {b"x": 2, b"y": 1}
    assert values("s:*") == {b"x": 1, b"y": 1}
    assert values("h:*", field="f") == {b"x": 1}
    assert values("x:*", field="f") == {b"x": 1}
    assert values("c:*", count=True) == {b"word": 3}


def test_a_hash_shows_an_empty_field_as_it_is(redis_server: Redis, prefix: str) -> None:
    """It was read as 0, so that the line looked lost; one without the field is NULL."""
    client = redis_server.client()
    client.hset(f"{prefix}:1", "f", "")
    client.hset(f"{prefix}:2", "g", "x")
    url = redis_server.url()
    assert KeyRows(url, f"{prefix}:*", field="f").values() == {b"": 1, b"\\N": 1}
    assert KeyRows(url, f"{prefix}:2", field="f", count=True).values() == {b"": 0}


def test_a_place_fills_arguments_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds it either way; braces of its own stay."""
    place = Place(checkpoint="/c", mysql_url="mysql://root@127.0.0.1:33/eoc", listen="h:5")
    assert place.fill("{checkpoint}/x {own}") == "/c/x {own}"
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    assert Place.here() == place
    assert (place.port, place.mysql["port"], place.mysql["database"]) == (5, 33, "eoc")
    owned = Place(mysql_url="mysql://a%40b:p%2Fw@h/my%20db").mysql
    assert owned == {
        "host": "h", "port": 3306, "user": "a@b", "password": "p/w", "database": "my db"
    }  # fmt: skip


def following(spark, place):
    import spark_eoc  # noqa: PLC0415  this function runs in a process of its own

    spark_eoc.register(spark)
    lines = spark.readStream.format("replayable_socket").option("bufferPath", place.buffer).load()
    writer = spark_eoc.MySQLWriter(place.mysql_url, "clicks")
    stream = lines.select("value").writeStream.foreachBatch(writer)
    stream.option("checkpointLocation", place.checkpoint).start()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_receiver_and_producer_are_killed_with_a_query_that_follows_a_buffer(
    eoc_chaos: ChaosRunner, mariadb: Database
) -> None:
    """They are processes of their own, and in the schedule by themselves."""
    mariadb.query("CREATE TABLE clicks (value VARCHAR(100))")
    rows = lambda: mariadb.query("SELECT value FROM clicks")  # noqa: E731
    report = eoc_chaos(following, rows, mariadb=mariadb, feed="buffer", kills=6)
    report.require_exactly_once()
    assert {"receiver", "producer"} <= set(report.kills)


@pytest.mark.parametrize(
    ("feed", "kind"),
    [("folder", Kill.PRODUCER), ("listen", Kill.RECEIVER), ("listen", Kill.REDIS)],
)
def test_a_kind_that_this_query_has_no_process_for_is_refused_by_name(
    eoc_chaos: ChaosRunner, feed: str, kind: Kill
) -> None:
    """Before the query is started."""
    with pytest.raises(ConfigError, match=f"kill {kind}: there is nothing of this kind"):
        eoc_chaos(with_writer, list, feed=feed, kinds=[kind])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("count", [1, 2, 3, 5, 20])
def test_one_kill_at_least_falls_between_rows_and_commit(seed: int, count: int) -> None:
    """By a draw for each alone, more than a third of the README's own runs had none, and its query
    that writes twice passed."""
    strikes = list(KillSchedule(seed, count=count, kinds=(*SCRIPT_KILLS, Kill.MARIADB)))
    dealt = aims(strikes, seed)
    assert dealt == aims(strikes, seed)
    assert set(dealt) == {strike.number for strike in strikes}
    before = [one for one in strikes if dealt[one.number] is Aim.BEFORE_COMMIT]
    assert len(before) == math.ceil(0.4 * count)
    sudden = [one for one in strikes if one.kind in _SUDDEN and not one.while_starting]
    assert not sudden or set(sudden) & set(before)


def test_a_slow_restart_is_not_taken_for_lost_rows(tmp_path: Path) -> None:
    """A run is given as long as others have needed to their first row: on a busy machine that was
    more than ``settle_s``, and the README's own example lost lines."""
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import pathlib, sys, time\n"
        "time.sleep(5)\n"  # more than settle_s and the two seconds of rest at the end
        "while True:\n"
        "    for file in sorted(pathlib.Path(sys.argv[1]).glob('*.txt')):\n"
        "        file.rename(pathlib.Path(sys.argv[2]) / file.name)\n"
        "    time.sleep(0.01)\n"
    )
    (tmp_path / "sink").mkdir()
    report = Chaos(
        command=[sys.executable, str(slow), str(tmp_path / "input"), str(tmp_path / "sink")],
        folder=tmp_path,
        input=FolderInput(made_up(20, seed=1), tmp_path / "input"),
        rows=given_in(tmp_path / "sink"),
        kills=1,
        kinds=[Kill.DRIVER_PYTHON],
        instants=Instants(spread_s=0.01, starting=0),
        settle_s=0.5,
    ).run()
    report.require_exactly_once()
    assert report.starts == 2


def test_a_run_that_was_given_up_before_it_worked_is_named(tmp_path: Path) -> None:
    """What is lost may be a matter of patience, and the report says so."""
    once = tmp_path / "once.py"
    once.write_text(
        "import pathlib, sys, time\n"
        "seen = pathlib.Path(sys.argv[1])\n"
        "first = not (seen / 'begun').exists()\n"
        "(seen / 'begun').touch()\n"
        "while first:\n"
        "    for file in sorted((seen / 'input').glob('*.txt')):\n"
        "        file.rename(seen / file.name)\n"
        "    time.sleep(0.01)\n"
        "time.sleep(60)\n"
    )
    report = Chaos(
        command=[sys.executable, str(once), str(tmp_path)],
        folder=tmp_path,
        input=FolderInput(made_up(20, seed=1), tmp_path / "input"),
        rows=given_in(tmp_path),
        kills=1,
        kinds=[Kill.DRIVER_PYTHON],
        instants=Instants(spread_s=0.01, starting=0),
        checkpoints={"query": tmp_path / "checkpoint"},
        settle_s=0.5,
    ).run()
    assert report.verdict.checks == {"lost"}
    assert "run 2 had brought no new row when it was given up after 0.5 s" in str(report)
    assert f"query: no checkpoint was seen at {tmp_path / 'checkpoint'}" in str(report)


def test_another_part_is_killed_where_the_script_has_none_of_that_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain query has no Python workers: one kill in three did nothing, and took a minute."""
    monkeypatch.setattr(chaos, "_PART_S", 0.2)
    kinds = [Kill.PYTHON_WORKER, Kill.DRIVER_PYTHON]
    schedules = (KillSchedule(seed, count=1, kinds=kinds) for seed in itertools.count())
    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput(made_up(9, seed=1), tmp_path / "input"),
        rows=given_in(tmp_path / "input"),
        kills=1,
        kinds=kinds,
        seed=next(one.seed for one in schedules if next(iter(one)).kind is Kill.PYTHON_WORKER),
        instants=Instants(spread_s=0.01, starting=0),
        settle_s=0.5,
    ).run()
    assert report.kills == {"driver_python": 1}
    assert [strike.kind for strike in report.missed] == [Kill.PYTHON_WORKER]
    assert report.starts == 2


def test_a_script_that_fails_at_once_is_given_up_soon_and_says_why(tmp_path: Path) -> None:
    """Its own last words, not those of the run that was just starting; and nothing is lost."""
    script = tmp_path / "raises.py"
    script.write_text("raise SystemExit('no such table: clikcs')\n")
    report = Chaos(
        command=[sys.executable, str(script)],
        folder=tmp_path,
        input=FolderInput(made_up(20, seed=1), tmp_path / "input"),
        rows=FunctionRows(list),
        kills=2,
    ).run()
    assert report.starts == 3
    lines = str(report).splitlines()
    assert lines[0].startswith("could not go on: ")
    assert "3 ends without progress; run-003.log ends with:" in str(report.stuck)
    assert "no such table: clikcs" in str(report)
    assert "lost" not in str(report)
    assert not report.exactly_once


def test_the_run_that_failed_tells_why_not_the_one_that_is_starting(tmp_path: Path) -> None:
    """The limit falls while the next run starts, whose log has nothing but its first warnings."""
    script = tmp_path / "raises.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "begun = pathlib.Path(sys.argv[1]) / 'begun'\n"
        "if not begun.exists():\n"
        "    begun.touch()\n"
        "    raise SystemExit('no such table: clikcs')\n"
        "print('starting', flush=True)\n"
        "time.sleep(60)\n"
    )
    report = Chaos(
        command=[sys.executable, str(script), str(tmp_path)],
        folder=tmp_path,
        input=FolderInput(made_up(20, seed=1), tmp_path / "input"),
        rows=FunctionRows(list),
        kills=1,
        instants=Instants(starting=0),
        progress_s=3,
    ).run()
    assert report.starts == 2
    assert "run-001.log ends with:\nno such table: clikcs" in str(report.stuck)


def test_a_script_that_says_nothing_and_does_nothing_is_called_so(tmp_path: Path) -> None:
    """The reason ended with an empty line."""
    report = Chaos(
        command=["sleep", "100"],
        folder=tmp_path,
        input=FolderInput(made_up(20, seed=1), tmp_path / "input"),
        rows=FunctionRows(list),
        kills=1,
        progress_s=0.3,
    ).run()
    assert report.stuck == "no progress beyond 0 rows in 0.3 s; run-001.log has written nothing"


def one_argument(spark: Any) -> None:
    """Not a query."""


@pytest.mark.parametrize(
    ("query", "rows", "more", "message"),
    [
        ("no.py", list, {}, "there is no script 'no.py'"),
        (one_argument, list, {}, r"can't be called with \(spark, place\): too many"),
        (with_writer, [], {}, r"rows=\[\] can't be asked"),
        (with_writer, list, {"kinds": ["jmv"]}, "'jmv' is no kind of kill, did you mean 'jvm'"),
        (with_writer, list, {"feed": "bufer"}, "feed='bufer' is not known"),
        (with_writer, lambda: 7, {}, "rows= returned int, not the rows"),
        (with_writer, lambda: [{"value": "a"}], {}, r"a row is \{'value': 'a'\}"),
    ],
)
def test_a_call_that_cannot_work_is_refused_before_anything_is_started(
    eoc_chaos: ChaosRunner, query: Any, rows: Any, more: dict[str, Any], message: str
) -> None:
    """Each was an error of Python's own, or three minutes of waiting."""
    with pytest.raises(ConfigError, match=message):
        eoc_chaos(query, rows, **more)


def test_a_query_without_its_server_does_not_meet_another_one() -> None:
    """Connections without a host mean this one, and what runs there may be somebody's."""
    with pytest.raises(ConfigError, match="pass mariadb= to eoc_chaos"):
        _ = Place(folder="/nowhere").mysql


@pytest.mark.parametrize("select", ["SELEKT value FROM t", "SELECT valeu FROM t", ""])
def test_a_query_of_the_sink_that_is_none_is_refused_at_once(
    mariadb: Database, select: str
) -> None:
    """It was asked for three minutes, and all lines looked lost."""
    mariadb.query("CREATE TABLE t (value VARCHAR(100))")
    with pytest.raises(ConfigError, match="can't be asked"):
        require_empty(QueryRows(mariadb.url(), select))
    require_empty(QueryRows(mariadb.url(), "SELECT value FROM made_by_the_script_itself"))
