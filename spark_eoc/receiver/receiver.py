"""The receiver: sockets in, lines durable in the log out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_eoc.receiver.options import ReceiverOptions


@dataclass(frozen=True)
class ReceiverStats:
    """Counts since the start of one receiver; a snapshot."""

    connections: int = 0
    accepted: int = 0
    lines: int = 0
    line_bytes: int = 0
    flushes: int = 0
    repeated_lines: int = 0
    oversize_lines: int = 0
    dropped_unfinished: int = 0
    refused: int = 0
    pending_bytes: int = 0
    unfinished_bytes: int = 0
    waiting_for_room: bool = False


class Receiver:
    """Takes lines from sockets and appends them to an open ``LogWriter``.

    A line is acknowledged, and visible to readers, only after its fsync. The writer belongs to
    the caller: the receiver appends, syncs and trims (from one thread of its own) and never
    closes it. All threads are daemon threads; nothing depends on ``stop`` being called.

    After a failure of the log the receiver is stopped by itself: ``error`` holds the reason,
    producers were told ``ERR log``, and nothing more is taken.
    """

    def __init__(self, writer: Any, options: ReceiverOptions) -> None:
        self._writer = writer
        self.options = options

    def start(self) -> Receiver:
        """Binds (``listen``; OSError if it can't) or begins to connect, and returns at once."""
        raise NotImplementedError

    def stop(self, timeout_s: float = 10.0) -> None:
        """Takes no more bytes, makes what was received durable where there is room for it,
        acknowledges that, closes all sockets, ends the threads. Idempotent; never raises for
        an earlier ``error``."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The bound port with ``listen``, the peer's port with ``connect``."""
        raise NotImplementedError

    @property
    def error(self) -> BaseException | None:
        """Why the receiver stopped by itself; None while it works, and after a clean stop."""
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        """Whether at least one peer is connected now."""
        raise NotImplementedError

    def stats(self) -> ReceiverStats:
        """Counts so far."""
        raise NotImplementedError

    def __enter__(self) -> Receiver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
