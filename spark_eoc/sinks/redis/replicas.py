"""Waiting until replicas have what was written, so that a failover loses less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.server import PassingError


class TooFewReplicasError(PassingError):
    """Fewer replicas than asked for have acknowledged; what was written is written."""


@dataclass(frozen=True)
class Replicas:
    """``count`` replicas must have acknowledged a write within ``timeout_ms``; 0 waits for none.

    A replica that acknowledged holds the write in memory. A failover to another replica, or to
    one that lost its memory, still loses it: this makes loss rare, the ledger makes it seen.
    """

    count: int = 0
    timeout_ms: int = 1000

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 0:
            raise ConfigError(
                f"wait_replicas={self.count!r} is not a number of replicas",
                next_step="pass how many replicas must have each write, or leave it out",
            )
        if type(self.timeout_ms) is not int or self.timeout_ms < 1:
            raise ConfigError(
                f"wait_timeout_ms={self.timeout_ms!r} is not a number of milliseconds from 1 on",
                next_step="leave it out for 1,000",
            )

    def check_timeout(self, socket_timeout_s: float) -> None:
        """Raises ConfigError if the socket would give up before WAIT does."""
        if self.count and self.timeout_ms >= socket_timeout_s * 1000:
            raise ConfigError(
                f"wait_timeout_ms={self.timeout_ms} is not below the socket's timeout of "
                f"{socket_timeout_s:g} s",
                next_step="lower it, or raise socket_timeout in the URL",
            )

    def wait(self, client: Any, key: str) -> None:
        """Returns when everything that this server wrote before is on enough replicas.

        ``key`` is a hash of the ledger's that nobody reads. It is written first because WAIT
        speaks of its own connection's writes, and what must be waited for may have been written
        by another: a try whose answer was lost. Raises TooFewReplicasError.
        """
        if not self.count:
            return
        client.hset(key, "waited", "1")
        self.judge(int(client.execute_command("WAIT", self.count, self.timeout_ms)))

    def judge(self, reached: int) -> None:
        """Raises TooFewReplicasError unless ``reached`` is enough."""
        if reached < self.count:
            raise TooFewReplicasError(
                f"only {reached} of wait_replicas={self.count} replicas had the newest writes "
                f"within {self.timeout_ms} ms"
            )
