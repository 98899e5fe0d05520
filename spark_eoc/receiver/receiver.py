"""The receiver: sockets in, lines durable in the log out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from spark_eoc.receiver.committer import Committer
from spark_eoc.receiver.counts import Counts, ReceiverStats
from spark_eoc.receiver.inbox import Inbox
from spark_eoc.receiver.log import Log
from spark_eoc.receiver.loop import Loop
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.sockets import is_loopback

log = logging.getLogger(__name__)


class Receiver:
    """Takes lines from sockets and appends them to an open ``LogWriter``.

    A line is acknowledged, and visible to readers, only after its fsync. The writer belongs to
    the caller: the receiver appends, syncs and trims (from one thread of its own) and never
    closes it. All threads are daemon threads; nothing depends on ``stop`` being called.

    After a failure of the log the receiver is stopped by itself: ``error`` holds the reason,
    producers were told ``ERR log``, and nothing more is taken.
    """

    def __init__(
        self, writer: Log, options: ReceiverOptions, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.options = options
        self._counts = Counts()
        # A frame is not more than half a segment, so that small buffers stay in their limit.
        frame_bytes = min(options.max_frame_bytes, writer.options.segment_bytes // 2)
        self._inbox = Inbox(options.flush_interval_ms / 1000, frame_bytes)
        self._loop = Loop(options, self._inbox, writer.buffer_id, self._counts)
        self._committer = Committer(writer, self._inbox, options, self._loop.deliver, clock)
        self._threads: list[threading.Thread] = []

    def start(self) -> Receiver:
        """Binds (``listen``; OSError if it can't) or begins to connect, and returns at once."""
        self._loop.open()
        if self.options.listen is not None:
            host = self.options.listen[0]
            if not is_loopback(host) and not (self.options.tls or self.options.token):
                log.warning(
                    "listening on %s without TLS or token: whoever reaches it can add lines",
                    host,
                )
        bodies = {
            "socket": self._loop.run,
            "commit": self._committer.run,
            "sync": self._committer.syncer.run,
        }
        for name, body in bodies.items():
            thread = threading.Thread(target=body, name=f"spark-eoc-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def stop(self, timeout_s: float = 10.0) -> None:
        """Takes no more bytes, makes what was received durable where there is room for it,
        acknowledges that, closes all sockets, ends the threads. Idempotent; never raises for
        an earlier ``error``."""
        self._loop.end()
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                log.warning("%s did not end within %g s", thread.name, timeout_s)

    @property
    def running(self) -> bool:
        """Whether it takes lines: started, not stopped, no ``error``."""
        # The socket thread, which was started first, ends last.
        return bool(self._threads) and self._threads[0].is_alive()

    @property
    def port(self) -> int:
        """The bound port with ``listen``, the peer's port with ``connect``."""
        return self._loop.port

    @property
    def error(self) -> BaseException | None:
        """Why the receiver stopped by itself; None while it works, and after a clean stop."""
        return self._loop.error

    @property
    def connected(self) -> bool:
        """Whether at least one peer is connected now."""
        return bool(self._loop.peers.connections)

    def stats(self) -> ReceiverStats:
        """Counts so far."""
        now = self._counts
        peers = list(self._loop.peers.connections)
        return ReceiverStats(
            connections=len(peers),
            accepted=now.accepted,
            lines=now.lines,
            line_bytes=now.line_bytes,
            flushes=now.flushes,
            repeated_lines=now.repeated_lines + sum(peer.repeated for peer in peers),
            oversize_lines=now.oversize_lines + sum(peer.oversize for peer in peers),
            dropped_unfinished=now.dropped_unfinished,
            refused=now.refused,
            pending_bytes=self._inbox.nbytes,
            unfinished_bytes=now.unfinished_bytes,
            waiting_for_room=self._committer.waiting_for_room,
        )

    def __enter__(self) -> Receiver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
