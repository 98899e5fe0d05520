"""What the receiver knows about one connection, and how it reacts to bytes. No I/O here."""

from __future__ import annotations

import hmac
import socket
from dataclasses import dataclass
from enum import Enum

from spark_eoc.errors import ProtocolError
from spark_eoc.protocol import (
    MAX_HELLO_BYTES,
    TLS_HANDSHAKE,
    Ack,
    Hello,
    Ok,
    Refusal,
    begins_tls,
    check_token,
    may_become_hello,
    parse_hello,
)
from spark_eoc.receiver.lines import LineFramer, Lines, drop_first
from spark_eoc.receiver.options import ReceiverOptions

NO_TLS = "looks like TLS, this receiver has none: send without TLS, or give it tlsCert and tlsKey"
ONLY_TLS = "this receiver takes TLS only, and what came is not TLS"


class State(Enum):
    """``NEW`` until the first line is known; ``WAITING`` for the answer to a hello."""

    HANDSHAKE = "TLS handshake"
    NEW = "first line"
    WAITING = "waiting for its number"
    PLAIN = "plain"
    PRODUCER = "producer"
    DRAINING = "refused"
    CLOSED = "closed"


@dataclass(frozen=True)
class Received:
    """Whole lines to store: ``records`` of them, the first with number ``first`` (0: plain)."""

    data: bytes
    records: int
    first: int


