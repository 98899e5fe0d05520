"""What tests of the cluster share: reading all nodes, and nodes that lose what they have said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_eoc.sinks.redis.cluster.slots import slot_of
from spark_eoc.testing.redis_cluster import ClusterNode, RedisCluster
from spark_eoc.testing.wait import until
from tests.sinks.redis.driving import counters


def stored(cluster: RedisCluster, prefix: str) -> dict[bytes, bytes]:
    """The counters on all nodes, without the prefix; each key is on one node only."""
    found: dict[bytes, bytes] = {}
    for key, node in cluster.keys(f"{prefix}:*"):
        name = key[len(prefix) + 1 :]
        assert name not in found, f"{name!r} is on two nodes"
        found[name] = node.ask("HGET", key, "n")
    return found


def slots(prefix: str, keys: int) -> list[int]:
    """The slots of the counters' keys."""
    return sorted({slot_of(f"{prefix}:{key}".encode()) for key in range(keys)})


def wide(keys: int = 300) -> dict[str, Any]:
    """Counters over many slots, some keys with more rows than others."""
    return counters(keys * 2 + keys // 3, keys)


def lose(cluster: RedisCluster, primary: ClusterNode, write: Callable[[], Any]) -> ClusterNode:
    """Lets ``primary`` take what ``write`` writes to it, and its replica, without it, take over."""
    replica = cluster.replica_of(primary)
    assert _write_and_wait(primary) == 1
    replica.stop_process()
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    write()
    primary.kill()
    replica.continue_()
    cluster.failover(replica)
    until(lambda: replica.ask("CLUSTER", "INFO").find(b"cluster_state:ok") >= 0, 20, "serving")
    return replica


def _write_and_wait(primary: ClusterNode) -> int:
    with primary.client() as client:
        plain: Any = client
        plain.execute_command("PUBLISH", "x", "x")
        return int(plain.execute_command("WAIT", 1, 5000))
