"""Sending without blocking: what a socket doesn't take now waits until it is writable."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from functools import partial

from spark_eoc.receiver.connection import Connection
from spark_eoc.receiver.sockets import write_some


class Outlet:
    """``again(connection)`` is called when a socket can take more; it is to call ``send``."""

    def __init__(
        self, selector: selectors.BaseSelector, again: Callable[[Connection], None]
    ) -> None:
        self._selector = selector
        self._again = again

    def send(self, connection: Connection) -> bool:
        """Sends what can be sent; True if nothing is left. OSError: the peer is gone."""
        while connection.outgoing():
            if not write_some(connection.sock, connection.out):
                self._watch(connection, True)
                return False
        self.forget(connection)
        return True

    def forget(self, connection: Connection) -> None:
        """Watches it no longer."""
        self._watch(connection, False)

    def _watch(self, connection: Connection, wanted: bool) -> None:
        if wanted == connection.writing:
            return
        connection.writing = wanted
        if wanted:
            again = partial(self._again, connection)
            self._selector.register(connection.sock, selectors.EVENT_WRITE, again)
        else:
            self._selector.unregister(connection.sock)
