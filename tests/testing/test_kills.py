"""Kill schedules, processes and the supervisor, on scripts without Spark."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.testing.kills import PROCESS_KILLS, USUAL_KILLS, Instants, Kill, KillSchedule
from spark_eoc.testing.processes import Part, Process, ScriptRun, _plays
from spark_eoc.testing.proxy import Rules
from spark_eoc.testing.servers import Redis
from spark_eoc.testing.supervisor import Event, NoProgressError, Supervisor
from spark_eoc.testing.wait import until

PYTHON = sys.executable

#: The crowd of a real run, as seen with pyspark 4.0.5 and 4.3.0.
CROWD = [
    Process(10, 1, "S", (PYTHON, "query.py")),
    Process(11, 10, "S", ("/usr/lib/jvm/bin/java", "-cp", "x", "org.apache.spark.deploy.Submit")),
    Process(12, 11, "S", (PYTHON, "-m", "pyspark.sql.streaming.python_streaming_source_runner")),
    Process(13, 11, "S", (PYTHON, "-m", "pyspark.daemon", "pyspark.sql.worker.create_data_source")),
    Process(14, 13, "S", (PYTHON, "-m", "pyspark.daemon", "pyspark.sql.worker.create_data_source")),
    Process(15, 11, "S", (PYTHON, "-m", "pyspark.daemon", "pyspark.worker")),
    Process(16, 15, "S", (PYTHON, "-m", "pyspark.daemon", "pyspark.worker")),
    Process(17, 15, "S", (PYTHON, "-m", "pyspark.daemon", "pyspark.worker")),
    Process(18, 11, "S", ("java", "org.apache.spark.executor.CoarseGrainedExecutorBackend", "--x")),
]

TICKER = textwrap.dedent(
    """
    import sys, time
    with open(sys.argv[1], "ab", 0) as file:
        while True:
            file.write(b".")
            time.sleep(0.01)
    """
)


def ticker(tmp_path: Path) -> tuple[list[str], Path]:
    """A script that appends a byte 100 times a second, and the file that it writes."""
    script = tmp_path / "ticker.py"
    script.write_text(TICKER)
    out = tmp_path / "out"
    out.touch()
    return [PYTHON, str(script), str(out)], out


def test_a_seed_gives_the_same_schedule_and_another_gives_another():
    """Kinds and instants come from the seed alone."""
    first, again = KillSchedule(7, count=50), KillSchedule(7, count=50)
    assert list(first) == list(again)
    assert list(first) != list(KillSchedule(8, count=50))


def test_every_kind_comes_at_least_once():
    """With a count of at least the number of kinds none is left out."""
    for seed in range(50):
        kinds = {strike.kind for strike in KillSchedule(seed, count=len(USUAL_KILLS))}
        assert kinds == set(USUAL_KILLS)


def test_of_fewer_kills_than_kinds_each_kind_has_its_seeds():
    """It was always the first kinds: a server given to eoc_chaos with three kills never died."""
    seen = {KillSchedule(seed, count=1)[0].kind for seed in range(100)}
    assert seen == set(USUAL_KILLS)
    assert len({strike.kind for strike in KillSchedule(5, count=4)}) == 4


def test_instants_lie_in_their_ranges():
    """Half-open ranges; servers and takeovers never fall into a start."""
    instants = Instants(spread_s=2.0, starting=0.5, start_spread_s=5.0, hold_s=(1.0, 1.5))
    for strike in KillSchedule(3, count=500, instants=instants):
        assert 0 <= strike.after_s <= (5.0 if strike.while_starting else 2.0)
        assert 1.0 <= strike.hold_s <= 1.5
        assert not strike.while_starting or strike.kind in PROCESS_KILLS


@pytest.mark.parametrize(
    ("part", "pids"),
    [
        (Part.JVM, [11]),
        (Part.SOURCE_RUNNER, [12]),
        (Part.PYTHON_WORKER, [16, 17]),
        (Part.EXECUTOR, [18]),
    ],
)
def test_parts_are_told_apart_by_their_commands(part: Part, pids: list[int]):
    """A daemon isn't a worker, and an executor isn't the driver's JVM."""
    assert [each.pid for each in CROWD if _plays(each, part, CROWD)] == pids


def test_a_stopped_run_makes_no_progress_and_goes_on_after_continue(tmp_path: Path):
    """stop_all returns when every process is stopped."""
    command, out = ticker(tmp_path)
    with ScriptRun.start(command, log=tmp_path / "log") as run:
        until(lambda: out.stat().st_size > 3, 10, "ticks")
        run.stop_all()
        size = out.stat().st_size
        assert {each.state for each in run.processes()} == {"T"}
        assert out.stat().st_size == size
        run.continue_all()
        until(lambda: out.stat().st_size > size, 10, "more ticks")


def test_leaving_a_run_kills_children_of_children(tmp_path: Path):
    """Also a grandchild whose parent has ended is in the session, and goes."""
    script = tmp_path / "family.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "subprocess.Popen(['sh', '-c', 'sleep 100 & exit 0']).wait()\n"
        "time.sleep(100)\n"
    )
    with ScriptRun.start([PYTHON, str(script)], log=tmp_path / "log") as run:
        until(lambda: any("sleep" in p.words for p in run.processes()), 10, "a grandchild")
        run.signal(Part.DRIVER_PYTHON, signal.SIGKILL)
        assert run.wait(5) == -signal.SIGKILL
        assert run.processes()
    assert not run.processes()


