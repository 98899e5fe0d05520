"""Which kind of Redis a URL means."""

from __future__ import annotations

from spark_eoc.sinks.redis.address import RedisAddress
from spark_eoc.sinks.redis.cluster.address import ClusterAddress
from spark_eoc.sinks.redis.sentinel import SentinelAddress


def parse_url(url: str, password: str | None = None) -> RedisAddress:
    """One server, the primary that Sentinels name, or a Cluster; raises ConfigError."""
    if url.partition(":")[0].endswith("+cluster"):
        return ClusterAddress.parse(url, password)
    if url.partition(":")[0].endswith("+sentinel"):
        return SentinelAddress.parse(url, password)
    return RedisAddress.parse(url, password)
