"""Connections to a cluster's primaries, and who of them serves which slot."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import redis
from redis.exceptions import AskError, ClusterDownError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.cluster.address import ClusterAddress
from spark_eoc.sinks.redis.cluster.slots import SLOTS
from spark_eoc.sinks.redis.server import Script
from spark_eoc.sinks.redis.target import Target

#: How long a node may take to say who serves what; another is asked then.
_ASK_S = 2.0


class Nodes:
    """Opened when they are needed, kept, and forgotten all together after any error.

    A context manager; a driver's step or a task has one of its own. ``known_scripts`` holds
    (place, digest) of what a connection has sent.
    """

    def __init__(self, address: ClusterAddress) -> None:
        self.address = address
        self.known_scripts: set[tuple[str, bytes]] = set()
        self._seeds = [seed.url.partition("://")[2].rpartition("@")[2] for seed in address.seeds]
        self._seeds = [seed.partition("/")[0] for seed in self._seeds]
        self._clients: dict[str, redis.Redis] = {}
        self._places: list[str] = []

    @classmethod
    def of(cls, target: Target) -> Nodes:
        """Of the cluster that a target names."""
        if not isinstance(target.address, ClusterAddress):
            raise TypeError(f"{target.address.url} names no cluster")
        return cls(target.address)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.forget()

    def place(self, slot: int) -> str:
        """``host:port`` of the primary that serves a slot; raises a RedisError if none does."""
        if not self._places:
            self._places = self._ask_for_places()
        if not self._places[slot]:
            raise ClusterDownError(f"CLUSTERDOWN no node serves slot {slot}")
        return self._places[slot]

    def primaries(self) -> dict[str, int]:
        """Each primary's place with one slot that it serves."""
        self.place(0)
        return {place: slot for slot, place in enumerate(self._places) if place}

    def client(self, place: str) -> redis.Redis:
        """The connection to a node."""
        client = self._clients.get(place)
        if client is None:
            client = self._clients[place] = self.address.node(place).connect()
        return client

    def forget(self) -> None:
        """Closes everything; who serves what is asked again."""
        for client in self._clients.values():
            with suppress(RedisError, OSError):
                client.close()
        self._clients, self._places = {}, []
        self.known_scripts.clear()

    def _ask_for_places(self) -> list[str]:
        problem: RedisError = RedisConnectionError("the URL names no node")
        # In any order, so that one node with an old view does not answer every time.
        for seed in random.sample(self._seeds, len(self._seeds)):
            try:
                with self.address.node(seed).within(_ASK_S).connect() as client:
                    plain: Any = client
                    return _places(plain.execute_command("CLUSTER", "SLOTS"), seed)
            except RedisError as error:
                if "cluster support disabled" in str(error):
                    raise _no_cluster(seed) from None
                problem = error
        raise problem


class SlotPlace:
    """Where one slot is served: what :class:`~spark_eoc.sinks.redis.server.Patience` connects to.

    An ASK answer sends the next command, and only that one, to the node that it names. That can
    do no harm: a node that takes a slot in runs a script only if it has all of its keys, and one
    with a single key only follows an ASK that was given for this key.
    """

    def __init__(self, nodes: Nodes, slot: int, asked: str | None = None) -> None:
        self._nodes, self._slot, self._asked = nodes, slot, asked
        self.url = nodes.address.url

    def redact(self, text: str) -> str:
        """See :meth:`RedisAddress.redact`."""
        return self._nodes.address.redact(text)

    def script(self, client: redis.Redis, source: str) -> Script:
        """A script for a connection of :meth:`connect`."""
        return _AskedScript(client, source, self._nodes)

    @contextmanager
    def connect(self) -> Iterator[redis.Redis]:
        """A connection to the slot's primary; after any error everything is looked up again."""
        asked, self._asked = self._asked, None
        try:
            client = self._nodes.client(asked or self._nodes.place(self._slot))
            if asked:
                plain: Any = client
                plain.execute_command("ASKING")
            yield client
        except BaseException as error:
            self._nodes.forget()
            self._asked = asked_place(error)
            raise


class _AskedScript(Script):
    """Follows an ASK answer at once, with the same call."""

    def __init__(self, client: redis.Redis, source: str, nodes: Nodes) -> None:
        super().__init__(client, source)
        self._text, self._nodes = source, nodes

    def run(self, count: int, parts: Sequence[bytes | memoryview]) -> list[Any]:
        try:
            return super().run(count, parts)
        except AskError as error:
            other: Any = self._nodes.client(place_of(error.host, error.port))
            other.execute_command("ASKING")
            return Script(other, self._text).run(count, parts)


def asked_place(error: Any) -> str | None:
    """``host:port`` to which an ASK answer sends; None for any other error."""
    return place_of(error.host, error.port) if isinstance(error, AskError) else None


def place_of(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _no_cluster(seed: str) -> ConfigError:
    return ConfigError(
        f"the Redis at {seed} is not a node of a Cluster",
        applied="nothing",
        next_step="write the URL as redis://host:port/0 for a single server",
    )


def _places(answer: Any, seed: str) -> list[str]:
    """Of CLUSTER SLOTS: one place a slot, "" where there is none."""
    places = [""] * SLOTS
    for first, last, primary, *_ in answer:
        # A node that does not know its own name leaves it out, or writes "?".
        host = (primary[0] or b"").decode().strip("?") or seed.rpartition(":")[0].strip("[]")
        places[first : last + 1] = [place_of(host, primary[1])] * (last + 1 - first)
    return places
