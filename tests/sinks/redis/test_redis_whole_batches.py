"""Batch atomicity on a real Redis, step by step and without Spark: all of a batch, or nothing."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from spark_eoc import RedisWriter
from spark_eoc.errors import (
    BadRowError,
    BatchTooLargeError,
    ConfigError,
    FencedError,
    HalfAppliedError,
    ReplayMismatchError,
    SinkUnavailableError,
)
from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import Applied, Refused
from spark_eoc.sinks.ledger import Close
from spark_eoc.sinks.redis import staged, window
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.keys import LedgerKeys
from spark_eoc.sinks.redis.publish import Publication
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.testing.local import LocalFrame, local_run
from spark_eoc.testing.proxy import Rules
from tests.sinks.redis.broken import (
    EagerSink,
    HalfwaySink,
    TokenlessPublishingSink,
    UncountedSink,
)
from tests.sinks.redis.driving import (
    Run,
    counters,
    error_of,
    redis_sink,
    stored,
    totals,
)

NewRun = Callable[..., Run]
#: Reads all keys that it is given in one atomic step.
READER = "return redis.call('MGET', unpack(KEYS))"


def staged_keys(client: Any, prefix: str) -> list[bytes]:
    """Everything of the ledger's that belongs to what is staged."""
    return sorted(client.scan_iter(f"{prefix}_ledger:*:staging*"))


