"""The public face of a producer."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable

from spark_eoc.errors import ConfigError
from spark_eoc.producer.link import Link
from spark_eoc.producer.window import Window
from spark_eoc.protocol import Hello, check_name, check_token


class LineProducer:
    """Sends lines to a receiver's ``listen`` port under a name, until they are acknowledged.

    What isn't acknowledged is kept, at most ``window_bytes``, and sent again after every loss of
    the connection; the receiver drops what it has already. So a line that ``flush`` or ``close``
    returned for is stored exactly once, whatever dies in between, except this process itself: a
    restarted process asks :attr:`resume_from` and goes on with the line after it.

    ``name`` identifies the producer for as long as the buffer lives. Of two live producers with
    one name the newer wins; the older gets FencedError.

    Methods may be called from any thread. The background thread is a daemon thread.
    ``on_acknowledged(sequence)`` is called on it, cumulative, in rising order; what it raises ends
    the producer.
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
        tls: bool = False,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> None:
        """Returns at once; the connection is made in the background.

        ``last_acknowledged`` is what the caller knows from an earlier life: a receiver that
        knows less has lost or expired it, which raises ProtocolError instead of doubling lines.

        ``connect_timeout_s`` bounds the first connection only (None: for ever, with warnings in
        the log); later losses are mended for as long as the producer lives. A connection on which
        nothing is acknowledged for ``stall_timeout_s`` is given up for a new one. TLS is used
        with ``tls`` (the system's authorities), or a ``tls_ca`` or ``tls_cert`` file.
        """
        if window_bytes < 1:
            raise ConfigError(f"window_bytes must be at least 1, not {window_bytes}")
        context = (
            _tls_context(tls_ca, tls_cert, tls_key)
            if tls or tls_ca or tls_cert or tls_key
            else None
        )
        hello = Hello(check_name(name), token=check_token(token))
        self.name = name
        self._closing = threading.Lock()
        link = Link(
            (host, port),
            hello,
            context=context,
            on_acknowledged=on_acknowledged,
            connect_timeout_s=connect_timeout_s,
            stall_timeout_s=stall_timeout_s,
        )
        self._window = Window(window_bytes, last_acknowledged, link.poke)
        self._thread = threading.Thread(
            target=link.run, args=(self._window,), name=f"spark-eoc-producer-{name}", daemon=True
        )
        self._thread.start()

    @property
    def resume_from(self) -> int:
        """Number of this name's last durable line when the first connection was made (0: none).

        Waits for that connection. A process that replays a file goes on after this many lines."""
        return self._window.wait_first(None)

    @property
    def sent(self) -> int:
        """Number of the last line given to ``send``; equals ``resume_from`` before the first."""
        return self._window.sent

    @property
    def taken(self) -> int:
        """How many lines this producer has taken."""
        return self._window.sent - (self._window.resume_from or 0)

    @property
    def acknowledged(self) -> int:
        """Number of the last line that is durable."""
        return self._window.acknowledged

    def send(self, line: bytes | str, timeout_s: float | None = None) -> int:
        """Takes one line (without its newline; str as UTF-8) and returns its number.

        Returns before the line is durable. Waits for the first connection, which tells where the
        numbers begin, and while the window is full; raises UnacknowledgedError if that lasts
        longer than ``timeout_s`` (the line was not taken). Raises ConfigError for a line that
        holds a newline, RecordTooLargeError for one longer than the receiver takes, and whatever
        made the producer fail for good (FencedError, ProtocolError)."""
        data = line if type(line) is bytes else _as_bytes(line)
        if b"\n" in data:
            raise ConfigError(
                f"a line holds a newline: {data[:60]!r}",
                applied="the line was not taken",
                next_step="send its parts one by one, or escape it",
            )
        return self._window.add(data, timeout_s)

    def flush(self, timeout_s: float | None = None) -> int:
        """Waits until every line taken so far is durable and returns the last one's number.

        Raises UnacknowledgedError with the facts ``acknowledged`` and ``unacknowledged`` (counts
        of this producer's lines) when ``timeout_s`` passes: they are kept, and sent again."""
        return self._window.wait_acknowledged(timeout_s)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """``flush``, then disconnects; disconnects also when flush raises. Idempotent."""
        with self._closing:
            if self._window.closed:
                return
            try:
                if self._window.sent > self._window.acknowledged:
                    self.flush(timeout_s)
                elif self._window.failure is not None:
                    raise self._window.failure
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Disconnects without waiting for acknowledgements."""
        self._window.close()
        self._thread.join(5.0)

    def __enter__(self) -> LineProducer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def _as_bytes(line: bytes | str) -> bytes:
    if isinstance(line, str):
        return line.encode()
    if isinstance(line, bytes | bytearray | memoryview):
        return bytes(line)
    raise ConfigError(f"a line is bytes or str, not {type(line).__name__}")


def _tls_context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    if key is not None and cert is None:
        raise ConfigError("tls_key is given without tls_cert", next_step="give tls_cert too")
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        given = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
        files = ", ".join(f"{name} {path!r}" for name, path in given.items() if path is not None)
        raise ConfigError(f"the TLS files can't be used ({files}): {error}") from error
    return context
