"""Where lines wait for the log: filled by the socket thread, emptied by the commit thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from spark_eoc.receiver.connection import Connection

#: Most chunks of one frame; a frame's header counts its runs in 16 bits.
MAX_CHUNKS = 60_000

#: What a waiting chunk costs beside its bytes, so that single-byte lines count too.
CHUNK_OVERHEAD = 256


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one connection; ``producer`` b"" is plain, and then ``first`` is 0."""

    connection: Connection
    producer: bytes
    data: bytes
    records: int
    first: int

    @property
    def cost(self) -> int:
        """Bytes that it holds while it waits."""
        return len(self.data) + CHUNK_OVERHEAD


class Inbox:
    """Chunks in order of arrival, and producers that wait for an answer to their hello.

    With ``full_bytes`` waiting, they don't wait for the interval; it is the size of one frame.
    """

    def __init__(self, flush_interval_s: float, full_bytes: int) -> None:
        self._flush_interval = flush_interval_s
        self.full_bytes = full_bytes
        self._condition = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._hellos: list[Connection] = []
        self._urgent = False
        self._due = 0.0
        self._closing = False
        self.nbytes = 0

    def put(self, chunk: Chunk) -> None:
        """Adds lines; those of a producer are urgent, since somebody waits for them."""
        with self._condition:
            if not self._chunks:
                self._due = time.monotonic() + self._flush_interval
            self._chunks.append(chunk)
            self.nbytes += chunk.cost
            urgent = bool(chunk.producer) or self.nbytes >= self.full_bytes
            # A wake-up costs more than a chunk: the first one sets the timer, urgent ones end it.
            if len(self._chunks) == 1 or (urgent and not self._urgent):
                self._condition.notify()
            self._urgent = self._urgent or urgent

    def put_hello(self, connection: Connection) -> None:
        """A producer waits for the answer; lines of its name that wait here are dropped.

        They came over an older connection, aren't durable and will be sent again after the
        answer: kept, they would be stored twice.
        """
        with self._condition:
            kept = [chunk for chunk in self._chunks if chunk.producer != connection.producer]
            self._chunks = deque(kept)
            self.nbytes = sum(chunk.cost for chunk in kept)
            self._hellos.append(connection)
            self._condition.notify()

    def close(self) -> None:
        """Nothing will be put any more; what waits is due now."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    @property
    def closing(self) -> bool:
        """Whether ``close`` was called."""
        return self._closing

    def wait(self, longest_s: float) -> None:
        """Returns when lines are due, a producer waits for an answer, the inbox closes, or after
        ``longest_s``."""
        end = time.monotonic() + longest_s
        with self._condition:
            while not (self._hellos or self._closing or self._urgent):
                until = min(end, self._due) if self._chunks else end
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._condition.wait(left)

    def pause(self, seconds: float) -> None:
        """Waits while there is no room, or until a producer waits for an answer."""
        with self._condition:
            if not (self._hellos or self._closing):
                self._condition.wait(seconds)

    def take_hellos(self) -> list[Connection]:
        """Those who wait for an answer, once."""
        with self._condition:
            hellos, self._hellos = self._hellos, []
            return hellos

    def first(self, limit: int) -> list[Chunk]:
        """The oldest chunks up to ``limit`` bytes, at least one if there is any; they stay."""
        with self._condition:
            return self._first(limit)

    def take(self, limit: int) -> list[Chunk]:
        """The same, taken out."""
        with self._condition:
            chosen = self._first(limit)
            for chunk in chosen:
                self._chunks.popleft()
                self.nbytes -= chunk.cost
            self._urgent = bool(self._chunks)
            return chosen

    def _first(self, limit: int) -> list[Chunk]:
        chosen: list[Chunk] = []
        size = 0
        for chunk in self._chunks:
            size += chunk.cost
            if chosen and (size > limit or len(chosen) == MAX_CHUNKS):
                break
            chosen.append(chunk)
        return chosen

    def put_back(self, chunks: list[Chunk]) -> None:
        """Undoes ``take``: these couldn't be written yet.

        Of a producer that has said hello again in the meantime they are dropped, as in
        ``put_hello``: the answer will not count them.
        """
        with self._condition:
            again = {connection.producer for connection in self._hellos}
            kept = [chunk for chunk in chunks if chunk.producer not in again]
            self._chunks.extendleft(reversed(kept))
            self.nbytes += sum(chunk.cost for chunk in kept)
            self._urgent = True
