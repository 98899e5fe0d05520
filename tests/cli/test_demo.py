"""The demo for real, on a few rows: its outcome, its JSON, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from spark_eoc.testing.wait import until

MAIN = "import sys; from spark_eoc.cli import main; sys.exit(main())"


class Demo:
    """A running demo, found again by a mark in the environment of all that it starts."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        self._mark = f"EOC_TEST_MARK={uuid.uuid4()}"
        name, _, value = self._mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "demo", *args],
            env={**os.environ, name: value, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=(folder.parent / "stderr").open("wb"),
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def wait(self, timeout: float) -> str:
        """Its whole stdout, at its end."""
        out, _ = self.process.communicate(timeout=timeout)
        return out

    @property
    def stderr(self) -> str:
        return (self.folder.parent / "stderr").read_text(errors="replace")

    def left_over(self) -> list[str]:
        """Commands of living processes that it started, and files in its temporary folder."""
        found = [str(path) for path in self.folder.iterdir()]
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue
        return found


@pytest.fixture
def demo(tmp_path, redis_server):
    """Starts demos; kills what a failing test leaves. Redis is asked for: no binary, no demo."""
    started: list[Demo] = []

    def start(*args: str) -> Demo:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Demo(folder, *args))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.send_signal(signal.SIGTERM)
            each.process.wait(30)


@pytest.mark.timeout(280)
def test_a_few_rows_survive_a_few_kills_and_the_json_says_so(demo, eoc_seed):
    """Exit code 0, one JSON object on stdout, nothing lost, nothing twice, nothing left behind."""
    args = ("--redis-only", "--rows", "2000", "--kills", "2", "--seed", str(eoc_seed), "--json")
    running = demo(*args)
    out = running.wait(250)
    assert running.process.returncode == 0, running.stderr[-4000:]
    report = json.loads(out)
    assert out.count("\n") == 1
    assert (report["seed"], report["kills"]) == (eoc_seed, 2)
    assert report["sinks"].keys() == {"redis"}
    sink = report["sinks"]["redis"]
    assert (sink["sent"], sink["in_sink"], sink["lost"], sink["twice"]) == (2000, 2000, 0, 0)
    until(lambda: not running.left_over(), 10, "nothing left behind")


@pytest.mark.timeout(150)
def test_ctrl_c_ends_everything_that_was_started(demo):
    """In the middle of it: exit code 130, no process, no folder, no traceback."""
    running = demo("--redis-only", "--rows", "5000", "--kills", "2")
    until(lambda: "run 1 started" in running.stderr, 60, "the first query started")
    until(lambda: any("java" in each for each in running.left_over()), 60, "a JVM")
    running.process.send_signal(signal.SIGINT)
    running.wait(60)
    assert running.process.returncode == 130
    assert "Traceback" not in running.stderr
    until(lambda: not running.left_over(), 10, "nothing left behind")
