"""What servers and networks do: time-outs, kills, snapshots, full memory, rights, versions."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.errors import (
    ConfigError,
    SinkBehindError,
    SinkUnavailableError,
)
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.store import Column
from spark_eoc.testing.proxy import Rules
from spark_eoc.testing.servers import Redis
from tests.sinks.redis.driving import (
    Run,
    counters,
    error_of,
    redis_sink,
    stored,
    totals,
)

NewRun = Callable[..., Run]


def test_a_redis_back_at_a_snapshot_is_refused(own_redis: Any) -> None:
    """Restored to an earlier state, the ledger is older than the checkpoint: refused by name."""
    client = own_redis.client()
    run = Run(redis_sink(own_redis.url(), "{k}", "hincrby"), "w")
    run.batch(0, counters())
    client.bgrewriteaof()
    _wait_for_rewrite(client)
    kept = own_redis.folder / "kept"
    shutil.copytree(own_redis.folder / "appendonlydir", kept)
    run.batch(1, counters())
    run.open(2)
    own_redis.kill()
    shutil.rmtree(own_redis.folder / "appendonlydir")
    shutil.copytree(kept, own_redis.folder / "appendonlydir")
    own_redis.restart()
    refused = run.apply(counters())
    assert error_of(refused) == "SinkBehindError"
    with pytest.raises(SinkBehindError, match="batch 0 as the newest complete one"):
        run.open(2)
    own_redis.client().flushall()
    with pytest.raises(SinkBehindError, match="no ledger"):
        run.open(2)


def test_a_redis_that_keeps_snapshots_only_is_refused_after_a_kill(tmp_path: Path) -> None:
    """SAVE, a batch, SIGKILL, a start from the dump: what came after it is gone, and it is said."""
    with Redis.start(tmp_path / "redis", ["--appendonly", "no"]) as server:
        run = Run(redis_sink(server.url(), "c:{k}", "hincrby"), "w")
        run.batch(0, counters())
        server.client().save()
        run.batch(1, counters())
        run.open(2)
        server.restart()
        assert error_of(run.apply(counters())) == "SinkBehindError"
        with pytest.raises(SinkBehindError, match="batch 0 as the newest complete one"):
            run.open(2)
        assert stored(server.client(), "c") == totals(counters())


def _wait_for_rewrite(client: Any) -> None:
    from spark_eoc.testing.wait import until  # noqa: PLC0415

    def done() -> bool:
        info = client.info("persistence")
        return not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

    until(done, 10, "the append-only file is rewritten")


def test_r1_a_script_that_timed_out_is_not_run_twice(own_redis: Any) -> None:
    """R1: CLIENT PAUSE beyond the socket timeout; every try may still run later; exact counters."""
    data = counters()
    url = own_redis.url() + "?socket_timeout=0.2"
    run = Run(redis_sink(url, "c:{k}", "hincrby", chunk_rows=2), "w")
    for batch in range(4):
        run.open(batch)
        own_redis.client().client_pause(900, all=batch % 2 == 0)
        assert run.apply(data) in (Applied(), AlreadyApplied())
        own_redis.client().client_pause(500, all=batch % 2 == 1)
        run.close()
        assert stored(own_redis.client(), "c") == totals(data, batch + 1)


@pytest.mark.parametrize("rows", [40, 4000])
def test_r1_answers_lost_on_the_way(
    redis_server: Any, proxy_to: Callable[[int], Any], prefix: str, rows: int
) -> None:
    """R1: the link is cut after any number of bytes in either direction: counters exact."""
    data, rng = counters(rows, rows // 3), random.Random(rows)
    proxy = proxy_to(redis_server.port)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.3"
    run = Run(redis_sink(url, prefix + ":{k}", "hincrby", chunk_rows=rows // 8), prefix)
    for batch in range(12):
        run.open(batch)
        if batch % 2:
            rule = Rules(cut_to_server=rng.randrange(20, 40 * rows))
        else:
            rule = Rules(cut_to_client=rng.randrange(0, 40))
        proxy.set(rule, times=1 + batch % 3)
        assert run.apply(data) in (Applied(), AlreadyApplied()), batch
        proxy.set(None)
        run.close()
        assert stored(redis_server.client(), prefix) == totals(data, batch + 1), batch


def test_r1_a_link_that_is_slower_than_the_socket_timeout(
    redis_server: Any,
    proxy_to: Callable[[int], Any],
    prefix: str,
    later: Callable[..., threading.Timer],
) -> None:
    """R1: every answer comes after the client has given up, and what it sent arrives all the same,
    late and in any order with its repeats: counters exact."""
    data, proxy = counters(), proxy_to(redis_server.port)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.15"
    run = Run(redis_sink(url, prefix + ":{k}", "hincrby", chunk_rows=2), prefix)
    for batch in range(3):
        run.open(batch)
        proxy.set(Rules(delay_s=0.2))
        normal = later(1.2, lambda: proxy.set(None))
        assert run.apply(data) in (Applied(), AlreadyApplied())
        normal.join()
        run.close()
        assert stored(redis_server.client(), prefix) == totals(data, batch + 1)


def test_r3_out_of_memory_fails_whole_and_goes_on(own_redis: Any) -> None:
    """R3: maxmemory with noeviction: nothing of a chunk is in; after it is raised, it goes on."""
    client = own_redis.client()
    run = Run(redis_sink(own_redis.url(), "c:{k}", "hset", chunk_rows=500, budget_s=0.5), "w")
    data = {"k": list(range(3000)), "v": ["x" * 500] * 3000}
    run.open(0)
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 700_000)
    refused = run.apply(data)
    assert error_of(refused) == "SinkUnavailableError"
    assert "maxmemory" in (refused.next_step or "")
    keys = len(list(client.scan_iter("c:*", count=1000)))
    assert keys % 500 == 0
    assert 0 < keys < 3000
    client.config_set("maxmemory", 0)
    run.open(0)
    assert run.apply(data) == Applied()
    run.close()
    assert len(list(client.scan_iter("c:*", count=1000))) == 3000


def test_r3_eviction_policies(own_redis: Any, caplog: pytest.LogCaptureFixture) -> None:
    """R3: allkeys-* would throw the ledger away and is refused; volatile-* is warned about."""
    client = own_redis.client()
    sink = redis_sink(own_redis.url(), "c:{k}", "hset")
    columns = [Column("k", "string"), Column("v", "string")]
    client.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigError, match="allkeys-lru"):
        sink.check(columns)
    client.config_set("maxmemory-policy", "volatile-lru")
    assert sink.check(columns) == "c:{k}"
    assert "volatile-lru" in caplog.text
    caplog.clear()
    client.config_set("maxmemory-policy", "noeviction")
    sink.check(columns)
    assert not caplog.records
    client.config_set("appendonly", "no")
    sink.check(columns)
    assert "persists nothing" in caplog.text


def test_r5_scripts_are_forgotten(own_redis: Any) -> None:
    """R5: SCRIPT FLUSH between chunks, and a restart between batches: exact counters."""
    run = Run(redis_sink(own_redis.url(), "c:{k}", "hincrby", chunk_rows=1), "w")
    data = counters(400, 200)
    for batch in range(3):
        stop = threading.Event()
        flusher = threading.Thread(target=_flush_scripts, args=(own_redis.client(), stop))
        flusher.start()
        run.batch(batch, data)
        stop.set()
        flusher.join()
        own_redis.kill()
        own_redis.restart()
    assert stored(own_redis.client(), "c") == totals(data, 3)


def _flush_scripts(client: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        client.script_flush()


def test_a_redis_killed_in_mid_unit(own_redis: Any) -> None:
    """SIGKILL and restart while chunks are written: the task waits, goes on, and it is once."""
    run = Run(redis_sink(own_redis.url(), "c:{k}", "hincrby", chunk_rows=1), "w")
    data = counters(600, 300)
    run.open(0)
    killer = threading.Thread(target=_kill_and_restart, args=(own_redis,))
    killer.start()
    assert run.apply(data) in (Applied(), AlreadyApplied())
    killer.join()
    run.close()
    assert stored(own_redis.client(), "c") == totals(data)


def _kill_and_restart(server: Any) -> None:
    for _ in range(3):
        time.sleep(0.05)
        server.kill()
        server.restart()


def test_a_user_without_a_right_is_told_at_the_start(own_redis: Any) -> None:
    """The probe runs every command that will be used, before a row is written."""
    client = own_redis.client()
    client.execute_command("ACL SETUSER app on >secretword ~* +@all -hincrby")
    url = own_redis.url().replace("redis://", "redis://app:secretword@")
    columns = [Column("k", "string"), Column("n", "bigint")]
    with pytest.raises(ConfigError, match="HINCRBY") as caught:
        redis_sink(url, "c:{k}", "hincrby").check(columns)
    assert "secretword" not in str(caught.value)
    assert redis_sink(url, "c:{k}", "hset").check(columns) == "c:{k}"
    assert client.keys("*") == []


def test_a_wrong_password_ends_at_once_and_is_not_shown(own_redis: Any) -> None:
    """No budget of minutes for what will not pass."""
    own_redis.client().execute_command("ACL SETUSER app on >right ~* +@all")
    url = own_redis.url().replace("redis://", "redis://app:hush-hush@")
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError) as caught:
        redis_sink(url, "c:{k}", "hset").units("w", 0)
    assert time.monotonic() - began < 5
    assert "give the right user and password" in str(caught.value)
    assert "hush-hush" not in str(caught.value) + repr(caught.value)


def test_an_unreachable_server(own_redis: Any) -> None:
    """After the budget: SinkUnavailableError, as data from a task."""
    run = Run(redis_sink(own_redis.url(), "c:{k}", "hincrby", budget_s=0.5), "w")
    run.open(0)
    own_redis.kill()
    assert error_of(run.apply(counters())) == "SinkUnavailableError"
    with pytest.raises(SinkUnavailableError):
        run.close()


ALL_COMMANDS = (
    ("set", {"value": "n"}),
    ("hset", {}),
    ("hincrby", {}),
    ("incrby", {"value": "n"}),
    ("incrbyfloat", {"value": "n"}),
    ("sadd", {"value": "n"}),
    ("rpush", {"value": "n"}),
    ("zadd", {"member": "k", "score": "n"}),
    ("zincrby", {"member": "k", "score": "n"}),
    ("xadd", {}),
    ("del", {}),
)


@pytest.mark.parametrize("name", ["redis6", "redis8", "valkey"])
def test_the_protocol_on_other_servers(name: str, own_server: Callable[..., Any]) -> None:
    """Redis 6.2 and 8.2, and Valkey: open, chunks, a repeat, a bad row, a close."""
    server = own_server(name)
    client = server.client()
    columns = [Column("k", "bigint"), Column("n", "bigint")]
    for command, more in ALL_COMMANDS:
        run = Run(
            redis_sink(server.url(), command + ":{k}", command, chunk_rows=3, **more), command
        )
        if (name, command) == ("redis6", "incrbyfloat"):
            with pytest.raises(ConfigError, match="crashes"):
                run.sink.check(columns)
            continue
        run.sink.check(columns)
        for batch in range(2):
            run.open(batch)
            assert run.apply(counters()) == Applied()
            assert run.apply(counters()) == AlreadyApplied()
            run.close()
    assert stored(client, "hincrby") == totals(counters(), 2)
    client.set("hset:10", "stranger")
    run = Run(redis_sink(server.url(), "hset:{k}", "hset", budget_s=0.1), "hset")
    run.open(2, query_id="query-1")
    assert error_of(run.apply(counters())) == "BadRowError"
    client.delete("hset:10")
    client.config_set("maxmemory", 1)
    assert error_of(run.apply(counters())) == "SinkUnavailableError"


def test_a_connection_says_nothing_of_itself(own_redis: Any) -> None:
    """Connecting costs one round trip: redis-py's version is neither looked up nor told."""
    address = redis_sink(own_redis.url(), "c:{k}", "hset").target.address
    own_redis.client().config_resetstat()
    with address.connect() as client:
        client.ping()
        assert client.info("errorstats") == {}
        assert not [name for name in client.info("commandstats") if "setinfo" in name]