class Connection:
    """One peer. ``refusal`` is set when it must be told to go; what came before it counts."""

    def __init__(
        self, sock: socket.socket, peer: str, options: ReceiverOptions, now: float
    ) -> None:
        self.sock = sock
        self.peer = peer
        self.state = State.HANDSHAKE if options.tls else State.NEW
        self.producer = b""
        self.refusal: Refusal | None = None
        self.active = now
        self.deadline: float | None = None
        self.heard = False
        self.acknowledged = 0
        self.ended = False
        self.repeated = 0
        self.writing = False
        self.weighed = 0
        self.out = bytearray()
        self._options = options
        self._framer = LineFramer(options.max_line_bytes, options.on_oversize_line)
        self._start = bytearray()
        self.hello: Hello | None = None
        self._backlog = b""
        self._durable = 0
        self._next = 1
        self._ack: Ack | None = None

    @property
    def held(self) -> int:
        """Bytes of an unfinished line, or of what waits for the answer to a hello."""
        return self._framer.held + len(self._start) + len(self._backlog)

    @property
    def oversize(self) -> int:
        """Lines that were too long."""
        return self._framer.oversize

    @property
    def quiet(self) -> bool:
        """Whether we owe this peer nothing, so that its silence is its own."""
        if self.state is State.PRODUCER:
            return self.acknowledged >= self._next - 1
        return self.state in (State.NEW, State.PLAIN)

    def late(self, now: float) -> bool:
        """Whether its time is up; then ``refusal`` says why, if it is to be told."""
        idle = self._options.idle_timeout_ms / 1000
        if self.deadline is not None and now >= self.deadline:
            if self.half_hello:
                self.refuse("hello", "the first line did not end in time")
            return True
        if idle and self.quiet and now - self.active > idle:
            self.refuse("idle", f"nothing came for {idle:g} s")
            return True
        return False

    def excuse(self, now: float) -> None:
        """It is us who keep it waiting: its time begins anew."""
        self.active = now
        if self.deadline is not None:
            self.deadline = now + self._options.hello_timeout_ms / 1000

    @property
    def half_hello(self) -> bool:
        """Whether a first line has begun and isn't complete."""
        return self.state is State.NEW and bool(self._start)

    @property
    def finished(self) -> bool:
        """A producer that has ended, and all of whose lines are acknowledged."""
        return self.ended and self.acknowledged >= self._next - 1

    def received(self, data: bytes) -> Received | None:
        """Takes bytes; returns the whole lines among them, if any."""
        if self.state is State.NEW:
            self._start += data
            data = self._begin()
            if self.hello is not None:
                self._backlog = data
                return None
        if self.state not in (State.PLAIN, State.PRODUCER) or not data:
            return None
        return self._numbered(self._framer.feed(data))

    def answered(self, last: int, buffer_id: str) -> Received | None:
        """The log says which line was this producer's last durable one."""
        first = last + 1
        if self.hello is not None and self.hello.first is not None:
            first = self.hello.first
        if first > last + 1 and not last:
            self.refuse("expired", f"first={first} but this buffer holds no line of this producer")
            return None
        if first > last + 1:
            self.refuse("gap", f"first={first} but the last line that this buffer holds is {last}")
            return None
        self.state = State.PRODUCER
        self._durable = self.acknowledged = last
        self._next = first
        limit = self._options.max_line_bytes
        truncates = self._options.on_oversize_line == "truncate"
        # A line that was skipped would leave a number that stands for nothing: tell instead.
        self._framer = LineFramer(limit, "truncate" if truncates else "error")
        self.out += Ok(last, buffer_id, 0 if truncates else limit).encode()
        backlog, self._backlog = self._backlog, b""
        return self.received(backlog)

    def finish(self) -> Received | None:
        """The peer has ended its stream cleanly: what remains of it."""
        # What may be the beginning of a hello is dropped: the hello of a producer that was cut off
        # must not become a line.
        self.ended = True
        if self.state is State.PLAIN:
            return self._numbered(self._framer.finish())
        return None

    def refuse(self, code: str, text: str) -> None:
        """The connection has to go, and is told why; its unfinished line is forgotten."""
        self.refusal = Refusal(code, text)
        self.forget()

    def forget(self) -> None:
        """Drops what is unfinished, and takes nothing more."""
        self._framer.stop()
        self._start.clear()
        self._backlog = b""

    def acknowledge(self, sequence: int) -> None:
        """To be told to the peer; only the newest matters."""
        if sequence > self.acknowledged:
            self.acknowledged = sequence
            self._ack = Ack(sequence)

    def outgoing(self) -> bytearray:
        """What has to be sent now; whoever sends deletes what was sent from its front."""
        if self._ack is not None and not self.out:
            self.out += self._ack.encode()
            self._ack = None
        return self.out

    def _begin(self) -> bytes:
        """Decides by the first line what this connection is; returns what follows it."""
        start = bytes(self._start)
        if begins_tls(start):
            self.refuse("tls", NO_TLS)
            return b""
        line, newline, rest = start.partition(b"\n")
        if not newline and _undecided(start):
            return b""
        self._start.clear()
        try:
            self.hello = parse_hello(line)
        except ProtocolError as error:
            self.refuse(str(error.facts["code"]), str(error))
            return b""
        if self.hello is None:
            self._plain()
            return start
        if not self._trusted(self.hello.token):
            self.refuse("token", "wrong or missing token")
            return b""
        self.producer = self.hello.producer
        self.state = State.WAITING
        return rest

    def _plain(self) -> bool:
        if self._options.token is not None:
            self.refuse("token", "this receiver takes only producers that give its token")
            return False
        self.state = State.PLAIN
        return True

    def _trusted(self, token: bytes | None) -> bool:
        wanted = check_token(self._options.token)
        return wanted is None or hmac.compare_digest(wanted, token or b"")

    def _numbered(self, lines: Lines) -> Received | None:
        """Counts a producer's lines and drops those that the log has already."""
        if self.state is State.PLAIN:
            if lines.oversize:
                self.refuse("oversize", self._too_long())
            return Received(lines.data, lines.records, 0) if lines.records else None
        first, records, data = self._next, lines.records, lines.data
        self._next += records
        if lines.oversize:
            self.refuse("oversize", f"line {self._next}: {self._too_long()}")
        repeats = min(records, max(0, self._durable + 1 - first))
        self.repeated += repeats
        if repeats == records:
            if repeats:
                self._ack = Ack(self._durable)
            return None
        data = drop_first(data, repeats) if repeats else data
        return Received(data, records - repeats, first + repeats)

    def _too_long(self) -> str:
        return f"a line is longer than {self._options.max_line_bytes} bytes"


def _undecided(start: bytes) -> bool:
    """Whether a first line without its end may be anything yet."""
    if start == TLS_HANDSHAKE[:1]:
        return True
    return may_become_hello(start) and len(start) <= MAX_HELLO_BYTES
