"""A Redis Cluster: nodes to be killed, stopped and restarted, slots to be moved, failovers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from spark_eoc.testing.ports import free_port
from spark_eoc.testing.servers import Redis
from spark_eoc.testing.wait import until

SLOTS = 16384


class ClusterNode(Redis):
    """One node. ``bus_port`` is where the other nodes talk to it."""

    name = "redis-node"

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(folder, options)
        self.bus_port = free_port()

    def ask(self, *words: object) -> Any:
        """One command's answer, on a connection of its own; a node that still reads its data is
        waited for."""
        with self.client(retry=Retry(ConstantBackoff(0.05), 400, (BusyLoadingError,))) as client:
            plain: Any = client
            return plain.execute_command(*words)

    @property
    def node_id(self) -> str:
        """Its name in the cluster."""
        return str(self.ask("CLUSTER", "MYID").decode())

    def _command(self) -> list[str]:
        options = {
            "cluster-enabled": "yes",
            "cluster-port": str(self.bus_port),
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": "2000",
            "repl-diskless-sync-delay": "0",
            # Written before each answer all the same, which is what a SIGKILL asks of it.
            "appendfsync": "no",
        }
        words = (word for key, value in options.items() for word in (f"--{key}", value))
        return [*super()._command(), *words]


class RedisCluster:
    """``primaries`` nodes that share the slots evenly, then ``replicas`` for each of them.

    A context manager; leaving it kills all nodes. Nothing promotes a replica by itself in less
    than some seconds; :meth:`failover` does it at once.
    """

    def __init__(
        self, folder: str | os.PathLike[str], primaries: int = 3, replicas: int = 0
    ) -> None:
        self._stack = contextlib.ExitStack()
        self.nodes: list[ClusterNode] = []
        try:
            for number in range(primaries * (1 + replicas)):
                node = ClusterNode.start(Path(folder) / f"node-{number}")
                self.nodes.append(self._stack.enter_context(node))
            self._join(primaries)
            self._follow(primaries)
        except BaseException:
            self._stack.close()
            raise

    def url(self) -> str:
        """``redis+cluster://HOST:PORT,...``."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def owner(self, slot: int) -> ClusterNode:
        """The node that serves a slot, as most nodes that run see it now."""
        for node in self._running():
            for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(n for n in self.nodes if n.port == primary[1])
        raise LookupError(f"nobody serves slot {slot}")

    def replica_of(self, primary: ClusterNode) -> ClusterNode:
        """A node that follows ``primary``."""
        for node in self._running():
            role = node.ask("ROLE")
            if role[0] == b"slave" and role[2] == primary.port:
                return node
        raise LookupError("it has no replica")

    def keys(self, pattern: str) -> Iterator[tuple[bytes, ClusterNode]]:
        """Every key of every primary that matches, with its node."""
        for node in self._running():
            if node.ask("ROLE")[0] == b"master":
                with node.client() as client:
                    yield from ((key, node) for key in client.scan_iter(pattern, count=1000))

    def failover(self, replica: ClusterNode, how: str = "TAKEOVER") -> None:
        """Makes ``replica`` a primary now, whatever the others say; all get to know it."""
        replica.ask("CLUSTER", "FAILOVER", *([how] if how else []))
        until(lambda: replica.ask("ROLE")[0] == b"master", 20, "the replica is the primary")
        self.settle()

    def start_move(self, slot: int, target: ClusterNode) -> None:
        """Opens a slot for moving: from now on both its nodes send clients around."""
        source = self.owner(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)

    def move_keys(
        self, slot: int, target: ClusterNode, keys: Iterable[bytes] | None = None
    ) -> None:
        """Moves these keys of an open slot, or all that its old node still has."""
        source = self.owner(slot)
        if keys is None:
            keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100_000)
        for key in keys:
            source.ask("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        """Gives the slot to its new node."""
        source, name = self.owner(slot), target.node_id
        for node in (target, source, *self._running()):
            with contextlib.suppress(redis.ResponseError):  # replicas can't be told
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", name)

    def move(self, slot: int, target: ClusterNode) -> None:
        """All of it: a slot with its keys."""
        self.start_move(slot, target)
        self.move_keys(slot, target)
        self.end_move(slot, target)

    def settle(self, timeout: float = 30.0) -> None:
        """Waits until every running node agrees on who serves what, and serves."""
        until(self._agree, timeout, "the cluster agrees")

    def revive(self) -> None:
        """A test before may have stopped or killed nodes."""
        for node in self.nodes:
            if node.running:
                node.continue_()
            else:
                node.restart()
        self.settle()

    def __enter__(self) -> RedisCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _running(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.running]

    def _join(self, primaries: int) -> None:
        step = SLOTS // primaries
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < primaries:
                last = SLOTS - 1 if number == primaries - 1 else (number + 1) * step - 1
                node.ask("CLUSTER", "ADDSLOTSRANGE", number * step, last)
        for one in self.nodes:
            for other in self.nodes:
                if one is not other:
                    one.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        self.settle()

    def _follow(self, primaries: int) -> None:
        for number, node in enumerate(self.nodes[primaries:]):
            node.ask("CLUSTER", "REPLICATE", self.nodes[number % primaries].node_id)
        for node in self.nodes[primaries:]:
            until(partial(_in_step, node), 30, "the replica is in step")
        self.settle()

    def _agree(self) -> bool:
        with contextlib.suppress(redis.ConnectionError):  # a node that is just being started
            return self._same_view()
        return False

    def _same_view(self) -> bool:
        views = set()
        for node in self._running():
            info = dict(
                line.split(b":") for line in node.ask("CLUSTER", "INFO").split() if b":" in line
            )
            if info[b"cluster_state"] != b"ok" or int(info[b"cluster_known_nodes"]) < len(
                self.nodes
            ):
                return False
            slots = node.ask("CLUSTER", "SLOTS")
            views.add(str(sorted((first, last, primary[1]) for first, last, primary, *_ in slots)))
        return len(views) == 1


def _in_step(node: ClusterNode) -> bool:
    info: dict[str, Any] = node.client().info("replication")
    return info["role"] == "slave" and info.get("master_link_status") == "up"
