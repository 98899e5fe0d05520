"""Where a Redis is that Sentinels watch: asked anew for every connection."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.address import RedisAddress
from spark_eoc.sinks.redis.hosts import HostList
from spark_eoc.sinks.secret import Secret

#: The Sentinels' own password, if the URL holds none.
PASSWORD_ENVIRONMENT = "SPARK_EOC_SENTINEL_PASSWORD"  # noqa: S105  a name, not a secret
_PORT = 26379
#: How long a Sentinel may take to answer; another is asked then.
_ASK_S = 2.0
#: Stands in URLs where the primary will be.
_PRIMARY = "primary.invalid"


@dataclass(frozen=True)
class SentinelAddress(RedisAddress):
    """``redis+sentinel://user@host:26379,host2:26379/master-name/0``; ``rediss+sentinel`` for TLS.

    User and password are those of the Redis; the Sentinels' own, if they have one, are
    ``sentinel_username`` and ``sentinel_password`` in the query, or SPARK_EOC_SENTINEL_PASSWORD.
    """

    master: str = ""
    node: RedisAddress = field(default_factory=lambda: RedisAddress(""))
    sentinels: tuple[RedisAddress, ...] = ()

    @classmethod
    def parse(cls, url: str, password: str | None = None) -> SentinelAddress:
        """Raises ConfigError; see :meth:`RedisAddress.parse`."""
        hosts = HostList.parse(url, "sentinel", _PORT)
        name, _, database = hosts.path.strip("/").partition("/")
        if not name:
            raise ConfigError(
                "the Sentinel URL names no master",
                next_step="write it as redis+sentinel://host:26379,host:26379/master-name/0",
            )
        query = dict(parse_qsl(hosts.query, keep_blank_values=True))
        user = query.pop("sentinel_username", "")
        secret = query.pop("sentinel_password", "") or os.environ.get(PASSWORD_ENVIRONMENT)
        db = query.pop("db", database or "0")
        tail = "?" + urlencode(query) if query else ""
        node = RedisAddress.parse(f"{hosts.scheme}://{hosts.user}{_PRIMARY}/{db}{tail}", password)
        rest = f"?{node.url.partition('?')[2]}" if "?" in node.url else ""
        login = f"{user}@" if user else ""
        sentinels = tuple(
            RedisAddress(
                f"{hosts.scheme}://{login}{host}{rest}", Secret(secret) if secret else None
            )
            for host in hosts.hosts
        )
        shown = f"{hosts.scheme}+sentinel://{hosts.shown()}/{name}/{db}{rest}"
        return cls(shown, node.password, unquote(name), node, sentinels)

    def connect(self) -> redis.Redis:
        """A client of the present primary, which says itself that it is one."""
        host, port = self._discover()
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        url = self.node.url.replace(_PRIMARY, place, 1)
        client = RedisAddress(url, self.password).connect()
        try:
            self._check_role(client, place)
        except BaseException:
            client.close()
            raise
        return client

    def _check_role(self, client: redis.Redis, place: str) -> None:
        if _ask(client, "ROLE")[0] != b"master":
            raise RedisConnectionError(f"{place} is not the primary of {self.master!r} any more")

    def redact(self, text: str) -> str:
        """The text without either password."""
        for address in (self.node, *self.sentinels):
            text = address.redact(text)
        return text

    def _discover(self) -> tuple[str, int]:
        """From the first Sentinel that answers; a RedisError of the last if none does."""
        problem: RedisError = RedisConnectionError("no Sentinel is named")
        for sentinel in self.sentinels:
            try:
                with sentinel.within(_ASK_S).connect() as client:
                    answer = _ask(client, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master)
            except RedisError as error:
                problem = error
                continue
            if answer:
                return answer[0].decode(), int(answer[1])
            problem = ResponseError(f"the Sentinels know no master named {self.master!r}")
        raise problem


def _ask(client: Any, *words: str) -> Any:
    return client.execute_command(*words)
