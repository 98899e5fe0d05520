"""The URL of a Redis Cluster: some of its nodes, from which the others are learnt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.address import RedisAddress
from spark_eoc.sinks.redis.hosts import HostList

_PORT = 6379


@dataclass(frozen=True)
class ClusterAddress(RedisAddress):
    """``redis+cluster://user@host:6379,host2:6379``; ``rediss+cluster`` for TLS.

    One host that answers is enough. User and password are the same on every node.
    """

    seeds: tuple[RedisAddress, ...] = ()

    @classmethod
    def parse(cls, url: str, password: str | None = None) -> ClusterAddress:
        """Raises ConfigError; see :meth:`RedisAddress.parse`."""
        hosts = HostList.parse(url, "cluster", _PORT)
        database = hosts.path.strip("/") or dict(parse_qsl(hosts.query)).get("db", "0")
        if database != "0":
            raise ConfigError(
                f"the URL names database {database}, and a Redis Cluster has database 0 only",
                next_step="leave the number out, and tell data apart by a prefix of the key",
            )
        tail = f"?{hosts.query}" if hosts.query else ""
        seeds = tuple(
            RedisAddress.parse(f"{hosts.scheme}://{hosts.user}{host}/{tail}", password)
            for host in hosts.hosts
        )
        options = seeds[0].url.partition("?")[2]
        shown = f"{hosts.scheme}+cluster://{hosts.shown()}/" + (f"?{options}" if options else "")
        return cls(shown, seeds[0].password, seeds)

    def node(self, place: str) -> RedisAddress:
        """The address of a node, ``host:port``, reached as the seeds are."""
        first = self.seeds[0].url
        scheme, _, rest = first.partition("://")
        netloc, slash, path = rest.partition("/")
        user, at, _ = netloc.rpartition("@")
        return replace(self.seeds[0], url=f"{scheme}://{user}{at}{place}{slash}{path}")
