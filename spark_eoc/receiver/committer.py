"""The commit thread: all connections' lines in one frame, one fsync, all acknowledgements.

While one flush is on its way to the disk the next one collects in the inbox, so a slow disk makes
larger flushes, not a queue of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_eoc.buffer.block import LineBlock, Run
from spark_eoc.buffer.expiry import has_expired
from spark_eoc.errors import LogClosedError, LogError, LogFullError
from spark_eoc.receiver.inbox import Chunk, Inbox
from spark_eoc.receiver.lines import cut_lines
from spark_eoc.receiver.log import Log
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.reports import Answered, Deliver, Ended, Report
from spark_eoc.receiver.syncer import Appended, Syncer

log = logging.getLogger(__name__)

#: How often a log without room is asked again, seconds, and how often it is complained about.
ROOM_POLL_S = 0.02
COMPLAIN_S = 30.0


class Committer:
    """``run`` is the commit thread's body; ``deliver`` hands events to the socket thread."""

    def __init__(
        self,
        writer: Log,
        inbox: Inbox,
        options: ReceiverOptions,
        deliver: Deliver,
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._inbox = inbox
        self._options = options
        self._deliver = deliver
        self.syncer = Syncer(writer, deliver, inbox.close)
        self._clock = clock
        self._last_trim = time.monotonic()
        self._complained = 0.0
        self.waiting_for_room = False

    def run(self) -> None:
        """Commits until the inbox is closed and empty, or the log fails."""
        try:
            while self._step():
                pass
            self.syncer.settle()
        except BaseException as error:  # noqa: BLE001 - the thread's end: handed on, not lost
            self._deliver([Ended(error)])
        else:
            self._deliver([Ended(None)])
        finally:
            self.syncer.close()

    def _step(self) -> bool:
        # Also without lines: consumers commit, and what they have done with is trimmed.
        self._inbox.wait(max(self._options.trim_interval_ms / 1000, 0.1))
        self._answer()
        self._trim()
        chunks = self._portion()
        if chunks:
            self._commit(chunks)
            return True
        if self._inbox.closing:
            # What is left has no room; it was never acknowledged.
            return False
        if self._inbox.nbytes:
            self._inbox.pause(ROOM_POLL_S)
        return True

    def _answer(self) -> None:
        """Answers hellos, when all that was appended is durable and nothing is on its way."""
        hellos = self._inbox.take_hellos()
        if hellos:
            self.syncer.settle()
        answers: list[Report] = []
        for connection in hellos:
            table = self._writer.producers
            state = table.get(connection.producer)
            expired = has_expired(table, connection.producer)
            answers.append(Answered(connection, state.last_sequence if state else 0, expired))
        if answers:
            self._deliver(answers)

    def _portion(self) -> list[Chunk]:
        """As many waiting chunks as one frame and the log have room for; none: wait."""
        for limit in (self._inbox.full_bytes, 1):
            chunks = self._inbox.first(limit)
            if not chunks:
                self.waiting_for_room = False
                return []
            if self._has_room(frame_bytes(chunks)):
                self.waiting_for_room = False
                return self._inbox.take(limit)
        self._no_room("the buffer is full until a consumer commits")
        return []

    def _has_room(self, nbytes: int) -> bool:
        try:
            return self._writer.room(nbytes)
        except LogFullError as error:
            # It would have begun a new segment, but the disk is full.
            self._no_room(str(error))
            return False

    def _commit(self, chunks: list[Chunk]) -> None:
        block = to_block(chunks)
        try:
            self._writer.append(block, receive_time_us=int(self._clock() * 1e6))
        except LogFullError as error:
            self._inbox.put_back(chunks)
            self._no_room(str(error))
            self._inbox.pause(ROOM_POLL_S)
            return
        newest = {
            each.connection: each.first + each.records - 1 for each in chunks if each.producer
        }
        frame = Appended(newest, block.records, block.data_bytes)
        if self._inbox.nbytes >= self._inbox.full_bytes // 2:
            self.syncer.later(frame)
        else:
            self.syncer.now(frame)

    def _no_room(self, why: str) -> None:
        self.waiting_for_room = True
        now = time.monotonic()
        if not self._complained or now - self._complained > COMPLAIN_S:
            self._complained = now
            log.warning(
                "%s: %d bytes wait in memory and sockets are not read; going on when there is room",
                why,
                self._inbox.nbytes,
            )

    def _trim(self) -> None:
        """Now and then, and whenever there may be room to gain."""
        now = time.monotonic()
        interval = ROOM_POLL_S if self.waiting_for_room else self._options.trim_interval_ms / 1000
        if now - self._last_trim >= interval:
            self._last_trim = now
            try:
                self._writer.apply_trim()
            except LogClosedError:
                raise
            except LogError as error:
                log.warning("%s", error)


def to_block(chunks: list[Chunk]) -> LineBlock:
    """One block of all chunks' lines, in order; neighbours of one sender share a run."""
    data, offsets, _ = cut_lines(b"".join(chunk.data for chunk in chunks))
    runs: list[Run] = []
    for chunk in chunks:
        last = runs[-1] if runs else None
        if last is not None and _follows(last, chunk):
            runs[-1] = Run(last.producer, last.records + chunk.records, last.first_sequence)
        else:
            runs.append(Run(chunk.producer, chunk.records, chunk.first))
    return LineBlock(memoryview(data), memoryview(offsets), tuple(runs))


def _follows(run: Run, chunk: Chunk) -> bool:
    if run.producer != chunk.producer:
        return False
    return not run.producer or run.first_sequence + run.records == chunk.first


def frame_bytes(chunks: list[Chunk]) -> int:
    """An upper bound of the frame that these chunks become."""
    return 512 + sum(
        len(chunk.data) + 4 * chunk.records + len(chunk.producer) + 24 for chunk in chunks
    )
