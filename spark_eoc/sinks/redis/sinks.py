"""Which sink a target needs."""

from __future__ import annotations

from spark_eoc.sinks.redis.cluster.address import ClusterAddress
from spark_eoc.sinks.redis.cluster.sink import RedisClusterSink
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.redis.target import Target


def sink_for(target: Target) -> RedisSink:
    """One for a Cluster if the address names one."""
    return (
        RedisClusterSink(target)
        if isinstance(target.address, ClusterAddress)
        else RedisSink(target)
    )
