"""Who has sent more than its share, and when it may be read again; pure but for its memory."""

from __future__ import annotations

from spark_eoc.receiver.connection import Connection
from spark_eoc.receiver.options import READ_BYTES

#: What a connection may be ahead of its rate after a pause, and behind it by one read, seconds.
SLACK_S = 0.25
_LEAST_READ = 1024


class Throttle:
    """Used by the socket thread only. ``rate`` is in bytes a second of each connection; 0 is off.

    A connection that has used up its share isn't read until it has made up for it. So what it
    sends waits in its socket, and in the end in the peer: nothing is dropped.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._paid_until: dict[Connection, float] = {}
        self._resting: set[Connection] = set()
        self.read_bytes = READ_BYTES
        if rate:
            self.read_bytes = min(READ_BYTES, max(_LEAST_READ, int(rate * SLACK_S)))

    def spend(self, connection: Connection, nbytes: int, now: float) -> bool:
        """``nbytes`` were read; True if the connection has to rest now."""
        if not self._rate:
            return False
        before = max(self._paid_until.get(connection, 0.0), now - SLACK_S)
        self._paid_until[connection] = before + nbytes / self._rate
        if self._paid_until[connection] <= now:
            return False
        self._resting.add(connection)
        return True

    def rests(self, connection: Connection) -> bool:
        """Whether it isn't read now, for what it has sent before."""
        return connection in self._resting

    def rested(self, now: float) -> list[Connection]:
        """Those that may be read again; each is told once."""
        if not self._resting:
            return []
        done = [each for each in self._resting if self._paid_until[each] <= now]
        self._resting.difference_update(done)
        return done

    def next_end(self) -> float | None:
        """When the next rest ends; None if nobody rests."""
        return min((self._paid_until[each] for each in self._resting), default=None)

    def forget(self, connection: Connection) -> None:
        """It is gone, or is read whatever it sends."""
        self._paid_until.pop(connection, None)
        self._resting.discard(connection)
