"""The background thread of a producer: one connection after the other."""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace

from spark_eoc.backoff import Backoff
from spark_eoc.errors import (
    FencedError,
    ProtocolError,
    RecordTooLargeError,
    SparkEocError,
    UnacknowledgedError,
)
from spark_eoc.producer.window import Window
from spark_eoc.protocol import TEMPORARY, Ack, Hello, Ok, Refusal, parse_reply

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
GOODBYE_S = 2.0
COMPLAIN_S = 30.0

#: What a server that speaks TLS alone says to a client that doesn't.
TLS_ALERT = b"\x15\x03"
USE_TLS = "use TLS: tls=True, or tls_ca with the authority's file (spark-eoc send: --tls, --tls-ca)"
#: How OpenSSL calls bytes that are no TLS.
NOT_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class Link:
    """``run`` connects, says hello, sends and listens until the window is closed or has failed."""

    def __init__(
        self,
        address: tuple[str, int],
        hello: Hello,
        *,
        context: ssl.SSLContext | None,
        on_acknowledged: Callable[[int], None] | None,
        connect_timeout_s: float | None,
        stall_timeout_s: float,
    ) -> None:
        self._address = address
        self._hello = replace(hello, session=secrets.token_hex(8).encode())
        self._context = context
        self._on_acknowledged = on_acknowledged
        self._connect_timeout = connect_timeout_s
        self._stall = stall_timeout_s
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)
        self._backoff = Backoff(0.02, 1.0)
        self._complained = 0.0
        self._reason = "no connection was tried"
        self._give_up: float | None = None
        self._told = 0

    def poke(self) -> None:
        """Ends the thread's sleep; from any thread."""
        # A full pipe means that it is awake already, a closed one that it has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    def run(self, window: Window) -> None:
        """The thread's body."""
        if self._connect_timeout is not None:
            self._give_up = time.monotonic() + self._connect_timeout
        try:
            while not window.closed and window.failure is None:
                self._once(window)
                self._check_patience(window)
                self._sleep(self._left(self._backoff.wait_s()), window)
        except SparkEocError as error:
            window.fail(error)
        except Exception as error:
            log.exception("the producer's thread failed")
            window.fail(ProtocolError(f"the producer's thread failed: {error!r}"))
        finally:
            self._wake.close()
            self._waker.close()

    def _left(self, seconds: float) -> float:
        """``seconds``, or what is left until the first connection is given up, if that is less."""
        if self._give_up is None:
            return seconds
        return max(0.0, min(seconds, self._give_up - time.monotonic()))

    def _check_patience(self, window: Window) -> None:
        if window.resume_from is None and self._left(1.0) <= 0:
            host, port = self._address
            raise UnacknowledgedError(
                f"no receiver answered at {host}:{port} within {self._connect_timeout:g} s "
                f"({self._reason})",
                applied="nothing was sent",
                next_step="start the receiver, or check host, port, and whether it speaks TLS",
                acknowledged=0,
                unacknowledged=window.sent,
            )

    def _once(self, window: Window) -> None:
        """One connection from its beginning to its end; only what is final is raised."""
        self._hello = replace(self._hello, attempt=self._hello.attempt + 1)
        try:
            with self._connect() as sock:
                times = (self._left(ANSWER_TIMEOUT_S), self._stall)
                session = Session(sock, window, self._wake, times, self._told_all(window))
                session.run(self._hello, self._answered)
                return
        except ssl.SSLError as error:
            final = self._meaning(error, window.resume_from is None)
            if final is not None:
                raise final from error
            self._reason = str(error)
        except OSError as error:
            self._reason = str(error)
        now = time.monotonic()
        if now - self._complained > COMPLAIN_S or not self._complained:
            self._complained = now
            log.warning("%s:%d: %s; trying again", *self._address, self._reason)

    def _answered(self) -> None:
        self._give_up = None
        self._backoff.reset()

    def _meaning(self, error: ssl.SSLError, first: bool) -> ProtocolError | None:
        """What trying again would not change; else None. One that was TLS before, will be again."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return ProtocolError(
                f"the receiver's certificate is not trusted: {error.verify_message}",
                next_step="give the authority's file as tls_ca, and a host name that it names",
            )
        if first and error.reason in NOT_TLS:
            host, port = self._address
            return ProtocolError(
                f"what answers at {host}:{port} does not speak TLS",
                applied="nothing was sent",
                next_step="send without TLS, or give the receiver tlsCert and tlsKey",
                code="tls",
            )
        return None

    def _told_all(self, window: Window) -> Callable[[], None]:
        def tell() -> None:
            if self._on_acknowledged is not None and window.acknowledged > self._told:
                self._told = window.acknowledged
                self._on_acknowledged(self._told)

        return tell

    def _connect(self) -> socket.socket:
        # A timeout of 0 would mean: do not wait at all.
        sock = socket.create_connection(self._address, max(0.001, self._left(CONNECT_TIMEOUT_S)))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._context is not None:
                sock.settimeout(max(0.001, self._left(CONNECT_TIMEOUT_S)))
                sock = self._context.wrap_socket(sock, server_hostname=self._address[0])
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def _sleep(self, seconds: float, window: Window) -> None:
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            while not window.closed and (left := end - time.monotonic()) > 0:
                if selector.select(left):
                    self._wake.recv(4096)


class Session:
    """One connection: hello, answer, then blocks out and acknowledgements in."""

    def __init__(
        self,
        sock: socket.socket,
        window: Window,
        wake: socket.socket,
        times_s: tuple[float, float],
        tell: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._window = window
        self._wake = wake
        self._answer_s, self._stall = times_s
        self._tell = tell
        self._out = memoryview(b"")
        self._text = b""
        self._heard = time.monotonic()
        self._answered = False

    def run(self, hello: Hello, on_answer: Callable[[], None]) -> None:
        """Until the window is closed. OSError: connect again; SparkEocError: final."""
        self._out = memoryview(hello.encode())
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._sock, selectors.EVENT_READ)
            while not self._window.closed:
                before = self._answered
                self._turn(selector)
                if self._answered and not before:
                    on_answer()
        self._say_goodbye()

    def _turn(self, selector: selectors.BaseSelector) -> None:
        self._refill()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if wanted != selector.get_key(self._sock).events:
            selector.modify(self._sock, wanted)
        for key, events in selector.select(max(0.0, self._patience())):
            if key.fileobj is self._wake:
                self._wake.recv(4096)
                continue
            if events & selectors.EVENT_READ:
                self._read()
            if events & selectors.EVENT_WRITE:
                self._send()
        if self._patience() <= 0:
            raise TimeoutError("nothing heard for too long, though an answer is due")

    def _patience(self) -> float:
        if not self._answered:
            return self._heard + self._answer_s - time.monotonic()
        if not self._window.waiting:
            self._heard = time.monotonic()
        return self._heard + self._stall - time.monotonic()

    def _refill(self) -> None:
        if self._answered and not self._out:
            block = self._window.next_block()
            if block is not None:
                self._out = memoryview(block.data)

    def _send(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._sock.send(self._out) :]
                self._refill()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            # The receiver may have said why before it closed: that decides what happens next.
            self._read_rest()
            raise

    def _read(self) -> None:
        while True:
            try:
                data = self._sock.recv(65536)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not data:
                raise ConnectionError("the receiver closed the connection")
            if not self._answered and data.startswith(TLS_ALERT):
                raise ProtocolError(
                    "the receiver speaks TLS",
                    applied="nothing was sent",
                    next_step=USE_TLS,
                    code="tls",
                )
            self._heard = time.monotonic()
            *lines, self._text = (self._text + data).split(b"\n")
            self._understand([parse_reply(line) for line in lines])
            if len(self._text) > 4096:
                raise ProtocolError("not an answer of this protocol: no end of line")

    def _read_rest(self) -> None:
        with contextlib.suppress(OSError):
            self._read()

    def _understand(self, replies: list[Ok | Ack | Refusal]) -> None:
        newest = max((reply.sequence for reply in replies if isinstance(reply, Ack)), default=0)
        for reply in replies:
            if isinstance(reply, Ok):
                self._window.answered(reply)
                self._answered = True
        if newest:
            self._window.acknowledge(newest)
        self._tell()
        for reply in replies:
            if isinstance(reply, Refusal):
                raise refused(reply)

    def _say_goodbye(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            self._sock.settimeout(GOODBYE_S)
            while self._sock.recv(65536):
                pass


def refused(refusal: Refusal) -> Exception:
    """What a refusal means: OSError to try again, an error of ours if it is final."""
    what = f"the receiver refused: {refusal.code}: {refusal.text}"
    if refusal.code in TEMPORARY:
        return ConnectionError(what)
    if refusal.code == "fenced":
        return FencedError(what, next_step="give each producer a name of its own")
    if refusal.code == "oversize":
        return RecordTooLargeError(what)
    if refusal.code == "tls":
        return ProtocolError(
            what,
            applied="nothing was sent",
            next_step=USE_TLS,
            code=refusal.code,
        )
    if refusal.code == "expired":
        return ProtocolError(
            what,
            applied="nothing was sent, since lines could be stored twice",
            next_step="see in the buffer what it holds, and start anew with another producer name",
            code=refusal.code,
        )
    return ProtocolError(what, code=refusal.code)
