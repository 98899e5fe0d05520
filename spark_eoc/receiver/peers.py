"""All connections of a receiver: how each is read, answered, acknowledged and let go."""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import time
from collections.abc import Callable

from spark_eoc.errors import RecordTooLargeError
from spark_eoc.failpoints import hit
from spark_eoc.protocol import TLS_HANDSHAKE, Refusal, is_late
from spark_eoc.receiver.connection import ONLY_TLS, Connection, Received, State
from spark_eoc.receiver.counts import Counts
from spark_eoc.receiver.inbox import Chunk, Inbox
from spark_eoc.receiver.lines import NEWLINE, split_whole
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.outlet import Outlet
from spark_eoc.receiver.reports import Answered, Durable
from spark_eoc.receiver.sockets import (
    adopt,
    first_byte,
    hang_up,
    has_ended,
    read_some,
    shake_hands,
    without_tls,
)
from spark_eoc.receiver.throttle import Throttle

log = logging.getLogger(__name__)

#: How long a refused peer may go on sending before the connection is cut: closing at once would
#: reset it, and the reason might never be read.
DRAIN_S = 2.0

EXPIRED = (
    "this producer's number expired here: which of its lines are stored is not known any more, "
    "and none is taken under this name"
)


class Peers:
    """Used by the socket thread only. ``reads`` holds the sockets that may be read now.

    ``failure`` is set when one peer's data means that the receiver can't go on.
    """

    def __init__(
        self,
        options: ReceiverOptions,
        inbox: Inbox,
        buffer_id: str,
        counts: Counts,
        writes: selectors.BaseSelector,
    ) -> None:
        self.connections: set[Connection] = set()
        self.reads = selectors.DefaultSelector()
        self.failure: RecordTooLargeError | None = None
        self.on_bytes: Callable[[], None] = lambda: None
        self._options = options
        self._inbox = inbox
        self._buffer_id = buffer_id
        self._counts = counts
        self._outlet = Outlet(writes, self._write)
        self._producers: dict[bytes, Connection] = {}
        self._throttle = Throttle(options.max_bytes_per_second)

    @property
    def has_memory(self) -> bool:
        """Whether what sockets hold may be read now."""
        return self._inbox.nbytes < self._options.max_pending_bytes

    def admit(
        self,
        sock: socket.socket,
        peer: str,
        context: ssl.SSLContext | None,
        server_name: str | None,
    ) -> None:
        """A new connection; with a ``server_name`` it is one that we made."""
        try:
            sock = adopt(sock, context, server_name)
            connection = Connection(sock, peer, self._options, time.monotonic())
            self.connections.add(connection)
            self.reads.register(sock, selectors.EVENT_READ, connection)
            self._shake_hands(connection)
        except OSError as error:
            log.warning("%s: %s", peer, error)
            sock.close()

    def _shake_hands(self, connection: Connection) -> None:
        connection.deadline = connection.active + self._options.hello_timeout_ms / 1000
        try:
            if not self._speaks_tls(connection):
                return
            if shake_hands(connection.sock):
                connection.deadline = None
                connection.state = self._first_state()
        except OSError as error:
            log.warning("%s: TLS handshake failed: %s", connection.peer, error)
            self._drop(connection)

    def _speaks_tls(self, connection: Connection) -> bool:
        """False if nothing has come yet, or what comes is no TLS where it has to be: refused."""
        if connection.heard or not self._options.tls or self._options.connect:
            return True
        start = first_byte(connection.sock)
        if start is None:
            return False
        connection.heard = True
        if TLS_HANDSHAKE.startswith(start):
            return True
        # Said in plain text, for whoever speaks that; its socket is one without TLS from here on.
        self._deafen(connection)
        connection.sock = without_tls(connection.sock)
        connection.refuse("tls", ONLY_TLS)
        self._refuse(connection)
        return False

    def _first_state(self) -> State:
        return State.PLAIN if self._options.connect else State.NEW

    def read_ready(self) -> None:
        """Reads once from every socket that has something, while there is memory."""
        for key, _ in self.reads.select(0):
            connection: Connection = key.data
            if not self.has_memory:
                return
            if connection.state is State.HANDSHAKE:
                self._shake_hands(connection)
            elif connection.state is not State.CLOSED:
                self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = read_some(connection.sock, self._throttle.read_bytes)
        except OSError as error:
            self._reset(connection, error)
            return
        if data is None:
            return
        if connection.state is State.DRAINING:
            if not data:
                self._drop(connection)
            return
        hit("receiver.after_read")
        connection.active = time.monotonic()
        if data:
            self.on_bytes()
            self._store(connection, connection.received(data))
            self._after_bytes(connection)
            self._slow_down(connection, len(data))
        else:
            self._clean_end(connection)
        self._weigh(connection)

    def _slow_down(self, connection: Connection, nbytes: int) -> None:
        """One that sends more than its share isn't read until it has made up for it."""
        if connection.state not in (State.NEW, State.WAITING, State.PLAIN, State.PRODUCER):
            return
        if self._throttle.spend(connection, nbytes, connection.active):
            self._deafen(connection)

    def _listen(self, connection: Connection) -> None:
        if connection.sock not in self.reads.get_map():
            self.reads.register(connection.sock, selectors.EVENT_READ, connection)

    def _deafen(self, connection: Connection) -> None:
        if connection.sock in self.reads.get_map():
            self.reads.unregister(connection.sock)

    def _store(self, connection: Connection, lines: Received | None) -> None:
        if lines is None:
            return
        first = lines.first
        pieces = split_whole(lines.data, self._inbox.full_bytes)
        for piece in pieces:
            records = piece.count(NEWLINE) if len(pieces) > 1 else lines.records
            self._inbox.put(Chunk(connection, connection.producer, piece, records, first))
            first += records if connection.producer else 0

    def _after_bytes(self, connection: Connection) -> None:
        if connection.refusal is not None:
            self._refuse(connection)
        elif connection.state is State.WAITING:
            self._greet(connection)
        else:
            if connection.half_hello and connection.deadline is None:
                limit = self._options.hello_timeout_ms / 1000
                connection.deadline = connection.active + limit
            elif connection.deadline is not None and not connection.half_hello:
                connection.deadline = None
            self._write(connection)

    def _greet(self, connection: Connection) -> None:
        """A hello is complete: the newer connection wins; nothing is read until it is answered."""
        older = self._producers.get(connection.producer)
        if _given_up(connection, older):
            self._drop(connection)
            return
        if older is not None:
            older.refuse("fenced", "a newer connection gave the same producer name")
            self._refuse(older)
        connection.deadline = None
        self._producers[connection.producer] = connection
        self._deafen(connection)
        self._inbox.put_hello(connection)

    def _clean_end(self, connection: Connection) -> None:
        if connection.held and connection.state is not State.PLAIN:
            self._counts.dropped_unfinished += 1
        self._store(connection, connection.finish())
        if connection.refusal is not None:
            self._refuse(connection)
        elif connection.state is State.PRODUCER and not connection.finished:
            self._deafen(connection)  # acknowledgements are still to come
        else:
            self._finish(connection)

    def _finish(self, connection: Connection) -> None:
        """The peer has ended and everything is said; what is still unsent gets its time."""
        self._write(connection)
        if connection.state is not State.CLOSED and not connection.outgoing():
            self._drop(connection)

    def _reset(self, connection: Connection, error: OSError) -> None:
        log.info("%s: %s", connection.peer, error)
        if connection.held:
            self._counts.dropped_unfinished += 1
        self._drop(connection)

    def answered(self, event: Answered) -> None:
        """The commit thread knows a producer's last durable line: it may send now."""
        connection = event.connection
        if connection.state is not State.WAITING:
            return  # fenced or gone while it waited
        if not self._throttle.rests(connection):
            self._listen(connection)
        if event.expired:
            connection.refuse("expired", EXPIRED)
        else:
            self._store(connection, connection.answered(event.last, self._buffer_id))
        if connection.refusal is not None:
            self._refuse(connection)
        else:
            self._write(connection)

    def durable(self, event: Durable) -> None:
        """Lines are on the disk: their producer is told."""
        connection = event.connection
        if connection.state is not State.PRODUCER:
            return
        connection.acknowledge(event.sequence)
        self._write(connection)
        hit("receiver.after_ack")
        if connection.finished:
            self._finish(connection)

    def _write(self, connection: Connection) -> None:
        """Sends what can be sent; the rest when the socket can take it."""
        if connection.state is State.CLOSED:
            return
        try:
            sent = self._outlet.send(connection)
        except OSError as error:
            self._reset(connection, error)
            return
        if sent and connection.finished and connection.state is State.PRODUCER:
            self._drop(connection)

    def _refuse(self, connection: Connection) -> None:
        """Tells the peer why, and gives it time to read that."""
        refusal = connection.refusal or Refusal("stopping", "the receiver lets go")
        self._counts.refused += 1
        log.warning("%s %s: %s", connection.peer, refusal.code, refusal.text)
        plain = connection.state is State.PLAIN
        if refusal.code == "oversize" and self._options.connect:
            self.failure = _too_large(refusal.text)
        self._forget_name(connection)
        connection.state = State.DRAINING
        self._weigh(connection)
        self._throttle.forget(connection)
        self._listen(connection)
        connection.deadline = time.monotonic() + DRAIN_S
        if not plain:
            connection.outgoing()
            connection.out += refusal.encode()
        self._write(connection)
        if connection.state is State.DRAINING and not connection.out:
            self._half_close(connection)

    def _half_close(self, connection: Connection) -> None:
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if connection.state is State.CLOSED:
            return
        self._forget_name(connection)
        connection.state = State.CLOSED
        connection.forget()
        self._counts.oversize_lines += connection.oversize
        self._counts.repeated_lines += connection.repeated
        self._outlet.forget(connection)
        self._throttle.forget(connection)
        self._deafen(connection)
        hang_up(connection.sock)
        self.connections.discard(connection)
        self._weigh(connection)

    def _forget_name(self, connection: Connection) -> None:
        if self._producers.get(connection.producer) is connection:
            del self._producers[connection.producer]

    def _weigh(self, connection: Connection) -> None:
        """Unfinished lines can't be waited for without end: the largest has to go."""
        self._counts.unfinished_bytes += connection.held - connection.weighed
        connection.weighed = connection.held
        limit = max(self._options.max_pending_bytes, 2 * self._options.max_line_bytes)
        if self._counts.unfinished_bytes <= limit:
            return
        largest = max(self.connections, key=lambda each: each.weighed)
        self._counts.dropped_unfinished += 1
        largest.refuse("memory", f"unfinished lines of all connections exceed {limit} bytes")
        self._refuse(largest)

    def wake(self, now: float) -> None:
        """Reads those again that have rested long enough."""
        for connection in self._throttle.rested(now):
            # Who waits for an answer is read after it.
            if connection.state is not State.WAITING:
                self._listen(connection)

    def next_wake(self) -> float | None:
        """When ``wake`` has something to do; None if never."""
        return self._throttle.next_end()

    def pass_time(self, now: float, reading: bool, longest_s: float) -> float:
        """Lets go of those whose time is up; returns the seconds until it must be called again.

        While nothing is read nobody is late but who was refused; nor is who has to rest.
        """
        for connection in list(self.connections):
            draining = connection.state is State.DRAINING
            if not draining and (not reading or self._throttle.rests(connection)):
                connection.excuse(now)
            elif connection.late(now):
                if draining or connection.refusal is None:
                    self._drop(connection)
                else:
                    self._refuse(connection)
        idle = self._options.idle_timeout_ms / 1000
        hello = self._options.hello_timeout_ms / 1000
        return min(longest_s, hello / 2, idle / 2 or longest_s)

    def refuse_all(self, code: str, text: str) -> None:
        """Tells every producer that the receiver ends."""
        for connection in list(self.connections):
            if connection.state in (State.PRODUCER, State.WAITING):
                connection.refuse(code, text)
                self._refuse(connection)

    def close(self) -> None:
        """Cuts all connections; their unfinished lines are dropped."""
        for connection in list(self.connections):
            if connection.held:
                self._counts.dropped_unfinished += 1
            self._drop(connection)
        self.reads.close()


def _given_up(connection: Connection, older: Connection | None) -> bool:
    """Whether a hello is of a connection that its process has left long ago.

    After a pause of ours several may be read at once, in any order: such a one must not fence the
    connection that took its place.
    """
    if older is None or older.hello is None or connection.hello is None:
        return False
    return is_late(connection.hello, older.hello) or (
        not connection.held and has_ended(connection.sock)
    )


def _too_large(what: str) -> RecordTooLargeError:
    return RecordTooLargeError(
        what,
        applied="the lines before it are in the buffer",
        next_step="raise maxLineBytes, or set onOversizeLine to truncate or skip",
    )
