"""Nothing stays behind: processes and folders are removed also when their owner is SIGKILLed.

A small process of its own holds the other end of a pipe. When the owner ends, however it ends,
the pipe closes, and the reaper kills what is still registered and deletes the folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time


def start_time(pid: int) -> str | None:
    """When process ``pid`` was started, in clock ticks after boot, or None when it is gone.

    (pid, start time) names one process for good; a pid alone is used again.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # Field 3 is the state; a zombie is gone for our purposes.
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


class Reaper:
    """The owner's side. One for each process is enough; it is started at the first use."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal must not reach it
        )

    def process(self, pid: int) -> None:
        """Kill ``pid`` (SIGKILL) when the owner has ended."""
        started = start_time(pid)
        if started is not None:
            self._tell("process", f"{pid} {started}")

    def session(self, pid: int) -> None:
        """Kill every process of the session that ``pid`` leads when the owner has ended."""
        started = start_time(pid)
        if started is not None:
            self._tell("session", f"{pid} {started}")

    def folder(self, path: str) -> None:
        """Delete ``path`` and all below when the owner has ended."""
        self._tell("folder", os.path.abspath(path))

    def mount(self, path: str) -> None:
        """Unmount ``path`` when the owner has ended."""
        self._tell("mount", os.path.abspath(path))

    def forget(self, what: int | str) -> None:
        """Takes a pid or a folder off the list."""
        self._tell("forget", str(what) if isinstance(what, int) else os.path.abspath(what))

    def _tell(self, verb: str, rest: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(f"{verb} {rest}\n".encode())
        pipe.flush()


_reapers: dict[int, Reaper] = {}


def reaper() -> Reaper:
    """This process's reaper."""
    pid = os.getpid()
    if pid not in _reapers:
        _reapers[pid] = Reaper()
    return _reapers[pid]


def session_of(leader: int) -> list[int]:
    """Pids of all living processes in the session of ``leader``, itself included."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] not in (b"Z", b"X"):
            found.append(int(name))
    return found


def kill_session(leader: int) -> None:
    """SIGKILLs every process of the session, again until none is left; at most 10 s."""
    deadline = time.monotonic() + 10
    while (pids := session_of(leader)) and time.monotonic() < deadline:
        for pid in pids:
            kill(pid)
        time.sleep(0.02)


def kill(pid: int) -> None:
    """SIGKILL; a process that is gone is no error."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    """The reaper's side: reads the list until the pipe closes, then clears it."""
    processes: dict[str, tuple[str, str]] = {}
    folders: dict[str, None] = {}
    mounts: dict[str, None] = {}
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "folder":
            folders[rest] = None
        elif verb == "mount":
            mounts[rest] = None
        elif verb == "forget":
            folders.pop(rest, None)
            mounts.pop(rest, None)
            processes.pop(rest, None)
        else:
            pid, started = rest.split()
            processes[pid] = (verb, started)
    for pid, (verb, started) in processes.items():
        # A session outlives its leader; while members live, the leader's pid is not given again.
        if verb == "session" and start_time(int(pid)) in (started, None):
            kill_session(int(pid))
        elif start_time(int(pid)) == started:
            kill(int(pid))
    for mount in mounts:
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
