"""Lines that were sent and aren't acknowledged, or weren't sent yet."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spark_eoc.errors import (
    FencedError,
    ProtocolError,
    RecordTooLargeError,
    SparkEocError,
    UnacknowledgedError,
)
from spark_eoc.protocol import Ok

#: Lines are sent in blocks of about so many bytes.
BLOCK_BYTES = 128 * 1024


@dataclass(frozen=True)
class Block:
    """Lines ``first`` to ``last``, both included, as they go over the wire."""

    first: int
    last: int
    data: bytes
    cost: int


class Window:
    """Shared by the callers' threads, which add, and the link's thread, which sends.

    ``failure`` is final: nothing is taken or sent any more. Everything is guarded by one lock;
    ``poke`` is called, outside of it, when the link sleeps and there is something to do.
    """

    def __init__(self, limit_bytes: int, known: int | None, poke: Callable[[], None]) -> None:
        self._limit = limit_bytes
        self._known = known
        self._poke = poke
        self._changed = threading.Condition()
        self._fresh: list[bytes] = []
        self._nbytes = 0
        self._unsent: deque[Block] = deque()
        self._flying: deque[Block] = deque()
        self._asleep = False
        self._ready = False
        self._closed = False
        self._longest = 0
        self._buffer_id = ""
        self.resume_from: int | None = None
        self.sent = 0
        self.acknowledged = 0
        self.failure: SparkEocError | None = None

    # --- the callers' side ---

    def add(self, line: bytes, timeout_s: float | None) -> int:
        """Takes a line and returns its number; waits for room."""
        with self._changed:
            # `_ready` is true only while nothing is wrong: one test on the usual path.
            if not self._ready or self._nbytes >= self._limit or len(line) > self._longest:
                self._wait_for_room(line, timeout_s)
            self._fresh.append(line)
            self._nbytes += len(line) + 1
            self.sent = sequence = self.sent + 1
            asleep, self._asleep = self._asleep, False
        if asleep:
            self._poke()
        return sequence

    def wait_first(self, timeout_s: float | None) -> int:
        """The number of the last durable line when the first connection was made."""
        with self._changed:
            self._wait(lambda: self.resume_from is not None, timeout_s, "no receiver has answered")
            return self.resume_from or 0

    def wait_acknowledged(self, timeout_s: float | None) -> int:
        """Returns when all lines taken before the call are durable."""
        with self._changed:
            wanted = self.sent
            self._wait(lambda: self.acknowledged >= wanted, timeout_s, "not everything is durable")
            return wanted

    def close(self) -> None:
        """Takes nothing more; what is here is forgotten by whoever owns the link."""
        with self._changed:
            self._closed = True
            self._ready = False
            self._changed.notify_all()
        self._poke()

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def _wait_for_room(self, line: bytes, timeout_s: float | None) -> None:
        self._wait(
            lambda: self._ready and self._nbytes < self._limit,
            timeout_s,
            "the line was not taken: the window is full" if self._ready else "not connected yet",
        )
        if len(line) > self._longest:
            raise RecordTooLargeError(
                f"a line of {len(line)} bytes; the receiver takes {self._longest}",
                applied="the line was not taken",
                next_step="raise the receiver's maxLineBytes, or send shorter lines",
            )

    def _wait(self, done: Callable[[], bool], timeout_s: float | None, what: str) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self.failure is not None:
                raise self.failure
            if self._closed:
                raise ProtocolError("the producer is closed", applied="the line was not taken")
            if done():
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise UnacknowledgedError(
                    f"{what} after {timeout_s:g} s: {self.acknowledged - (self.resume_from or 0)} "
                    f"lines acknowledged, {self.sent - self.acknowledged} not",
                    applied="lines that are not acknowledged are kept, and sent again",
                    next_step="wait longer, or see whether the receiver runs and has room",
                    acknowledged=self.acknowledged - (self.resume_from or 0),
                    unacknowledged=self.sent - self.acknowledged,
                )
            self._changed.wait(left)

    # --- the link's side ---

    def answered(self, ok: Ok) -> None:
        """A connection is made: what the receiver has is acknowledged, the rest is sent again.

        Raises ProtocolError or FencedError if what it has can't be this producer's work.
        """
        with self._changed:
            if self.resume_from is None:
                self._first_answer(ok)
            else:
                self._check_answer(ok)
            self._longest = ok.max_line_bytes or 1 << 62
            self._rewind()
            self._pop(ok.last)
            self._ready = True
            self._changed.notify_all()

    def next_block(self, sleeping: bool = True) -> Block | None:
        """What has to be sent next; None if there is nothing, and then the link may sleep."""
        with self._changed:
            if not self._unsent and self._fresh:
                self._seal()
            if not self._unsent:
                self._asleep = sleeping
                return None
            block = self._unsent.popleft()
            self._flying.append(block)
            return block

    def acknowledge(self, sequence: int) -> None:
        """The receiver says that all lines up to ``sequence`` are durable."""
        with self._changed:
            if sequence > self.sent:
                raise ProtocolError(
                    f"line {sequence} was acknowledged but only {self.sent} were sent"
                )
            self._pop(sequence)
            self._changed.notify_all()

    @property
    def waiting(self) -> bool:
        """Whether lines were sent that aren't acknowledged."""
        return bool(self._flying)

    def fail(self, error: SparkEocError) -> None:
        """Every call from now on, and those that wait, raise this error."""
        with self._changed:
            self.failure = self.failure or error
            self._ready = False
            self._changed.notify_all()

    def _first_answer(self, ok: Ok) -> None:
        if self._known is not None and ok.last < self._known:
            raise _forgotten(ok.last, self._known)
        self.resume_from = self.sent = self.acknowledged = ok.last
        self._buffer_id = ok.buffer_id

    def _check_answer(self, ok: Ok) -> None:
        if ok.buffer_id != self._buffer_id:
            raise ProtocolError(
                f"the receiver has another buffer now: {ok.buffer_id}, before {self._buffer_id}",
                applied=f"lines up to {self.acknowledged} are in the buffer before",
                next_step="bring the old buffer back, or start anew with another producer name",
            )
        if ok.last < self.acknowledged:
            raise _forgotten(ok.last, self.acknowledged)
        if ok.last > self.sent:
            raise FencedError(
                f"another producer with this name has sent up to {ok.last}, this one {self.sent}",
                next_step="give each producer a name of its own",
            )

    def _seal(self) -> None:
        """Fresh lines, at most about one block of them, become a block."""
        lines = self._fresh
        if len(lines) > 1 and self._nbytes > BLOCK_BYTES:
            lines = self._part()
        self._fresh = self._fresh[len(lines) :]
        data = b"\n".join(lines) + b"\n"
        cost = len(data)
        if b"\r\n" in data:
            # The receiver removes one carriage return before a newline: this keeps the line's own.
            data = data.replace(b"\r\n", b"\r\r\n")
        last = self.sent - len(self._fresh)
        self._unsent.append(Block(last - len(lines) + 1, last, data, cost))

    def _part(self) -> list[bytes]:
        size = 0
        for count, line in enumerate(self._fresh, 1):
            size += len(line) + 1
            if size >= BLOCK_BYTES:
                return self._fresh[:count]
        return self._fresh

    def _rewind(self) -> None:
        self._flying.extend(self._unsent)
        self._unsent, self._flying = self._flying, self._unsent
        self._flying.clear()

    def _pop(self, sequence: int) -> None:
        """Forgets lines up to ``sequence``."""
        self.acknowledged = max(self.acknowledged, sequence)
        for blocks in (self._flying, self._unsent):
            while blocks and blocks[0].last <= sequence:
                self._nbytes -= blocks.popleft().cost
        if self._unsent and self._unsent[0].first <= sequence:
            block = self._unsent.popleft()
            rest = block.data.split(b"\n", sequence - block.first + 1)[-1]
            self._unsent.appendleft(Block(sequence + 1, block.last, rest, block.cost))


def _forgotten(last: int, known: int) -> ProtocolError:
    return ProtocolError(
        f"the receiver's last line of this producer is {last}, but {known} was acknowledged: "
        "its number expired there, or the buffer is another one",
        applied="nothing was sent, since lines could be stored twice",
        next_step="bring the old buffer back, or start anew with another producer name",
        last=last,
        acknowledged=known,
    )
