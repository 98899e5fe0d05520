"""Sends lines so that each is stored exactly once: :class:`LineProducer`."""

from __future__ import annotations

from collections.abc import Callable


class LineProducer:
    """Sends lines to a receiver's ``listen`` port under a name, until they are acknowledged.

    What isn't acknowledged is kept, at most ``window_bytes``, and sent again after every loss of
    the connection; the receiver drops what it has already. So a line that ``flush`` or ``close``
    returned for is stored exactly once, whatever dies in between, except this process itself: a
    restarted process asks :attr:`resume_from` and goes on with the line after it.

    ``name`` identifies the producer for as long as the buffer lives. Of two live producers with
    one name the newer wins; the older gets FencedError.

    Methods may be called from any thread. The background thread is a daemon thread.
    ``on_acknowledged(sequence)`` is called on it, cumulative, in rising order.
    """

    def __init__(
        self,
        host: str,
        port: int,
        name: str,
        *,
        token: str | None = None,
        window_bytes: int = 8 * 1024 * 1024,
        last_acknowledged: int | None = None,
        on_acknowledged: Callable[[int], None] | None = None,
        connect_timeout_s: float | None = None,
        stall_timeout_s: float = 30.0,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        """``last_acknowledged`` is what the caller knows from an earlier life: a receiver that
        knows less has lost or expired it, which raises ProtocolError instead of doubling lines.

        ``connect_timeout_s`` bounds the first connection only (None: for ever, with warnings in
        the log); later losses are mended for as long as the producer lives.
        """

    @property
    def resume_from(self) -> int:
        """Number of this name's last durable line when the first connection was made (0: none).

        Waits for that connection. A process that replays a file goes on after this many lines."""
        raise NotImplementedError

    @property
    def sent(self) -> int:
        """Number of the last line given to ``send``; equals ``resume_from`` before the first."""
        raise NotImplementedError

    @property
    def acknowledged(self) -> int:
        """Number of the last line that is durable."""
        raise NotImplementedError

    def send(self, line: bytes | str, timeout_s: float | None = None) -> int:
        """Takes one line (without its newline; str as UTF-8) and returns its number.

        Returns before the line is durable. Waits while the window is full; raises
        UnacknowledgedError if that lasts longer than ``timeout_s`` (the line was not taken).
        Raises ConfigError for a line that holds a newline or ends in a carriage return,
        RecordTooLargeError for one longer than the receiver takes, and whatever made the producer
        fail for good (FencedError, ProtocolError)."""
        raise NotImplementedError

    def flush(self, timeout_s: float | None = None) -> int:
        """Waits until every line taken so far is durable and returns the last one's number.

        Raises UnacknowledgedError with the facts ``acknowledged`` and ``unacknowledged`` (counts
        of this producer's lines) when ``timeout_s`` passes: they are kept, and sent again."""
        raise NotImplementedError

    def close(self, timeout_s: float | None = 30.0) -> None:
        """``flush``, then disconnects; disconnects also when flush raises. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> LineProducer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()