def test_nothing_is_seen_before_it_is_published_and_nothing_stays_staged(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """Partitions add up per key in one step; no key of the ledger has a TTL; history is kept."""
    data, run = counters(), new_run("{k}", "hincrby", chunk_rows=3)
    run.open(0, atomicity="batch")
    for partition in range(3):
        assert run.stage(data, partition) == Applied()
    assert stored(client, prefix) == {}
    assert len(staged_keys(client, prefix)) == 4
    assert {client.ttl(key) for key in client.scan_iter(f"{prefix}_ledger:*")} == {-1}
    run.publish()
    assert stored(client, prefix) == totals(data, 3)
    assert staged_keys(client, prefix) == []
    run.publish()  # its answer was lost: recognised
    assert stored(client, prefix) == totals(data, 3)
    run.whole_batch(1)
    run.whole_batch(2, data)
    assert stored(client, prefix) == totals(data, 4)
    assert client.hlen(LedgerKeys.of(f"{prefix}_ledger", run.writer_id).history) == 3


def test_exactly_what_came_back_is_published(new_run: NewRun, client: Any, prefix: str) -> None:
    """Each task is tried three times; two tries are deleted after the publication."""
    data, run = counters(), new_run("{k}", "hincrby")
    run.open(0, atomicity="batch")
    for _ in range(3):
        run.stage(data)
    run.publish()
    assert stored(client, prefix) == totals(data)
    assert len(staged_keys(client, prefix)) == 3
    run.sink.clear_staged(run.writer_id)
    assert staged_keys(client, prefix) == []


def sees_half(client: Any, keys: list[str], write: Callable[[], None]) -> tuple[bool, int]:
    """Whether a reader that polls all keys while ``write`` runs sees two values, and how many
    values it sees."""
    seen: set[frozenset[Any]] = set()
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            seen.add(frozenset(client.eval(READER, len(keys), *keys)))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        write()
    finally:
        done.set()
        reader.join()
    return any(len(values) > 1 for values in seen), len(seen)


def test_a_reader_never_sees_half_a_batch(new_run: NewRun, client: Any, prefix: str) -> None:
    """All counters are equal in every view of them, over 25 batches; partitions show halves."""
    data = {"k": list(range(60)), "n": [1] * 60}
    halves = {}
    for name in ("batch", "partition"):
        run = new_run(name + ":{k}", "incrby", value="n", chunk_rows=7)
        keys = [f"{prefix}:{name}:{k}" for k in range(60)]
        client.mset(dict.fromkeys(keys, 0))
        write = run.whole_batch if name == "batch" else run.batch

        def batches(write: Callable[..., Any] = write) -> None:
            for batch in range(25):
                write(batch, data, data)

        halves[name], views = sees_half(client, keys, batches)
        assert views > 5
        assert {int(value) for value in client.mget(keys)} == {50}
    assert halves == {"batch": False, "partition": True}


@pytest.mark.parametrize("late", ["before", "after"])
def test_e8_a_zombie_stages_publishes_and_clears_nothing(
    new_run: NewRun, client: Any, prefix: str, late: str
) -> None:
    """E8: A is stopped when all is staged, and goes on before or after its successor published."""
    data = counters()
    a, b = (new_run("{k}", "hincrby", run_id=name) for name in "AB")
    a.open(0, atomicity="batch")
    assert a.stage(data) == Applied()
    b.open(0, atomicity="batch")
    b.sink.clear_staged(b.writer_id)
    assert staged_keys(client, prefix) == []
    b.stage(data, 0)
    b.stage(data, 1)
    if late == "after":
        b.publish()
    assert error_of(a.stage(data, 1)) == "FencedError"
    a.sink.clear_staged(a.writer_id)
    with pytest.raises(FencedError, match="not published"):
        a.publish()
    if late == "before":
        b.publish()
    assert stored(client, prefix) == totals(data, 2)
    assert staged_keys(client, prefix) == []


@pytest.mark.parametrize("kind", [RedisSink, TokenlessPublishingSink])
def test_the_token_is_compared_in_the_step_that_publishes(
    new_run: NewRun, client: Any, prefix: str, kind: type[RedisSink]
) -> None:
    """B takes over and publishes between A's decision and A's script. Without the comparison, the
    batch would be there twice."""
    data = counters()
    a, b = (new_run("{k}", "hincrby", run_id=name) for name in "AB")
    a.sink = kind(a.sink.target)
    a.open(0, atomicity="batch")
    a.stage(data)
    mine = list(a.staged.values())
    decided: list[Close] = []

    def decide(view: Any) -> Any:
        from spark_eoc.sinks.ledger import decide_publish  # noqa: PLC0415

        decision = decide_publish(view, mine, a.call, 1)
        if not decided:
            b.open(0, atomicity="batch")
            b.stage(data)
            b.publish()
        decided.append(decision)
        return decision

    if kind is RedisSink:
        with pytest.raises(FencedError):
            a.sink.publish(a.writer_id, 0, mine, decide)
        assert stored(client, prefix) == totals(data)
    else:
        a.sink.publish(a.writer_id, 0, mine, decide)
        assert stored(client, prefix) == totals(data, 2), "the broken variant doubles"


@pytest.mark.parametrize("window_rows", [17, 200_000])
@pytest.mark.parametrize("point", ["redis.before_stage", "redis.after_stage"])
def test_e7_a_failure_at_every_chunk(  # noqa: PLR0917
    new_run: NewRun,
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    window_rows: int,
) -> None:
    """E7: a task dies around its k-th chunk, for every k; the next run stages anew: once."""
    monkeypatch.setattr(window, "WINDOW_ROWS", window_rows)
    data = counters()
    for batch in range(5 if point == "redis.before_stage" else 1):
        run = new_run("{k}", "hincrby", f"run-{batch}", chunk_rows=2)
        monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
        run.open(batch, atomicity="batch")
        monkeypatch.setenv("SPARK_EOC_FAILPOINT", f"{point}:{batch + 1}=raise")
        with pytest.raises(FailpointError):
            run.stage(data)
        monkeypatch.delenv("SPARK_EOC_FAILPOINT")
        assert run.whole_batch(batch, data) == [Applied()]
        assert stored(client, prefix) == totals(data, batch + 1)
        assert staged_keys(client, prefix) == []


def test_r1_answers_lost_on_the_way(
    redis_server: Any, proxy_to: Callable[[int], Any], prefix: str, eoc_seed: int
) -> None:
    """R1: the link is cut after any number of bytes while it stages, and while it publishes."""
    data, source = counters(400, 130), random.Random(eoc_seed)
    proxy = proxy_to(redis_server.port)
    url = f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.3"
    sink = redis_sink(url, prefix + ":{k}", "hincrby", chunk_rows=50, ledger=f"{prefix}_ledger")
    run = Run(sink, prefix)
    for batch in range(12):
        cut_at = source.choice(["stage", "publish"])
        rule = source.choice(
            [
                Rules(cut_to_server=source.randrange(20, 9000)),
                Rules(cut_to_client=source.randrange(0, 60)),
            ]
        )
        run.open(batch, atomicity="batch")
        if cut_at == "stage":
            proxy.set(rule, times=1 + batch % 3)
        assert run.stage(data) == Applied(), eoc_seed
        proxy.set(rule, times=1 + batch % 3) if cut_at == "publish" else proxy.set(None)
        run.publish()
        proxy.set(None)
        assert stored(redis_server.client(), prefix) == totals(data, batch + 1), eoc_seed


def test_a_lost_answer_to_the_publication_is_recognised(
    new_run: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script has run, and the connection breaks before its answer: not again."""
    real, lost = Publication._run, []

    def losing(*arguments: Any) -> Any:
        answer = real(*arguments)
        if not lost:
            lost.append(answer)
            raise RedisConnectionError("Connection closed by server.")
        return answer

    monkeypatch.setattr(Publication, "_run", losing)
    new_run("{k}", "hincrby").whole_batch(0, counters(), counters())
    assert lost == [[b"OK"]]
    assert stored(client, prefix) == totals(counters(), 2)


@pytest.mark.parametrize("kind", [RedisSink, EagerSink])
def test_r2_a_key_of_the_wrong_type_stops_the_whole_batch(
    new_run: NewRun, client: Any, prefix: str, kind: type[RedisSink]
) -> None:
    """R2: found in the last partition; no key of the batch appears. Writing at once is caught."""
    client.set(f"{prefix}:10", "text")
    run = new_run("{k}", "hincrby", chunk_rows=2)
    run.sink = kind(run.sink.target)
    rows = [{"k": [3 * p, 3 * p + 1], "n": [1, 1]} for p in range(4)]
    with pytest.raises(BadRowError, match=f"{prefix}:10'.* partition 3.*another type") as caught:
        run.whole_batch(0, *rows)
    assert "nothing of this batch" in str(caught.value)
    client.delete(f"{prefix}:10")
    if kind is EagerSink:
        assert stored(client, prefix), "the broken variant writes"
        return
    assert stored(client, prefix) == {}
    assert run.whole_batch(0, *rows) == [Applied()] * 4
    assert len(stored(client, prefix)) == 8


def test_a_row_that_can_never_be_written_is_refused_by_its_task(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """NULL, a key of the ledger's, and a sum that leaves its range: nothing stays staged."""
    run = new_run("{k}", "hincrby")
    run.open(0, atomicity="batch")
    big = 2**62 - 1
    for data in (
        {"k": ["a"], "n": [None]},
        {"k": [None], "n": [1]},
        {"k": ["a"] * 2, "n": [big] * 2},
    ):
        assert error_of(run.stage(data)) == "BadRowError"
    target = replace(run.sink.target, command=Command("del", KeyTemplate.parse("{k}")))
    run.sink = RedisSink(target)
    assert error_of(run.stage({"k": [f"{prefix}_ledger:1"]})) == "BadRowError"
    assert staged_keys(client, prefix) == []


def test_r3_out_of_memory_fails_whole_and_goes_on(own_redis: Any) -> None:
    """R3: maxmemory while it stages, and while it publishes: nothing of the batch is in."""
    client = own_redis.client()
    sink = redis_sink(own_redis.url(), "c:{k}", "hset", chunk_rows=500, budget_s=0.3)
    run = Run(sink, "w")
    data = {"k": list(range(3000)), "v": ["x" * 500] * 3000}
    run.open(0, atomicity="batch")
    client.config_set("maxmemory", client.info("memory")["used_memory"] + 700_000)
    refused = run.stage(data)
    assert error_of(refused) == "SinkUnavailableError"
    assert isinstance(refused, Refused)
    assert refused.applied == "nothing of this batch"
    assert "maxmemory" in (refused.next_step or "")
    assert list(client.scan_iter("*:staging*")) == []
    client.config_set("maxmemory", 0)
    assert run.stage(data) == Applied()
    client.config_set("maxmemory", 1)
    with pytest.raises(SinkUnavailableError, match="maxmemory"):
        run.publish()
    assert list(client.scan_iter("c:*", count=1000)) == []
    client.config_set("maxmemory", 0)
    run.publish()
    assert len(list(client.scan_iter("c:*", count=1000))) == 3000


def test_r5_scripts_are_forgotten_and_the_server_restarts(own_redis: Any) -> None:
    """R5: SCRIPT FLUSH and a restart between staging and publishing: exact counters."""
    run = Run(redis_sink(own_redis.url(), "c:{k}", "hincrby", chunk_rows=3), "w")
    for batch in range(2):
        run.open(batch, atomicity="batch")
        assert run.stage(counters()) == Applied()
        own_redis.client().script_flush()
        own_redis.kill()
        own_redis.restart()
        assert run.stage(counters(), 1) == Applied()
        own_redis.client().script_flush()
        run.publish()
    assert stored(own_redis.client(), "c") == totals(counters(), 4)


@pytest.mark.parametrize("kind", [RedisSink, UncountedSink])
@pytest.mark.parametrize("what", ["chunk", "entry", "all", "another"])
def test_staged_rows_that_are_gone_are_not_published(
    new_run: NewRun, client: Any, prefix: str, what: str, kind: type[RedisSink]
) -> None:
    """Lost by the server or deleted by a hand: counted in the script, and nothing is written."""
    run = new_run("{k}", "hincrby", chunk_rows=3)
    run.sink = kind(run.sink.target)
    run.open(0, atomicity="batch")
    run.stage(counters(), 0)
    run.stage(counters(), 1)
    keys = LedgerKeys.of(f"{prefix}_ledger", run.writer_id)
    name = keys.staged(run.staged[1].staging_id)
    if what == "another":
        client.hset(name, "entry", client.hget(name, "entry").replace(b"40:", b"39:"))
    else:
        client.delete(name) if what == "all" else client.hdel(
            name, "2" if what == "chunk" else what
        )
    if kind is UncountedSink and what == "chunk":
        run.publish()
        assert stored(client, prefix) not in ({}, totals(counters(), 2)), "a part is lost"
        return
    with pytest.raises(ReplayMismatchError, match="partition 1 had 40 rows"):
        run.publish()
    assert stored(client, prefix) == {}
    assert run.whole_batch(0, counters(), counters()) == [Applied(), Applied()]
    assert stored(client, prefix) == totals(counters(), 2)


def test_an_error_after_the_first_write_is_never_repeated(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """HalfAppliedError now, for a repeat, and at every open; what the message says mends it."""
    run = new_run("{k}", "hincrby")
    good, run.sink = run.sink, HalfwaySink(run.sink.target)
    run.open(0, atomicity="batch")
    run.stage(counters())
    with pytest.raises(HalfAppliedError, match="boom"):
        run.publish()
    run.sink = good
    before = stored(client, prefix)
    assert before
    with pytest.raises(HalfAppliedError):
        run.publish()
    with pytest.raises(HalfAppliedError, match="delete field -1"):
        run.open(0)
    assert stored(client, prefix) == before
    client.delete(*client.keys(f"{prefix}:*"))
    client.hdel(LedgerKeys.of(f"{prefix}_ledger", run.writer_id).units, "-1")
    run.whole_batch(0, counters())
    assert stored(client, prefix) == totals(counters())
    assert staged_keys(client, prefix) == []


@contextmanager
def limits(values: int, size_bytes: int = 2**40) -> Iterator[None]:
    """Batches of a test's size are too large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged, "MOST_VALUES", values)
        patch.setattr(staged, "MOST_BYTES", size_bytes)
        yield


def test_a_batch_that_is_too_large_is_refused_before_anything_is_published(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """By a task for its partition, by the driver for all; by partitions it can be completed."""
    data = {"k": list(range(100)), "n": [1] * 100}
    run = new_run("{k}", "hincrby", chunk_rows=10)
    run.open(0, atomicity="batch")
    for too_small in ((199, 2**40), (2**40, 1500)):
        with limits(*too_small):
            refused = run.stage(data)
        assert error_of(refused) == "BatchTooLargeError"
        assert 'atomicity="partition"' in str(refused)
    assert staged_keys(client, prefix) == []
    with limits(399):
        run.stage(data, 0)
        run.stage(data, 1)
        with pytest.raises(BatchTooLargeError, match=r"400 keys and values of 399.*maxRowsPerTrig"):
            run.publish()
    assert stored(client, prefix) == {}
    with limits(400):
        run.publish()
    assert set(stored(client, prefix).values()) == {b"2"}


@pytest.mark.parametrize("values", [25, 60])
def test_what_was_too_large_does_not_stay_staged(
    redis_server: Any, client: Any, prefix: str, values: int
) -> None:
    """One partition or all of them too large: deleted, since the batch may be completed by
    partitions, where nothing looks for staged rows."""
    rows = [[{"k": 9 * p + i, "n": 1} for i in range(n)] for p, n in enumerate((10, 10, 20))]
    frame: Any = LocalFrame(rows, pa.schema([("k", pa.int64()), ("n", pa.int64())]))
    told = {"key": prefix + ":{k}", "command": "hincrby", "ledger": f"{prefix}_ledger"}

    def call(run: str, atomicity: str) -> None:
        writer = RedisWriter(redis_server.url(), atomicity=atomicity, **told)
        local_run(writer, "query", run)(frame, 0)

    with limits(values), pytest.raises(BatchTooLargeError):
        call("first", "batch")
    assert stored(client, prefix) == {}
    assert staged_keys(client, prefix) == []
    call("second", "partition")
    assert sum(map(int, stored(client, prefix).values())) == 40


def test_a_cluster_is_refused(own_server: Callable[..., Any]) -> None:
    """By name, once a run, before anything is staged."""
    cluster = own_server("redis", ["--cluster-enabled", "yes"])
    with pytest.raises(ConfigError, match=r"Cluster.*one script"):
        redis_sink(cluster.url(), "{k}", "hset").check_batch()


def test_a_user_without_a_right(own_redis: Any) -> None:
    """Commands are probed once a run; keys of others are found when they are staged, whatever the
    command reads of them before it writes."""
    client = own_redis.client()
    client.execute_command("ACL SETUSER app on >secretword ~spark_eoc* ~{spark_eoc* ~mine:* +@all")
    url = own_redis.url().replace("redis://", "redis://app:secretword@")
    run = Run(redis_sink(url, "{k}", "del", budget_s=0.1), "w")
    run.sink.check_batch()
    client.mset({"mine:1": 1, "theirs:1": 1})
    run.open(0, atomicity="batch")
    refused = run.stage({"k": ["mine:1", "theirs:1"]})
    assert error_of(refused) == "SinkUnavailableError"
    assert "key" in str(refused)
    assert client.exists("mine:1", "theirs:1") == 2
    run.whole_batch(0, {"k": ["mine:1"]})
    assert client.exists("mine:1", "theirs:1") == 1
    client.execute_command("ACL SETUSER app -sadd")
    with pytest.raises(ConfigError, match=r'SADD, which atomicity="batch" needs'):
        run.sink.check_batch()


def test_left_overs_of_dead_runs_are_found_without_a_scan(
    new_run: NewRun, client: Any, prefix: str
) -> None:
    """Dead before the open of the next run and during its tasks; the set of them goes too."""
    for number in range(3):
        dead = new_run("{k}", "hincrby", run_id=f"dead-{number}")
        dead.open(0, atomicity="batch")
        for partition in range(30):
            dead.stage({"k": [1], "n": [1]}, partition)
    assert len(staged_keys(client, prefix)) == 91
    alive = new_run("{k}", "hincrby", run_id="alive")
    alive.open(0, atomicity="batch")
    alive.stage(counters())
    alive.sink.clear_staged(alive.writer_id)
    assert len(staged_keys(client, prefix)) == 2
    alive.publish()
    assert staged_keys(client, prefix) == []
    assert stored(client, prefix) == totals(counters())


@pytest.mark.parametrize("name", ["redis6", "redis8", "valkey"])
def test_whole_batches_on_other_servers(name: str, own_server: Callable[..., Any]) -> None:
    """Redis 6.2 and 8.2, and Valkey: stage, publish, a lost repeat, a bad row, no memory."""
    server = own_server(name)
    client = server.client()
    run = Run(redis_sink(server.url(), "c:{k}", "hincrby", chunk_rows=3, budget_s=0.1), "w")
    run.sink.check_batch()
    for batch in range(3):
        assert run.whole_batch(batch, counters(), counters()) == [Applied(), Applied()]
        run.publish()
    assert stored(client, "c") == totals(counters(), 6)
    client.rename("c:10", "kept")
    client.set("c:10", "stranger")
    with pytest.raises(BadRowError):
        run.whole_batch(3, counters())
    client.rename("kept", "c:10")
    run.open(3, atomicity="batch")
    run.stage(counters())
    client.config_set("maxmemory", 1)
    with pytest.raises(SinkUnavailableError, match="maxmemory"):
        run.publish()
    assert stored(client, "c") == totals(counters(), 6)
    client.config_set("maxmemory", 0)
    run.publish()
    assert stored(client, "c") == totals(counters(), 7)
