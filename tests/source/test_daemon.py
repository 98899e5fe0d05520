"""Queries that only read, on a buffer that `spark-eoc receive` fills."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_eoc.producer import LineProducer
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until
from tests.source.source_runs import Checkpoint, Run

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]
LINES = 3000


class Daemon:
    """`spark-eoc receive`, started again after each kill."""

    def __init__(self, path: Path) -> None:
        self.port = free_port()
        self._command = [*CLI, "receive", "--buffer", str(path), "--segment-bytes", "65536"]
        self._command += ["--listen", f"127.0.0.1:{self.port}", "--retention", "0s,0B"]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, env=environment)
        assert b"ready" in process.stdout.readline()
        return process

    def kill(self) -> None:
        self.end()
        self._process = self._start()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def daemon(tmp_path):
    daemon = Daemon(tmp_path / "log")
    yield daemon
    daemon.end()


def test_three_queries_at_their_own_pace_over_kills_of_the_daemon(spark, start, daemon, tmp_path):
    """Each gets every line once and in order, a slow one and one that was stopped meanwhile too;
    what all of them have done with is trimmed."""

    def begin(name: str, **more: object) -> Run:
        to = Checkpoint(tmp_path / name)
        return start(path=tmp_path / "log", to=to, consumer=name, **more)

    producer = LineProducer("127.0.0.1", daemon.port, "p")
    producer.send(line(0).encode())
    producer.flush(60)
    # One after the other: each starts a Python that Spark doesn't wait for very long.
    fast = begin("fast").drain(1)
    slow = begin("slow", maxRowsPerTrigger=300).drain(1)
    paused = begin("paused", maxRowsPerTrigger=500).drain(1)
    sender = threading.Thread(target=send, args=(producer,))
    sender.start()
    for kill in range(1, 4):
        until(lambda: producer.acknowledged >= kill * LINES // 5, 60, "lines")  # noqa: B023
        daemon.kill()
        if kill == 1:
            paused.drain(500).stop()
    sender.join()
    producer.close(60)
    again = begin("paused")
    for run in (fast, slow):
        run.drain(LINES).settle()
    wanted = [line(number) for number in range(LINES)]

    def both() -> list[str]:
        # A batch that was stopped before its commit is run again, under its number.
        batches = {**paused.batches, **again.batches}
        return [row[0] for number in sorted(batches) for row in batches[number]]

    until(lambda: len(both()) >= LINES or again.failed, 60, "the rest")
    assert fast.values == wanted
    assert slow.values == wanted
    assert max(slow.sizes) <= 300
    assert both() == wanted


def send(producer: LineProducer) -> None:
    """Slowly enough that the kills come in between."""
    for number in range(1, LINES):
        producer.send(line(number).encode())
        if number % 200 == 0:
            producer.flush(60)


def line(number: int) -> str:
    return f"{number:06d}" + "x" * 60
