"""A Redis with replicas, and Sentinels that promote one of them when the primary is gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import redis

from spark_eoc.testing.servers import Redis
from spark_eoc.testing.wait import until

_HURRY = ["info-period", "200", "publish-period", "200", "ask-period", "200", "ping-period", "200"]
#: The name under which the Sentinels know the primary.
MASTER_NAME = "eoc"


class RedisReplica(Redis):
    """A Redis that follows ``primary``."""

    def __init__(self, primary: Redis, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__(folder)
        self.primary = primary

    @classmethod
    def of(cls, primary: Redis, folder: str | os.PathLike[str] | None = None) -> RedisReplica:
        """A running replica that has caught up."""
        replica = cls(primary, folder)
        try:
            replica._prepare()
            replica._start_on_free_port()
            follow(replica, primary)
        except BaseException:
            replica.close()
            raise
        return replica


def follow(node: Redis, primary: Redis) -> None:
    """Makes ``node`` a replica of ``primary`` and waits until it is in step."""
    primary.client().config_set("repl-diskless-sync-delay", 0)  # else a sync waits 5 s
    node.client().replicaof("127.0.0.1", str(primary.port))
    until(lambda: linked(node), 20, "the replica is in step")


def linked(replica: Redis) -> bool:
    """Whether a replica has its primary's data and follows it."""
    info: dict[str, Any] = replica.client().info("replication")
    return info.get("master_link_status") == "up" and not info.get("master_sync_in_progress")


class Sentinel(Redis):
    """One Sentinel that watches ``primary``; it declares it down after half a second."""

    name = "sentinel"

    def __init__(
        self, primary: Redis, quorum: int, folder: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(folder)
        self._watched = primary.port
        self._quorum = quorum

    @classmethod
    def of(
        cls, primary: Redis, quorum: int, folder: str | os.PathLike[str] | None = None
    ) -> Sentinel:
        """A running Sentinel."""
        sentinel = cls(primary, quorum, folder)
        try:
            sentinel._prepare()
            sentinel._start_on_free_port()
            with contextlib.suppress(redis.ResponseError):  # Redis 6.2 can't be hurried
                _ask(sentinel, "DEBUG", *_HURRY)
        except BaseException:
            sentinel.close()
            raise
        return sentinel

    def _command(self) -> list[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():  # it keeps its state there
            watch = f"{MASTER_NAME} 127.0.0.1 {self._watched} {self._quorum}"
            file.write_text(
                f"bind 127.0.0.1\ndir {self.folder}\nsentinel monitor {watch}\n"
                f"sentinel down-after-milliseconds {MASTER_NAME} 500\n"
                f"sentinel failover-timeout {MASTER_NAME} 3000\n"
            )
        words = super()._command()
        program = words[: words.index("--port")]
        return [*program, str(file), "--sentinel", "--port", str(self.port)]


class SentinelRedis:
    """A primary, replicas, and Sentinels around them. A context manager.

    ``nodes`` hold the first primary and its replicas; which of them is the primary now is what
    :meth:`primary` asks the Sentinels.
    """

    def __init__(
        self, folder: str | os.PathLike[str], replicas: int = 1, sentinels: int = 3
    ) -> None:
        base = Path(folder)
        self._stack = contextlib.ExitStack()
        try:
            first = self._stack.enter_context(Redis.start(base / "node-0"))
            self.nodes: list[Redis] = [first]
            for number in range(1, replicas + 1):
                replica = RedisReplica.of(first, base / f"node-{number}")
                self.nodes.append(self._stack.enter_context(replica))
            quorum = sentinels // 2 + 1
            self.sentinels = [
                self._stack.enter_context(Sentinel.of(first, quorum, base / f"sentinel-{number}"))
                for number in range(sentinels)
            ]
            until(self._know_all, 20, "the Sentinels know each other and the replicas")
        except BaseException:
            self._stack.close()
            raise

    def url(self, database: int = 0) -> str:
        """``redis+sentinel://HOST:PORT,.../eoc/DATABASE``."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{MASTER_NAME}/{database}"

    def primary(self) -> Redis:
        """The node that the Sentinels that answer take for the primary."""
        port = next(self._answers("GET-MASTER-ADDR-BY-NAME", MASTER_NAME))[1]
        return next(node for node in self.nodes if node.port == int(port))

    def wait_for_another(self, old: Redis, timeout: float = 30.0) -> Redis:
        """Waits until a node other than ``old`` is the primary and says so itself."""

        def promoted() -> bool:
            new = self.primary()
            with contextlib.suppress(redis.RedisError):
                return new is not old and new.client().info("replication")["role"] == "master"
            return False

        until(promoted, timeout, "another primary")
        return self.primary()

    def rejoin(self, node: Redis) -> None:
        """Starts a killed node and makes it a replica of the present primary, as the Sentinels
        would some seconds later."""
        node.restart()
        follow(node, self.primary())

    def __enter__(self) -> SentinelRedis:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _know_all(self) -> bool:
        replicas, others = len(self.nodes) - 1, len(self.sentinels) - 1
        known = [
            len(_ask(sentinel, what, MASTER_NAME))
            for sentinel in self.sentinels
            for what in ("REPLICAS", "SENTINELS")
        ]
        return known == [replicas, others] * len(self.sentinels)

    def _answers(self, *words: str) -> Iterator[Any]:
        for sentinel in self.sentinels:
            with contextlib.suppress(redis.RedisError, OSError):
                yield _ask(sentinel, *words)


def _ask(sentinel: Sentinel, *words: str) -> Any:
    client: Any = sentinel.client()
    return client.execute_command("SENTINEL", *words)
