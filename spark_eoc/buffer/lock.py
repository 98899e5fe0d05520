"""One writer per buffer, one reader per consumer name: flock, and who holds it.

The kernel lets go of a flock as soon as its process is dead, however it died, so that nobody ever
has to judge whether a lock is stale. Only a *stopped* process keeps it; the error says so, and
with ``takeover_ms`` exactly that process is killed, if it runs on this host and stays stopped.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from spark_eoc.errors import LogLockedError

LOG = logging.getLogger("spark_eoc.buffer")

LOCK_NAME = "lock"
_STOPPED = ("T", "t")
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Holder:
    """Who wrote itself into a lock file. ``start_time`` is in clock ticks since boot."""

    pid: int
    start_time: int
    boot_id: str
    host: str


def boot_id() -> bytes:
    """16 bytes that are new after each start of the machine; zeros where it can't be told."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def process_state(pid: int) -> tuple[str, int] | None:
    """(state letter, start time) of a process as Linux tells them; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def this_process() -> Holder:
    """What this process writes into a lock file."""
    state = process_state(os.getpid())
    return Holder(os.getpid(), state[1] if state else 0, boot_id().hex(), socket.gethostname())


def read_holder(descriptor: int) -> Holder | None:
    """Who wrote itself into a lock file; None if that is empty or torn."""
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None


def holder_state(holder: Holder) -> str | None:
    """State letter of the holder if it is a process of this host that still lives."""
    if holder.boot_id != boot_id().hex():
        return None
    state = process_state(holder.pid)
    return state[0] if state and state[1] == holder.start_time else None


def try_flock(descriptor: int) -> bool:
    """True if this open file now holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class WriterLock:
    """The lock of a buffer directory; the file is never unlinked."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, directory: Path, takeover_ms: int | None = None) -> WriterLock:
        """Takes the lock at once, or raises LogLockedError naming the holder.

        With ``takeover_ms``, a holder on this host that is stopped all that time is killed.
        """
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock_or_raise(descriptor, directory, takeover_ms)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(this_process())).encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Lets go; does nothing the second time."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock_or_raise(descriptor: int, directory: Path, takeover_ms: int | None) -> None:
    if not try_flock(descriptor) and not _take_over(descriptor, takeover_ms):
        raise _locked(directory, read_holder(descriptor))


def _locked(directory: Path, holder: Holder | None) -> LogLockedError:
    if holder is None:
        return LogLockedError(
            f"buffer {directory} is written by another process, which has not said which",
            next_step="try again, or stop that process",
            path=str(directory),
        )
    state = holder_state(holder)
    stopped = state in _STOPPED
    where = f"process {holder.pid} on host {holder.host}"
    return LogLockedError(
        f"buffer {directory} is written by {where}" + (", which is stopped" if stopped else ""),
        applied="nothing; what is durable can still be read",
        next_step=(
            f"continue it (kill -CONT {holder.pid}) or end it (kill -KILL {holder.pid}), "
            "or set takeoverMs to have a stopped writer killed"
            if stopped
            else "stop that writer first, or read without host, port and listen"
        ),
        path=str(directory),
        pid=holder.pid,
        host=holder.host,
        stopped=stopped,
    )


def _take_over(descriptor: int, takeover_ms: int | None) -> bool:
    """Kills a holder that stays stopped for ``takeover_ms``; True once the lock is ours."""
    if takeover_ms is None:
        return False
    holder = read_holder(descriptor)
    deadline = time.monotonic() + takeover_ms / 1000
    while True:
        if holder is None or holder_state(holder) not in _STOPPED:
            # Gone or running: a running writer is never killed.
            return try_flock(descriptor)
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_SECONDS)
    return _kill_stopped(holder) and _wait_flock(descriptor, 5.0)


def _kill_stopped(holder: Holder) -> bool:
    # A pidfd pins the process, so that its number can't pass to another between look and kill.
    try:
        process = os.pidfd_open(holder.pid)
    except ProcessLookupError:
        return True
    try:
        if holder_state(holder) not in _STOPPED:
            return True
        LOG.warning("killing process %d, stopped while it holds the buffer's lock", holder.pid)
        signal.pidfd_send_signal(process, signal.SIGKILL)
        select.select([process], [], [], 5.0)
        return True
    finally:
        os.close(process)


def _wait_flock(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not try_flock(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
