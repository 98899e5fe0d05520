"""A TCP proxy that does to a connection what networks do: cut, delay, swallow, half-close.

    with Proxy(mariadb.port) as proxy:
        proxy.set(Rules(swallow_answer_to=b"COMMIT"), times=1)
        writer = MySQLWriter(f"mysql://root@127.0.0.1:{proxy.port}/shop", ...)
        ...
        assert proxy.fired == 1

Counts of bytes begin anew for every connection, and at :meth:`Proxy.set` for those that live.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from dataclasses import dataclass
from types import TracebackType

_CHUNK = 65536
_TICK_S = 0.02


@dataclass(frozen=True)
class Rules:
    """What happens to connections; the default is nothing.

    ``cut_to_server`` / ``cut_to_client``: exactly so many bytes pass in that direction, then both
    sides get a reset. ``half_close_to_client`` / ``half_close_to_server``: exactly so many bytes
    pass, then that side gets a FIN and nothing more, while the other direction goes on.
    ``delay_s``: each piece of at most 64 KiB arrives so much later. ``black_hole``: everything
    is taken, nothing arrives; a connection that lost bytes is reset when it is lifted.
    ``swallow_answer_to``: once the client has sent these bytes, the server gets them, its answer
    is thrown away, and both sides get a reset.
    """

    cut_to_server: int | None = None
    cut_to_client: int | None = None
    half_close_to_server: int | None = None
    half_close_to_client: int | None = None
    delay_s: float = 0.0
    black_hole: bool = False
    swallow_answer_to: bytes | None = None


@dataclass
class _Direction:
    """Bytes on their way from one socket to the other."""

    name: str
    source: socket.socket
    target: socket.socket
    pending: bytes = b""
    ready_at: float = 0.0
    passed: int = 0
    ended: bool = False
    closed: bool = False


class _CutError(Exception):
    """The connection is to be reset now."""


@dataclass(eq=False)
class _Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    version: int = 0
    swallowing: bool = False
    tail: bytes = b""
    cut: bool = False
    lost: bool = False


class Proxy:
    """Listens on a free port of 127.0.0.1 and passes connections on to ``target``.

    A context manager. ``fired`` counts the faults that happened since the newest :meth:`set`;
    after ``times`` of them connections pass unharmed. ``connections`` counts all accepted.
    """

    def __init__(self, target_port: int, *, target_host: str = "127.0.0.1", port: int = 0) -> None:
        self._target = (target_host, target_port)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.fired = 0
        self.connections = 0
        self._rules = Rules()
        self._times: int | None = None
        self._version = 0
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._closed = False
        threading.Thread(target=self._accept, name="proxy accept", daemon=True).start()

    def set(self, rules: Rules | None = None, *, times: int | None = None) -> None:
        """New rules for living and new connections; ``times`` limits how many faults fire."""
        with self._lock:
            self._rules, self._times, self.fired = rules or Rules(), times, 0
            self._version += 1

    def cut_all(self) -> int:
        """Resets every living connection now; how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut = True
        return len(links)

    def close(self) -> None:
        """Stops listening and resets every connection."""
        self._closed = True
        self._listener.close()
        self.cut_all()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # threads

    def _accept(self) -> None:
        while not self._closed:
            try:
                # A blocked accept would keep the port open after close().
                if not select.select([self._listener], [], [], _TICK_S)[0]:
                    continue
                client, _ = self._listener.accept()
            except (OSError, ValueError):
                return
            self.connections += 1
            threading.Thread(
                target=self._serve, args=(client,), name="proxy link", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, 5)
        except OSError:
            _reset(client)
            return
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = _Link(client, server, version=self._version)
        with self._lock:
            self._links.add(link)
        try:
            self._pump(link)
        except (_CutError, OSError):
            _reset(client)
            _reset(server)
        finally:
            client.close()
            server.close()
            with self._lock:
                self._links.discard(link)

    def _pump(self, link: _Link) -> None:
        up = _Direction("to_server", link.client, link.server)
        down = _Direction("to_client", link.server, link.client)
        while not (up.closed and down.closed):
            if link.cut or self._has_hole(link):
                raise _CutError
            if link.version != self._version:
                link.version, link.swallowing, link.tail = self._version, False, b""
                up.passed = down.passed = 0
            _wait(up, down)
            for direction in (up, down):
                self._receive(link, direction)
                self._deliver(direction)

    def _receive(self, link: _Link, direction: _Direction) -> None:
        if direction.pending or direction.ended:
            return
        try:
            data = direction.source.recv(_CHUNK)
        except BlockingIOError:
            return
        if not data:
            direction.ended = True
            return
        rules = self._current()
        if rules.black_hole:
            link.lost = True
            return
        if link.lost:
            raise _CutError
        if rules.swallow_answer_to:
            self._watch(link, direction, data, rules.swallow_answer_to)
        direction.pending = data
        direction.ready_at = time.monotonic() + rules.delay_s

    def _has_hole(self, link: _Link) -> bool:
        """Whether bytes would arrive behind lost ones, as they never do over TCP."""
        return link.lost and not self._current().black_hole

    def _watch(self, link: _Link, direction: _Direction, data: bytes, wanted: bytes) -> None:
        if direction.name == "to_client":
            if link.swallowing:
                # The server has answered, so what it was asked has happened.
                self._fire()
                raise _CutError
            return
        window = link.tail + data
        link.swallowing = link.swallowing or wanted in window
        link.tail = window[-(len(wanted) - 1) :] if len(wanted) > 1 else b""

    def _deliver(self, direction: _Direction) -> None:
        if direction.pending and time.monotonic() >= direction.ready_at:
            self._limit(direction)
            try:
                sent = direction.target.send(direction.pending)
            except BlockingIOError:
                sent = 0
            direction.passed += sent
            direction.pending = direction.pending[sent:]
            self._limit(direction)
        if direction.ended and not direction.pending and not direction.closed:
            _shut(direction)

    def _limit(self, direction: _Direction) -> None:
        """Shortens what is pending to what the rules let pass, and acts at the limit."""
        rules = self._current()
        cut: int | None = getattr(rules, f"cut_{direction.name}")
        half: int | None = getattr(rules, f"half_close_{direction.name}")
        limit = cut if cut is not None else half
        if limit is None or direction.closed:
            return
        direction.pending = direction.pending[: max(0, limit - direction.passed)]
        if direction.passed < limit:
            return
        self._fire()
        if cut is not None:
            raise _CutError
        direction.pending, direction.ended = b"", True

    def _current(self) -> Rules:
        if self._times is not None and self.fired >= self._times:
            return Rules()
        return self._rules

    def _fire(self) -> None:
        with self._lock:
            self.fired += 1


def _wait(up: _Direction, down: _Direction) -> None:
    """Until something can be read or written, or a tick has passed."""
    readers = [each.source for each in (up, down) if not each.pending and not each.ended]
    now = time.monotonic()
    writers = [each.target for each in (up, down) if each.pending and now >= each.ready_at]
    if readers or writers:
        select.select(readers, writers, [], _TICK_S)
    else:
        time.sleep(_TICK_S / 4)


def _shut(direction: _Direction) -> None:
    direction.closed = True
    try:
        direction.target.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _reset(connection: socket.socket) -> None:
    """Closes with a RST instead of a FIN."""
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        return
    connection.close()
