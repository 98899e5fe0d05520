"""Redis behind Sentinels: the primary is found at every connect, and a failover is survived."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import (
    ConfigError,
    ReplayMismatchError,
    SinkBehindError,
    SinkUnavailableError,
)
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.redis.replicas import Replicas
from spark_eoc.sinks.redis.sentinel import SentinelAddress
from spark_eoc.sinks.redis.url import parse_url
from spark_eoc.sinks.store import Column
from spark_eoc.testing.redis_replicas import SentinelRedis, linked
from spark_eoc.testing.wait import until
from tests.sinks.redis.driving import Run, counters, error_of, redis_sink, stored, totals

COLUMNS = [Column("k", "bigint"), Column("n", "bigint")]


@pytest.fixture
def own_sentinel_redis(tmp_path: Path) -> Iterator[SentinelRedis]:
    with SentinelRedis(tmp_path) as servers:
        yield servers


def test_a_failover_in_mid_unit(
    own_sentinel_redis: SentinelRedis, later: Callable[..., None]
) -> None:
    """The primary is killed while chunks are written; the task finds the new one and goes on, and
    the next batch, after the old primary has come back as a replica, is exact as well."""
    servers, data = own_sentinel_redis, counters(300, 150)
    sink = redis_sink(
        servers.url(), "c:{k}", "hincrby", chunk_rows=1, replicas=Replicas(1, 500), budget_s=60
    )
    run = Run(sink, "w")
    run.sink.check(COLUMNS)
    run.open(0)
    old = servers.primary()
    # One of two has the writes; with the primary gone nobody is left to wait for.
    run.sink = redis_sink(servers.url(), "c:{k}", "hincrby", chunk_rows=1)
    later(0.1, old.kill)
    assert run.apply(data) in (Applied(), AlreadyApplied())
    new = servers.wait_for_another(old)
    run.close()
    assert stored(new.client(), "c") == totals(data)
    servers.rejoin(old)
    run.sink = sink
    run.batch(1, data)
    for node in servers.nodes:
        assert stored(node.client(), "c") == totals(data, 2)


def test_a_failover_that_loses_acknowledged_writes_is_refused(
    own_sentinel_redis: SentinelRedis,
) -> None:
    """The replica that is promoted lacks a unit of an open batch (repaired by the repeat), then
    whole batches (refused by name)."""
    servers, data = own_sentinel_redis, counters()
    run = Run(redis_sink(servers.url(), "c:{k}", "hincrby", budget_s=30), "w")
    run.batch(0, data)
    run.open(1)
    promoted = _lose(servers, lambda: run.apply(data))
    with pytest.raises(ReplayMismatchError):
        run.close()
    run.batch(1, data)
    assert stored(promoted.client(), "c") == totals(data, 2)

    def two_batches() -> None:
        run.batch(2, data)
        run.open(3)

    promoted = _lose(servers, two_batches)
    assert error_of(run.apply(data)) == "SinkBehindError"
    with pytest.raises(SinkBehindError, match="batch 1 as the newest complete one"):
        run.open(3)
    assert stored(promoted.client(), "c") == totals(data, 2)


def _lose(servers: SentinelRedis, write: Callable[[], Any]) -> Any:
    """Lets the primary take what ``write`` writes, and a replica without it take over."""
    primary = servers.primary()
    replica = next(node for node in servers.nodes if node is not primary)
    if not replica.running:
        servers.rejoin(replica)
    client: Any = primary.client()
    until(lambda: client.info("replication")["connected_slaves"] == 1, 20, "a replica")
    until(lambda: linked(replica), 20, "the replica is in step")
    assert client.execute_command("WAIT", 1, 5000) == 1
    replica.stop_process()
    client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    write()
    primary.kill()
    replica.continue_()
    return servers.wait_for_another(primary)


def test_sentinels_that_are_gone_and_masters_that_are_not_known(
    own_sentinel_redis: SentinelRedis,
) -> None:
    """Any Sentinel is enough; an unknown master's name ends at once."""
    servers = own_sentinel_redis
    for sentinel in servers.sentinels[:2]:
        sentinel.kill()
    redis_sink(servers.url(), "c:{k}", "hincrby").check(COLUMNS)
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match="no master named 'other'"):
        redis_sink(servers.url().replace("/eoc/", "/other/"), "c:{k}", "hincrby").check(COLUMNS)
    assert time.monotonic() - began < 10


def test_sentinel_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts with and without ports, both passwords; none of them shows."""
    url = "rediss+sentinel://app:s%40crt@a,[::1]:1,c:26380/eoc/2?ssl_cert_reqs=none"
    address = parse_url(url + "&sentinel_password=other-one&sentinel_username=watch")
    assert isinstance(address, SentinelAddress)
    assert address.master == "eoc"
    assert [sentinel.url for sentinel in address.sentinels] == [
        "rediss://watch@a:26379?ssl_cert_reqs=none",
        "rediss://watch@[::1]:1?ssl_cert_reqs=none",
        "rediss://watch@c:26380?ssl_cert_reqs=none",
    ]
    assert address.node.url == "rediss://app@primary.invalid/2?ssl_cert_reqs=none"
    assert address.password is not None
    assert address.password.reveal() == "s@crt"
    secrets = [sentinel.password for sentinel in address.sentinels]
    assert [secret and secret.reveal() for secret in secrets] == ["other-one"] * 3
    shown = repr(address) + address.url + str(pickle.dumps(address))
    assert "s@crt" not in shown
    assert "s%40crt" not in shown
    assert "other-one" not in shown
    assert address.redact("s@crt, other-one") == "***, ***"
    monkeypatch.setenv("SPARK_EOC_SENTINEL_PASSWORD", "third")
    named = parse_url("redis+sentinel://a/eoc")
    assert isinstance(named, SentinelAddress)
    assert named.sentinels[0].password is not None
    assert named.password is None
    for bad in (
        "redis+sentinel://a:1,b:2",
        "redis+sentinel:///eoc",
        "redis+sentinel://a:x/eoc",
        "http+sentinel://a/eoc",
        "redis+sentinel://a/eoc?nonsense=1",
    ):
        with pytest.raises(ConfigError):
            RedisWriter(bad, key="{k}", command="hset")
