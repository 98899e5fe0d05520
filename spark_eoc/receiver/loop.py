"""The socket thread: accepts or connects, and serves its peers until the commit thread ends."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections import deque
from functools import partial

from spark_eoc.backoff import Backoff
from spark_eoc.protocol import Refusal
from spark_eoc.receiver.counts import Counts
from spark_eoc.receiver.inbox import Inbox
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.peers import Peers
from spark_eoc.receiver.reports import Answered, Durable, Ended, Flushed, Report
from spark_eoc.receiver.sockets import listen_on
from spark_eoc.receiver.tls import tls_context

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
TICK_S = 0.5


class Loop:
    """``run`` is the socket thread's body; ``deliver`` and ``end`` may be called by others.

    Two selectors: that of the peers holds the sockets that may be read, and is itself watched by
    ``_selector`` only while there is memory for what they send. So back-pressure costs one call,
    and acknowledgements, answers and new connections go on meanwhile.
    """

    def __init__(
        self, options: ReceiverOptions, inbox: Inbox, buffer_id: str, counts: Counts
    ) -> None:
        self._options = options
        self._inbox = inbox
        self._counts = counts
        self._tls = tls_context(options)
        self._selector = selectors.DefaultSelector()
        self.peers = Peers(options, inbox, buffer_id, counts, self._selector)
        self.peers.on_bytes = self._heard
        self._wake, self._waker = socket.socketpair()
        self._mailbox: deque[Report] = deque()
        self._listener: socket.socket | None = None
        self._backoff = Backoff(options.reconnect_min_ms / 1000, options.reconnect_max_ms / 1000)
        self._next_connect = 0.0
        self._next_tick = 0.0
        self._reading = False
        self._end_asked = False
        self._ending = False
        self._done = False
        self.error: BaseException | None = None
        self.port = options.connect[1] if options.connect else 0

    # --- called by other threads ---

    def open(self) -> None:
        """Binds, with ``listen``; OSError if it can't. Called before the thread starts."""
        for sock in (self._wake, self._waker):
            sock.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        if self._options.listen is not None:
            self._listener = listen_on(*self._options.listen)
            self.port = self._listener.getsockname()[1]
            accept = partial(self._accept, self._listener)
            self._selector.register(self._listener, selectors.EVENT_READ, accept)

    def deliver(self, events: list[Report]) -> None:
        """What the commit thread has to tell."""
        self._mailbox.extend(events)
        self._poke()

    def end(self) -> None:
        """Asks the thread to stop reading, to wait for the commit thread, and to end."""
        self._end_asked = True
        self._poke()

    def _poke(self) -> None:
        # A full pipe means that it is awake already, a closed one that it has ended.
        with contextlib.suppress(OSError):
            self._waker.send(b".")

    # --- the thread ---

    def run(self) -> None:
        """Serves until the commit thread has ended."""
        try:
            while not self._done:
                self._turn()
        except BaseException as error:
            self.error = self.error or error
            log.exception("the receiver's socket thread failed")
            self._inbox.close()
        finally:
            self._close()

    def _turn(self) -> None:
        self._watch_reads(self.peers.has_memory and not self._ending)
        for key, _ in self._selector.select(self._timeout()):
            key.data()
        while self._mailbox:
            self._react(self._mailbox.popleft())
        if self.peers.failure is not None and self.error is None:
            self.error = self.peers.failure
            self._end_asked = True
        if self._end_asked and not self._ending:
            self._begin_end()
        now = time.monotonic()
        self.peers.wake(now)
        if self._options.connect and self._dialing and now >= self._next_connect:
            self._connect(*self._options.connect)
        if now >= self._next_tick:
            self._next_tick = now + self.peers.pass_time(now, self._reading, TICK_S)

    @property
    def _dialing(self) -> bool:
        return bool(self._options.connect and not self.peers.connections and not self._ending)

    def _timeout(self) -> float:
        until = min(self._next_tick, self._next_connect) if self._dialing else self._next_tick
        wake = self.peers.next_wake()
        return max(0.0, (until if wake is None else min(until, wake)) - time.monotonic())

    def _watch_reads(self, wanted: bool) -> None:
        if wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            ready = self.peers.read_ready
            self._selector.register(self.peers.reads.fileno(), selectors.EVENT_READ, ready)
        else:
            self._selector.unregister(self.peers.reads.fileno())

    def _woken(self) -> None:
        self._wake.recv(4096)

    def _heard(self) -> None:
        self._backoff.reset()

    def _react(self, event: Report) -> None:
        if isinstance(event, Answered):
            self.peers.answered(event)
        elif isinstance(event, Durable):
            self.peers.durable(event)
        elif isinstance(event, Flushed):
            self._counts.flushes += 1
            self._counts.lines += event.records
            self._counts.line_bytes += event.nbytes
        elif isinstance(event, Ended):
            self._ended(event)

    # --- peers come ---

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.warning("a connection can't be accepted: %s", error)
            time.sleep(0.01)  # out of descriptors: don't spin
            return
        peer = f"{address[0]}:{address[1]}"
        if len(self.peers.connections) >= self._options.max_connections:
            self._turn_away(sock, peer)
        else:
            self.peers.admit(sock, peer, self._tls, None)
        self._counts.accepted += 1

    def _turn_away(self, sock: socket.socket, peer: str) -> None:
        self._counts.refused += 1
        log.warning("%s turned away: %d connections", peer, self._options.max_connections)
        sock.setblocking(False)
        refusal = Refusal("busy", f"{self._options.max_connections} connections, the limit")
        if self._tls is None:
            with contextlib.suppress(OSError):
                sock.send(refusal.encode())
        sock.close()

    def _connect(self, host: str, port: int) -> None:
        wait = self._backoff.wait_s()
        try:
            sock = socket.create_connection((host, port), CONNECT_TIMEOUT_S)
        except OSError as error:
            log.info("%s:%d can't be reached (%s), again in %.2f s", host, port, error, wait)
        else:
            self._counts.accepted += 1
            self.peers.admit(sock, f"{host}:{port}", self._tls, host)
        # Also after a success: a server that closes at once isn't asked without a pause.
        self._next_connect = time.monotonic() + wait

    # --- the end ---

    def _ended(self, event: Ended) -> None:
        self._done = True
        if event.error is None:
            self.peers.refuse_all("stopping", "the receiver stops")
            return
        self.error = self.error or event.error
        log.error("the receiver stops: %s", event.error)
        self.peers.refuse_all("log", "the buffer failed; see the receiver's log")

    def _begin_end(self) -> None:
        self._ending = True
        self._watch_reads(False)
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
        self._inbox.close()

    def _close(self) -> None:
        self.peers.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()
