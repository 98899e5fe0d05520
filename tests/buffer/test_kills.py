"""SIGKILL at each step of the log: what was acknowledged is there, once, in order, nothing else is,
and the log goes on (cases B2, B4 and B5). The checker believes only transcript and disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_eoc.buffer import LogReader, LogWriter
from spark_eoc.failpoints import FAILPOINTS, FailpointError
from tests.buffer.buffer_logs import appends_on, read_range
from tests.buffer.workload import PRODUCER, Transcript, line_of, run

POINTS = [name for name in FAILPOINTS if name.startswith("buffer.")]


def run_workload(folder: Path, failpoint: str = "") -> int:
    """Runs the writer until it ends or is killed; its exit code."""
    script = Path(__file__).with_name("workload.py")
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "SPARK_EOC_FAILPOINT": failpoint}
    environment.pop("SPARK_EOC_FAILPOINT_DIR", None)
    command = [sys.executable, str(script), str(folder / "log"), str(folder / "said")]
    return subprocess.run(command, env=environment, check=False, timeout=60).returncode


def said(folder: Path) -> list[tuple[str, list[int]]]:
    """The transcript."""
    entries = []
    for line in (folder / "said").read_text().splitlines():
        word, *numbers = line.split()
        entries.append((word, [int(number) for number in numbers]))
    return entries


def check(folder: Path) -> None:
    """Everything acknowledged is in the log, once and in order, or was committed and trimmed;
    nothing is there that was never sent; the producer's number is that of the last line."""
    entries = said(folder)
    acknowledged = max((n[0] for word, n in entries if word == "acknowledged"), default=1) - 1
    sent = max((n[1] for word, n in entries if word == "send"), default=1) - 1
    committed = max((n[0] for word, n in entries if word == "commit"), default=0)
    writer = LogWriter.open(folder / "log")
    state = writer.producers.get(PRODUCER)
    writer.close()
    reader = LogReader(folder / "log")
    start, end = reader.start_offset(), reader.end_offset()
    # Offsets begin at 0 and sequence numbers at 1; nothing but the workload's lines is appended.
    assert acknowledged <= end <= sent
    assert start <= committed
    assert read_range(reader, start, end) == [line_of(n + 1) for n in range(start, end)]
    assert (state.last_sequence if state else 0) == end
    epochs = [n[0] for word, n in entries if word == "open"]
    assert epochs == sorted(set(epochs)), "no epoch is taken twice"


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    """Killed at the step, restarted and killed there again, then checked, and then it goes on."""
    for count in (1, 2):
        assert run_workload(tmp_path, f"{point}:{count}=kill") == -signal.SIGKILL, point
        check(tmp_path)
    assert run_workload(tmp_path) == 0
    check(tmp_path)
    reader = LogReader(tmp_path / "log")
    lines = read_range(reader, reader.start_offset(), reader.end_offset())
    if reader.start_offset() == 0:
        appends_on(tmp_path / "log", lines)


@pytest.mark.parametrize("point", POINTS)
def test_an_error_at_each_step_can_be_recovered(
    tmp_path: Path, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The action "raise" instead of a kill: the process lives on, and the next writer recovers."""
    monkeypatch.delenv("SPARK_EOC_FAILPOINT_DIR", raising=False)
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    transcript = Transcript(tmp_path / "said")
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_EOC_FAILPOINT", f"{point}:2=raise")
        with pytest.raises(FailpointError):
            run(tmp_path / "log", transcript)
    check(tmp_path)
    run(tmp_path / "log", transcript)
    check(tmp_path)
