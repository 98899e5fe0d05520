"""Fsync, then tell: nothing is acknowledged in any other way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from spark_eoc.failpoints import hit
from spark_eoc.receiver.connection import Connection
from spark_eoc.receiver.log import Log
from spark_eoc.receiver.reports import Deliver, Durable, Flushed, Report

#: Frames that may wait for the disk while the next one is made. They share its next fsync.
MOST_FRAMES = 8


@dataclass(frozen=True)
class Appended:
    """A frame in the log that may not be durable yet; ``newest`` are the last numbers in it of
    the connections that wait for an acknowledgement."""

    newest: dict[Connection, int]
    records: int
    nbytes: int


class Syncer:
    """``now`` in the commit thread, or ``later`` in a thread of its own, whose body is ``run``.

    Under load the next frame is cut, checked and written while the disk works on the one before;
    otherwise the detour over another thread would only cost time.
    """

    def __init__(self, writer: Log, deliver: Deliver, on_failure: Callable[[], None]) -> None:
        self._writer = writer
        self._deliver = deliver
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: list[Appended] = []
        self._busy = False
        self._closed = False
        self._failure: BaseException | None = None

    def now(self, frame: Appended) -> None:
        """Makes everything durable that was appended, and tells those of ``frame``."""
        self._check()
        self._sync([frame])

    def later(self, frame: Appended) -> None:
        """Returns at once, unless too many frames wait already."""
        with self._changed:
            while len(self._waiting) >= MOST_FRAMES and self._failure is None:
                self._changed.wait()
            self._check()
            self._waiting.append(frame)
            self._changed.notify_all()

    def settle(self) -> None:
        """Returns when all that was appended is durable; raises what went wrong."""
        with self._changed:
            while (self._waiting or self._busy) and self._failure is None:
                self._changed.wait()
            self._check()

    def close(self) -> None:
        """Ends the thread when it has done what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """The thread's body."""
        try:
            while frames := self._take():
                self._sync(frames)
        except BaseException as error:  # noqa: BLE001 - handed on to the commit thread
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._on_failure()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _take(self) -> list[Appended]:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not (self._waiting or self._closed):
                self._changed.wait()
            frames, self._waiting = self._waiting, []
            self._busy = bool(frames)
            self._changed.notify_all()
            return frames

    def _sync(self, frames: list[Appended]) -> None:
        self._writer.sync()
        hit("receiver.before_ack")
        self._deliver(acknowledgements(frames))


def acknowledgements(frames: list[Appended]) -> list[Report]:
    """Who has to be told what after the fsync of these frames."""
    newest = {peer: last for frame in frames for peer, last in frame.newest.items()}
    reports: list[Report] = [Durable(connection, last) for connection, last in newest.items()]
    records = sum(frame.records for frame in frames)
    return [*reports, Flushed(records, sum(frame.nbytes for frame in frames))]
