"""What the threads that write the log tell the socket thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_eoc.receiver.connection import Connection


@dataclass(frozen=True)
class Answered:
    """A producer's last durable line, for the connection that said hello; ``expired`` if there
    was one, and its number is forgotten."""

    connection: Connection
    last: int
    expired: bool = False


@dataclass(frozen=True)
class Durable:
    """All lines up to ``sequence`` that came over this connection are durable."""

    connection: Connection
    sequence: int


@dataclass(frozen=True)
class Flushed:
    """One fsync is done; so many lines are durable by it."""

    records: int
    nbytes: int


@dataclass(frozen=True)
class Ended:
    """The commit thread is done; ``error`` says why if it wasn't asked to end."""

    error: BaseException | None


Report = Answered | Durable | Flushed | Ended
Deliver = Callable[[list[Report]], None]
