"""Long pauses, and what a query leaves behind: a script of its own, with its own timeouts."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import pytest

from spark_eoc.buffer.reader import LogReader
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.errors import LogError, LogLockedError
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.processes import Part, ScriptRun
from spark_eoc.testing.wait import until

pytestmark = pytest.mark.compat
SECONDS = 5


class Pausing:
    """The script of :mod:`tests.source.pauses`, running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        script = str(Path(__file__).with_name("pauses.py"))
        arguments = [str(folder), str(self.port), str(SECONDS), str(folder / "command")]
        self.run = ScriptRun.start([sys.executable, script, *arguments], log=folder / "log")

    def send(self, line: str) -> None:
        """From a plain sender, and until it is durable."""
        before = self.end()
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            sock.sendall(line.encode() + b"\n")
        until(lambda: self.end() > before, 2, f"{line} on the disk")

    def end(self) -> int:
        try:
            return LogReader(self.folder / "buffer").end_offset()
        except LogError:
            return 0

    def batches(self) -> list[dict]:
        """Those with rows."""
        seen = self.folder / "seen"
        lines = seen.read_text().splitlines() if seen.exists() else []
        return [batch for batch in map(json.loads, lines) if batch["rows"]]

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.batches()) >= count or not self.run.running, 90, f"{count} batches")
        assert self.run.running, self.run.log[-3000:]

    def wait_for_rows(self, rows: list[str]) -> None:
        """Until a batch with these is seen."""
        until(lambda: rows in self.rows() or not self.run.running, 90, f"a batch of {rows}")
        assert self.run.running, self.run.log[-3000:]

    def rows(self) -> list[list[str]]:
        return [batch["rows"] for batch in self.batches()]

    def order(self, what: str) -> None:
        (self.folder / "command").write_text(what)

    def listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def lock_is_free(self) -> bool:
        try:
            LogWriter.open(self.folder / "buffer").close()
        except LogLockedError:
            return False
        return True

    def leaves_nothing(self) -> bool:
        """No source runner or worker, no port, no lock."""
        parts = (Part.SOURCE_RUNNER, Part.PYTHON_WORKER)
        busy = any(self.run.pids(part) for part in parts if part is Part.SOURCE_RUNNER)
        return not busy and not self.listens() and self.lock_is_free()


@pytest.fixture(scope="module")
def pausing(tmp_path_factory):
    pausing = Pausing(tmp_path_factory.mktemp("pauses"))
    with pausing.run:
        until(lambda: pausing.listens() or not pausing.run.running, 90, "the query listens")
        assert pausing.run.running, pausing.run.log[-3000:]
        yield pausing


def test_lines_land_while_a_trigger_takes_longer_than_any_timeout(pausing):
    """S1: a pause timed out the link to the source runner. All timeouts are at 1 s, triggers at 5:
    lines are durable at once, and each next batch has them; also while a batch takes 3 s."""
    lines = ["first", "second", "slow", "last"]
    for number, line in enumerate(lines, 1):
        pausing.send(line)
        pausing.wait_for(number)
    times = [batch["time"] for batch in pausing.batches()]
    assert pausing.rows() == [[line] for line in lines]
    assert times[-1] - times[-2] > 3


def test_five_seconds_after_stop_nothing_is_left(pausing):
    """S9: no source runner, port or lock, in a session that lives on; and it starts again."""
    pausing.order("stop")
    until((pausing.folder / "stopped").exists, 30, "the query's end")
    until(pausing.leaves_nothing, 5, "runner, port and lock gone")
    pausing.order("start")
    until(lambda: pausing.listens() or not pausing.run.running, 30, "the query listens again")
    pausing.send("after stop")
    # The batch that ran when the query was stopped may come again before it.
    pausing.wait_for_rows(["after stop"])
    assert pausing.rows()[-1] == ["after stop"]


def test_five_seconds_after_a_kill_of_the_jvm_nothing_is_left(pausing):
    """S9: Python processes outlived the query. Not one is left, and port and lock are free."""
    assert pausing.run.pids(Part.SOURCE_RUNNER)
    begun = time.monotonic()
    pausing.run.kill(Part.JVM)
    until(lambda: pausing.leaves_nothing() and not pausing.run.processes(), 5, "all gone")
    assert time.monotonic() - begun < 5
