"""A query script as a child process whose parts can be found, killed, stopped and continued.

A Spark query in Python is a small crowd: the script's own Python, the JVM that it starts, the
source runner (the Python in which the offset side of a Python data source lives), a daemon that
forks the Python workers of tasks, and on ``local-cluster`` executors. All of them stay in the
session of the script, so that nothing can hide: what is left is what `/proc` lists there.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from spark_eoc.testing.reaper import kill_session, reaper, session_of
from spark_eoc.testing.wait import until

#: Where a child finds this package, also where it is not installed.
PACKAGE_HOME = str(Path(__file__).resolve().parent.parent.parent)


class Part(str, Enum):
    """The parts of a running script that can be signalled."""

    DRIVER_PYTHON = "driver_python"
    JVM = "jvm"
    SOURCE_RUNNER = "source_runner"
    PYTHON_WORKER = "python_worker"
    EXECUTOR = "executor"

    def __str__(self) -> str:
        return self.value


class Process(NamedTuple):
    """One line of `/proc`: pid, parent, the state letter and the words of the command."""

    pid: int
    parent: int
    state: str
    words: tuple[str, ...]


class ScriptRun:
    """One run of a query script, in a session of its own, writing to a log file.

    A context manager; leaving it kills the whole session. Also when the owner is killed, the
    session is, see :mod:`spark_eoc.testing.reaper`.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.pid = process.pid
        self.log_path = log
        # From then on the session's number may be given to another program's.
        self._gone = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> ScriptRun:
        """Starts ``command``; ``env`` is added to this process's environment, ``log`` appended.

        ``PYSPARK_PYTHON`` is the script's interpreter unless the environment says otherwise; the
        script finds this very package, also where it is not installed.
        """
        defaults = {"PYSPARK_PYTHON": command[0], "SPARK_LOCAL_IP": "127.0.0.1"}
        found = [PACKAGE_HOME, os.environ.get("PYTHONPATH", "")]
        always = {"PYTHONPATH": os.pathsep.join(filter(None, found))}
        path = Path(log)
        with open(path, "ab") as file:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**defaults, **os.environ, **always, **(env or {})},
                cwd=cwd,
                start_new_session=True,
            )
        reaper().session(process.pid)
        return cls(process, path)

    @property
    def running(self) -> bool:
        """Whether the script's own Python exists; a stopped one does."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess`: None while it runs, negative for a signal."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """All that the script, Spark and the workers wrote."""
        return self.log_path.read_text(errors="replace")

    def processes(self) -> list[Process]:
        """Every living process of the session."""
        if self._gone:
            return []
        self._process.poll()  # reaps the script itself, so that it isn't listed as a zombie
        return [found for pid in session_of(self.pid) if (found := read_process(pid))]

    def pids(self, part: Part) -> list[int]:
        """Pids that now play this part; empty when there is none."""
        crowd = self.processes()
        if part is Part.DRIVER_PYTHON:
            return [self.pid] if any(each.pid == self.pid for each in crowd) else []
        return [each.pid for each in crowd if _plays(each, part, crowd)]

    def signal(self, part: Part, number: signal.Signals) -> list[int]:
        """Sends ``number`` to every process of the part; the pids that were there to get it."""
        return [pid for pid in self.pids(part) if send(pid, number)]

    def kill(self, part: Part) -> list[int]:
        """SIGKILL to the part. All Python workers, since a single idle one would prove nothing."""
        return self.signal(part, signal.SIGKILL)

    def stop_all(self) -> None:
        """SIGSTOP to the whole session, until each process is in state T: a zombie to be."""

        def stopped() -> bool:
            moving = [each for each in self.processes() if each.state not in "Tt"]
            for each in moving:
                send(each.pid, signal.SIGSTOP)
            return not moving

        until(stopped, 10, "the whole run stopped")

    def continue_all(self) -> None:
        """SIGCONT to the whole session."""
        for each in self.processes():
            send(each.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """SIGKILL to the whole session, and waits until nothing of it is left."""
        if not self._gone:
            kill_session(self.pid)
            self.wait_gone(10)

    def wait(self, timeout: float) -> int:
        """The script's exit code; raises WaitTimeoutError when it still runs."""
        until(lambda: not self.running, timeout, f"{self.log_path.name}: the script's end")
        code = self.exit_code
        assert code is not None
        return code

    def wait_gone(self, timeout: float) -> None:
        """Waits until no process of the session is left; raises WaitTimeoutError."""
        until(lambda: not self.processes(), timeout, f"{self.log_path.name}: the run gone")
        self._process.wait()
        self._gone = True
        reaper().forget(self.pid)

    def __enter__(self) -> ScriptRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()


def read_process(pid: int) -> Process | None:
    """What `/proc` says of ``pid``, or None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    command = tuple(word.decode(errors="replace") for word in words if word)
    return Process(pid, int(stat[1]), stat[0].decode(), command)


def send(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _plays(process: Process, part: Part, crowd: Sequence[Process]) -> bool:
    words = process.words
    is_java = bool(words) and os.path.basename(words[0]) == "java"
    is_executor = any(word.endswith("CoarseGrainedExecutorBackend") for word in words)
    if part is Part.JVM:
        return is_java and not is_executor
    if part is Part.EXECUTOR:
        return is_java and is_executor
    if part is Part.SOURCE_RUNNER:
        return "pyspark.sql.streaming.python_streaming_source_runner" in words
    # The daemon has the same words as the workers that it forks.
    return _is_task_daemon(words) and any(
        other.pid == process.parent and _is_task_daemon(other.words) for other in crowd
    )


def _is_task_daemon(words: Sequence[str]) -> bool:
    return "pyspark.daemon" in words and "pyspark.worker" in words
