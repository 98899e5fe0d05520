"""Case B9 end to end: a daemon on a disk that is really full, and one whose fsync fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_eoc.buffer import ConsumerPosition, LogReader
from spark_eoc.producer import LineProducer
from spark_eoc.testing.disks import SmallDisk
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.programs import UnavailableServerError
from spark_eoc.testing.wait import WaitTimeoutError, until
from tests.receiver.conftest import stored

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]


@contextmanager
def daemon(
    path: Path, port: int, *more: str, cli: Sequence[str] = CLI, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`spark-eoc receive`, ready; killed at the end."""
    command = [*cli, "receive", "--buffer", str(path), "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert b"ready" in process.stdout.readline(), process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB."""
    try:
        disk = SmallDisk(tmp_path / "small", 2)
    except UnavailableServerError as error:
        pytest.skip(str(error))
    with disk:
        yield disk.folder


def line(number: int) -> bytes:
    return b"%06d" % number + b"x" * 994


class Sender:
    """Sends numbered lines of 1,000 bytes in a thread of its own, as fast as they are taken."""

    def __init__(self, port: int, count: int) -> None:
        self.acknowledged = 0
        self.producer = LineProducer(
            "127.0.0.1", port, "p", window_bytes=100_000, on_acknowledged=self._told
        )
        self._thread = threading.Thread(target=self._send, args=(count,), daemon=True)
        self._thread.start()

    def _told(self, sequence: int) -> None:
        self.acknowledged = sequence

    def _send(self, count: int) -> None:
        for number in range(count):
            self.producer.send(line(number))
        self.producer.flush()

    def stalls(self) -> bool:
        """Nothing is acknowledged for a while, though something waits."""
        before = self.acknowledged
        return not _changes(lambda: self.acknowledged != before, 0.5)


def _changes(changed, seconds: float) -> bool:
    try:
        until(changed, seconds, "a change")
    except WaitTimeoutError:
        return False
    return True


@pytest.mark.parametrize("killed", [False, True])
def test_a_full_disk_loses_nothing_and_it_goes_on_when_there_is_room(small_disk, killed):
    """The producer waits, and is neither refused nor acknowledged; readers read; what a consumer
    commits is trimmed though the disk is full; also if the daemon is killed while it is."""
    path, port = small_disk / "log", free_port()
    options = ("--segment-bytes", "131072", "--retention", "0s,0B")
    with ExitStack() as stack:
        process = stack.enter_context(daemon(path, port, *options))
        sender = Sender(port, 4000)
        until(lambda: sender.acknowledged > 500, 20, "the first lines")
        position = ConsumerPosition.open(path)
        until(sender.stalls, 30, "the disk is full")
        assert sender.producer._window.failure is None
        assert shutil.disk_usage(small_disk).free < 200_000
        if killed:
            process.send_signal(signal.SIGKILL)
            process.wait()
            stack.enter_context(daemon(path, port, *options))
        read = stored(path)
        assert len(read) >= sender.acknowledged
        while len(read) < 4000:
            position.hand_out(len(read))
            position.commit(len(read))
            until(lambda: LogReader(path).end_offset() > len(read), 30, "more lines")  # noqa: B023
            read += stored(path, len(read))
    assert read == [line(number) for number in range(4000)]
    sender.producer.abandon()


#: Between the program and the C library: fails, with the number in the file FAIL, if it is there.
SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
int fdatasync(int descriptor) {
    FILE *file = fopen(getenv("FAIL"), "r");
    if (file == NULL) return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
    if (fscanf(file, "%d", &errno) != 1) errno = 0;
    int error = errno;
    fclose(file);
    errno = error;
    return -1;
}
"""

#: The same where there is no compiler: between our code and Python's `os`.
PATCH = """
import os, sys
from pathlib import Path
honest, failing = os.fdatasync, Path(os.environ["FAIL"])
def fdatasync(descriptor):
    if failing.exists():
        error = int(failing.read_text())
        raise OSError(error, os.strerror(error))
    honest(descriptor)
os.fdatasync = fdatasync
from spark_eoc.cli import main
sys.exit(main())
"""


@pytest.fixture
def failing(tmp_path: Path) -> tuple[Path, list[str], dict[str, str]]:
    """(file, command, environment): once the file is there fdatasync fails with its number."""
    file = tmp_path / "fail"
    compiler = shutil.which("cc")
    if compiler is None:
        return file, [sys.executable, "-c", PATCH], {"FAIL": str(file)}
    (tmp_path / "shim.c").write_text(SHIM)
    library = str(tmp_path / "shim.so")
    build = [compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "shim.c"), "-ldl"]
    subprocess.run(build, check=True)
    return file, CLI, {"FAIL": str(file), "LD_PRELOAD": library}


@pytest.mark.parametrize("error", [5, 28], ids=["EIO", "ENOSPC"])
def test_a_failing_fsync_stops_the_daemon_and_a_restart_recovers(tmp_path, failing, error):
    """Nothing that came after the failure is acknowledged, the published end stays where it was,
    the exit code says so, and the next daemon has every line once."""
    path, port = tmp_path / "log", free_port()
    file, command, environment = failing
    with daemon(path, port, cli=command, **environment) as process:
        producer = LineProducer("127.0.0.1", port, "p")
        for number in range(100):
            producer.send(line(number))
        producer.flush(20)
        file.write_text(str(error))
        for number in range(100, 200):
            producer.send(line(number))
        _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"fsync failed" in said
    assert os.strerror(error).encode() in said
    assert producer.acknowledged == 100
    assert LogReader(path).end_offset() == 100
    with daemon(path, port):
        producer.close(30)
    assert stored(path) == [line(number) for number in range(200)]
