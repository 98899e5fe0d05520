"""One writer, by flock: the error names the holder, and only a stopped one can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eoc.buffer import LogReader, LogWriter
from spark_eoc.buffer.lock import process_state
from spark_eoc.errors import LogLockedError
from spark_eoc.testing.wait import until
from tests.buffer.buffer_logs import append, read_all

HOLDER = """
import sys
from spark_eoc.buffer import LineBlock, LogWriter
writer = LogWriter.open(sys.argv[1])
writer.append(LineBlock.from_lines([b"of the holder"]), receive_time_us=0)
writer.sync()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that writes the buffer."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


def stop(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: (process_state(process.pid) or ("",))[0] == "T", 10, "the process is stopped")


def test_b9_a_second_writer_is_refused_and_told_who_writes(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """The error names the process; what is durable can be read all the while."""
    with pytest.raises(LogLockedError, match=f"process {holder.pid} on host") as caught:
        LogWriter.open(tmp_path)
    assert caught.value.facts["stopped"] is False
    assert read_all(tmp_path) == [b"of the holder"]
    assert LogReader(tmp_path).epoch() == 1


def test_two_writers_in_one_process_are_refused_too(tmp_path: Path) -> None:
    """flock belongs to the open file, so that even a second thread can't write."""
    writer = LogWriter.open(tmp_path)
    with pytest.raises(LogLockedError, match=f"process {os.getpid()}"):
        LogWriter.open(tmp_path)
    writer.close()
    LogWriter.open(tmp_path).close()


def test_a_killed_writer_lets_go_at_once(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    """No stale lock can be: the kernel frees it."""
    holder.kill()
    holder.wait()
    writer = LogWriter.open(tmp_path)
    assert writer.epoch == 2
    writer.close()


def test_a_stopped_writer_is_named_with_what_ends_it(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """It keeps the lock; the message has the command for it."""
    stop(holder)
    with pytest.raises(LogLockedError, match=f"kill -KILL {holder.pid}") as caught:
        LogWriter.open(tmp_path)
    assert caught.value.facts["stopped"] is True
    assert "takeoverMs" in str(caught.value)


def test_takeover_kills_a_stopped_writer_and_goes_on(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """With takeover_ms exactly that process is killed, after it was stopped so long."""
    stop(holder)
    writer = LogWriter.open(tmp_path, takeover_ms=100)
    assert holder.wait(10) == -signal.SIGKILL
    append(writer, b"of the new one")
    writer.close()
    assert read_all(tmp_path) == [b"of the holder", b"of the new one"]


def test_takeover_never_kills_a_running_writer(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """A slow writer is not a dead one."""
    with pytest.raises(LogLockedError):
        LogWriter.open(tmp_path, takeover_ms=0)
    assert holder.poll() is None


def test_takeover_never_kills_a_process_that_only_has_the_number(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """Another start time or another boot: the number was used again, and that one is innocent."""
    stop(holder)
    text = (tmp_path / "lock").read_text()
    for wrong in (
        text.replace('"start_time": ', '"start_time": 1'),
        text.replace('"boot_id": "', '"boot_id": "00'),
        text[:20],
        "",
    ):
        (tmp_path / "lock").write_text(wrong)
        with pytest.raises(LogLockedError):
            LogWriter.open(tmp_path, takeover_ms=0)
        assert holder.poll() is None
