"""URLs of clusters, and what can't be had there: refused by name, with the next step."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError, SparkEocError
from spark_eoc.sinks.redis.cluster.address import ClusterAddress
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.rights import acl_rules
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.redis.url import parse_url
from spark_eoc.sinks.store import Column
from spark_eoc.testing.redis_cluster import RedisCluster
from tests.sinks.redis.cluster.clusters import stored, wide
from tests.sinks.redis.driving import Run, redis_sink, totals

README = (Path(__file__).parents[4] / "README.md").read_text()
COLUMNS = [Column("k", "bigint"), Column("n", "bigint")]


def test_a_url_of_the_wrong_kind(redis_cluster: RedisCluster, redis_server: Any) -> None:
    """One node of a cluster without cluster mode, and cluster mode without a cluster."""
    node = redis_cluster.nodes[0].url()
    with pytest.raises(ConfigError, match=r"redis\+cluster://"):
        redis_sink(node, "c:{k}", "hincrby").check(COLUMNS)
    single = f"redis+cluster://127.0.0.1:{redis_server.port}"
    with pytest.raises(ConfigError, match="not a node of a Cluster"):
        redis_sink(single, "c:{k}", "hincrby").check(COLUMNS)


def test_every_node_is_checked(redis_cluster: RedisCluster, prefix: str) -> None:
    """An eviction policy or a missing right on one node is enough; one seed is enough to find
    it; the probe leaves no key."""
    node = redis_cluster.nodes[2]
    url = redis_cluster.nodes[0].url().replace("redis://", "redis+cluster://").removesuffix("/0")
    sink = redis_sink(url, prefix + ":{k}", "hincrby", ledger=prefix + "_ledger")
    assert sink.check(COLUMNS) == prefix + ":{k}"
    node.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(ConfigError, match="allkeys-lru"):
            sink.check(COLUMNS)
    finally:
        node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    for each in redis_cluster.nodes:
        each.ask("ACL", "SETUSER", prefix, "on", ">pw", "~*", "+@all")
    node.ask("ACL", "SETUSER", prefix, "-hincrby")
    user = url.replace("//", f"//{prefix}:pw@")
    with pytest.raises(ConfigError, match="HINCRBY"):
        redis_sink(user, prefix + ":{k}", "hincrby", ledger=prefix + "_ledger").check(COLUMNS)
    for each in redis_cluster.nodes:
        each.ask("ACL", "DELUSER", prefix)
    assert list(redis_cluster.keys(f"{prefix}*")) == []


def test_the_rights_that_a_user_needs(redis_cluster: RedisCluster, prefix: str) -> None:
    """Those that the README names for one server and for a Cluster are enough for batches, and
    each is asked for at the start."""
    key, ledger = prefix + ":{k}", prefix + "_ledger"
    more = ["+cluster|slots", "+asking", "+script|load", "+sadd", "+smembers"]
    assert f"`{' '.join(more)}` on a Cluster" in " ".join(README.split())
    rules = [*acl_rules(Command("hincrby", KeyTemplate.parse(key)), ledger).split(), *more]

    def sink_with(rights: list[str]) -> RedisSink:
        for node in redis_cluster.nodes:
            node.ask("ACL", "SETUSER", prefix, "reset", "on", ">hush", *rights)
        url = redis_cluster.url().replace("//", f"//{prefix}:hush@")
        return redis_sink(url, key, "hincrby", ledger=ledger, budget_s=5)

    run = Run(sink_with(rules), prefix)
    run.sink.check(COLUMNS)
    run.batch(0, wide(30))
    run.batch(1, wide(30))
    assert stored(redis_cluster, prefix) == totals(wide(30), 2)
    for right in more:
        if right != "+asking":
            with pytest.raises(SparkEocError, match=r"(?i)" + right[1:].partition("|")[0]):
                sink_with([rule for rule in rules if rule != right]).check(COLUMNS)
    for node in redis_cluster.nodes:
        node.ask("ACL", "DELUSER", prefix)


def test_what_needs_one_step_for_all_slots_is_refused_by_name(redis_cluster: RedisCluster) -> None:
    """Batch atomicity at the first batch; with dead letters when a writer is built."""
    with pytest.raises(ConfigError, match="in RedisClusterSink"):
        RedisWriter(
            redis_cluster.url(), key="{k}", command="set", value="v", on_bad_row="dead_letter",
            atomicity="batch",
        )  # fmt: skip
    with pytest.raises(ConfigError, match="Redis Cluster"):
        redis_sink(redis_cluster.url(), "c:{k}", "hincrby").check_batch()


def test_cluster_urls() -> None:
    """Hosts with and without ports, a password that never shows, database 0 only."""
    address = parse_url("rediss+cluster://app:s%40crt@a,[::1]:1/?ssl_cert_reqs=none")
    assert isinstance(address, ClusterAddress)
    assert address.url == "rediss+cluster://app@a:6379,[::1]:1/?ssl_cert_reqs=none"
    assert address.node("b:7").url == "rediss://app@b:7/?ssl_cert_reqs=none"
    assert [seed.url for seed in address.seeds] == [
        "rediss://app@a:6379/?ssl_cert_reqs=none",
        "rediss://app@[::1]:1/?ssl_cert_reqs=none",
    ]
    assert address.node("b:7").password == address.password
    assert address.redact("s@crt") == "***"
    assert "s@crt" not in repr(address) + str(pickle.dumps(address))
    for bad in (
        "redis+cluster://a/1",
        "redis+cluster://a?db=2",
        "redis+cluster://",
        "a+cluster://a",
    ):
        with pytest.raises(ConfigError):
            RedisWriter(bad, key="{k}", command="hset")