def test_a_run_that_is_gone_is_not_killed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its session's number may be another program's by then; a supervisor keeps all of its runs."""
    run = ScriptRun.start(["true"], log=tmp_path / "log")
    run.kill_all()
    asked: list[int] = []
    monkeypatch.setattr("spark_eoc.testing.processes.kill_session", asked.append)
    monkeypatch.setattr("spark_eoc.testing.processes.session_of", lambda _: [os.getpid()])
    run.kill_all()
    run.continue_all()
    assert run.processes() == []
    assert asked == []


def test_the_supervisor_restarts_what_it_kills_and_what_ends(tmp_path: Path):
    """Ten kills of the script: ten restarts, every strike after progress."""
    command, out = ticker(tmp_path)
    events: list[Event] = []
    schedule = KillSchedule(
        1, count=10, kinds=[Kill.DRIVER_PYTHON], instants=Instants(spread_s=0.1, starting=0.0)
    )
    with Supervisor(
        command, folder=tmp_path, progress=lambda: out.stat().st_size, on_event=events.append
    ) as supervisor:
        supervisor.carry_out(schedule)
        size = out.stat().st_size
        supervisor.until(lambda: out.stat().st_size > size, timeout=10, what="more ticks")
        assert supervisor.strikes == list(schedule)
        assert supervisor.starts == 11
    assert [e.kind for e in events].count("kill") == 10
    assert not supervisor.run.processes()


def test_a_takeover_starts_a_second_run_while_the_first_is_stopped(tmp_path: Path):
    """The stopped run is continued after the new one has made progress, and its end is awaited."""
    script = tmp_path / "ticker.py"
    # A run that finds a newer one ends by itself, as a fenced query does.
    script.write_text(
        "import os, sys, time\n"
        "with open(sys.argv[1] + '.owner', 'w') as f: f.write(str(os.getpid()))\n"
        "while open(sys.argv[1] + '.owner').read() in ('', str(os.getpid())):\n"
        "    open(sys.argv[1], 'ab', 0).write(b'.')\n"
        "    time.sleep(0.01)\n"
        "sys.exit(3)\n"
    )
    out = tmp_path / "out"
    out.touch()
    events: list[Event] = []
    with Supervisor(
        [PYTHON, str(script), str(out)],
        folder=tmp_path,
        progress=lambda: out.stat().st_size,
        on_event=events.append,
    ) as supervisor:
        supervisor.carry_out(KillSchedule(1, count=1, kinds=[Kill.TAKEOVER]))
        assert supervisor.starts == 2
        assert supervisor.run.running
    assert any(e.kind == "fenced" and "ended with 3" in e.text for e in events)


def test_a_server_is_killed_and_comes_back(tmp_path: Path, own_redis: Redis):
    """MARIADB and REDIS strikes kill the given server, and restart it."""
    command, out = ticker(tmp_path)
    pid = own_redis.pid
    with Supervisor(
        command,
        folder=tmp_path,
        progress=lambda: out.stat().st_size,
        servers={Kill.REDIS: own_redis},
    ) as supervisor:
        supervisor.carry_out(KillSchedule(1, count=1, kinds=[Kill.REDIS]))
    assert own_redis.pid != pid
    assert own_redis.client().ping()


def test_a_script_that_only_ends_is_given_up_with_its_log(tmp_path: Path):
    """Six runs without progress raise, and the message has what the script wrote."""
    command = [PYTHON, "-c", "raise SystemExit('no such table')"]
    with (
        Supervisor(command, folder=tmp_path, progress=lambda: 0) as supervisor,
        pytest.raises(NoProgressError, match="no such table"),
    ):
        supervisor.until(lambda: False, timeout=60, what="nothing")


class Victim:
    """What the supervisor does to a server, or to a connection."""

    name = "victim"
    can_fill = True
    ended = False
    down = False

    def kill(self) -> None:
        self.down = True

    def restart(self) -> None:
        self.down = False

    def set(self, rules: Rules | None = None) -> None:
        self.down = rules is not None

    fill, free = kill, restart


@pytest.mark.parametrize("kind", [Kill.REDIS, Kill.FULL, Kill.NETWORK])
def test_what_was_taken_away_for_a_while_is_given_back_when_the_run_fails_meanwhile(
    tmp_path: Path, kind: Kill
):
    """Else nobody can read what is in the sink, and all of it looks lost."""
    victim: Any = Victim()
    numbers = itertools.count()
    schedule = KillSchedule(
        1, count=1, kinds=[kind], instants=Instants(spread_s=0.01, hold_s=(60, 60))
    )
    with Supervisor(
        ["false"],
        folder=tmp_path,
        progress=lambda: 0 if victim.down else next(numbers),
        servers={Kill.REDIS: [victim]},
        links=[victim],
    ) as supervisor:
        with pytest.raises(NoProgressError, match="6 ends without progress"):
            supervisor.carry_out(schedule)
        assert not victim.down
