"""A run that is stopped, taken over, and continued: it writes nothing more, whatever the order.

Case E8. Each test has both sinks in one application, so that one pair of runs proves both.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_eoc.buffer import BufferOptions, LogWriter
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT
from spark_eoc.receiver import Receiver, ReceiverOptions
from spark_eoc.testing.processes import ScriptRun
from spark_eoc.testing.rig import Rig
from spark_eoc.testing.servers import MariaDB, Redis
from spark_eoc.testing.wait import until

#: A loaded machine needs a minute for a JVM to start; only what is promised in seconds is strict.
pytestmark = pytest.mark.timeout(900)

#: Inside a unit with everything sent: MySQL's transaction is open, of Redis a chunk is applied.
INSIDE = {"mysql": "mysql.before_commit", "redis": "redis.after_chunk"}
#: A unit of run B is in, its batch is not closed.
APPLIED = {"mysql": "mysql.after_commit", "redis": "redis.after_unit"}


class Pair:
    """Run A and run B of one job on one checkpoint, each with failpoints of its own."""

    def __init__(self, folder: Path, mariadb: MariaDB, redis: Redis) -> None:
        self.rig = Rig(
            folder,
            mariadb=mariadb,
            redis=redis,
            on_failure="wait",
            # Many batches wait in the buffer, so that B has something to do while A, stopped,
            # still holds the buffer's lock and port.
            options={"maxRowsPerTrigger": "200"},
            writers={"redis": {"chunk_rows": 20}},
            per_second=5000,
            lines=1500,
        )
        self.folder = folder
        self.runs: list[ScriptRun] = []

    def __enter__(self) -> Pair:
        """Every line is durable before run A begins: B must not depend on A's receiver."""
        with contextlib.ExitStack() as stack:
            for target in self.rig.targets.values():
                writer = LogWriter.open(target.stream.buffer, BufferOptions())
                stack.callback(writer.close)
                port = int(str(target.stream.listen).rpartition(":")[2])
                stack.enter_context(Receiver(writer, ReceiverOptions(listen=("127.0.0.1", port))))
            self.rig.feed()
            until(lambda: self.rig.flushed, 60, "all lines durable")
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.kill_all()
        self.rig.__exit__(*_)

    def start(self, name: str, points: dict[str, str]) -> ScriptRun:
        """``points`` maps names (with a count) to actions; they fire once in this run."""
        fired = self.folder / f"fired-{name}"
        fired.mkdir()
        run = ScriptRun.start(
            self.rig.job.command(),
            log=self.folder / f"{name}.log",
            env={
                ENVIRONMENT: ",".join(f"{point}={action}" for point, action in points.items()),
                DIRECTORY: str(fired),
            },
        )
        self.runs.append(run)
        for point in points:
            path = fired / f"{point.partition(':')[0]}.fired"
            self.until(path.exists, 200, f"{name} at {point}")
        return run

    def until(self, condition: Callable[[], object], timeout: float, what: str) -> None:
        """Waits, and shows what failed meanwhile."""
        until(condition, timeout, f"{what} (failures: {self.failures()})")

    def failures(self) -> list[tuple[int, str, str]]:
        """(pid, sink, error) of queries that ended with an error."""
        path = self.rig.job.failures
        entries = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
        return [(each["pid"], each["sink"], each["error"]) for each in entries]

    def all_in_the_sinks(self) -> bool:
        """Every line that the feeders sent is in its sink, and no batch is open."""
        return self.rig.settled

    def check_fenced(self, run: ScriptRun, at_least: int = 2) -> None:
        """Both queries of the run end; ``at_least`` so many of them because they are fenced.

        Spark itself stops one whose offsets are not written yet, or whose batch B has completed:
        that batch is only compared, and then commits/N is there already.
        """
        run.wait(120)
        ended = {sink: error for pid, sink, error in self.failures() if pid == run.pid}
        assert set(ended) == {"mysql", "redis"}
        fenced = [sink for sink, error in ended.items() if "FencedError" in error]
        assert len(fenced) >= at_least, ended
        for sink in set(ended) - set(fenced):
            assert "CONCURRENT_STREAM_LOG_UPDATE" in ended[sink], ended

    def check_healthy(self, run: ScriptRun) -> None:
        """Run B has no failed query, takes new lines, and both sinks are exactly once."""
        for verdict in self.rig.verdicts().values():
            verdict.require_clean()
        assert run.running
        assert not [each for each in self.failures() if each[0] == run.pid]


@pytest.fixture
def pair(tmp_path: Path, mariadb_server: MariaDB, redis_server: Redis):
    """Two runs of one job."""
    with Pair(tmp_path, mariadb_server, redis_server) as both:
        yield both


def test_b_goes_on_within_30_seconds_and_a_is_fenced_afterwards(pair: Pair):
    """A is stopped inside a unit with its transaction open. B takes over, and goes on within
    30 s plus the server's rollback; then A goes on and is fenced."""
    a = pair.start("a", {f"{INSIDE['mysql']}:3": "stop", f"{INSIDE['redis']}:7": "stop"})
    a.stop_all()
    before = {sink: target.count() for sink, target in pair.rig.targets.items()}
    b = pair.start("b", {"batch.before_open": "sleep:1"})
    began = time.monotonic()

    def both_moved() -> bool:
        return all(
            target.count() > before[sink] and target.closed
            for sink, target in pair.rig.targets.items()
        )

    pair.until(both_moved, 35, "B goes on")
    took = time.monotonic() - began
    assert took < 32, f"B went on after {took:.1f} s"
    pair.until(pair.all_in_the_sinks, 200, "B alone brings all lines")
    a.continue_all()
    pair.check_fenced(a)
    pair.check_healthy(b)


def test_a_goes_on_before_b_closes_and_is_fenced(pair: Pair):
    """The other order: B has opened the batch and applied a unit when A goes on."""
    a = pair.start("a", {f"{INSIDE['mysql']}:3": "stop", f"{INSIDE['redis']}:7": "stop"})
    a.stop_all()
    b = pair.start("b", {APPLIED["mysql"]: "sleep:15000", APPLIED["redis"]: "sleep:15000"})
    a.continue_all()
    pair.check_fenced(a)
    pair.until(pair.all_in_the_sinks, 200, "B brings all lines")
    pair.check_healthy(b)


def test_a_stopped_before_its_first_open_does_not_fence_b(pair: Pair):
    """A run that never opened anything may not take over from the healthy run that is newer.

    It ends, fenced or stopped by Spark, and run B does not notice.
    """
    a = pair.start("a", {"batch.before_open": "stop"})
    a.stop_all()
    b = pair.start("b", {})
    pair.until(pair.all_in_the_sinks, 200, "B brings all lines")
    a.continue_all()
    pair.check_fenced(a, at_least=0)
    pair.check_healthy(b)
