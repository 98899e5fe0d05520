"""A Redis sink driven by hand, without Spark: what the driver and the tasks do, step by step."""

from __future__ import annotations

import hashlib
import itertools
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import Applied, Call, Fingerprint, Outcome, Refused, Staged, Unit
from spark_eoc.sinks.ledger import Compare, Open, decide_close, decide_open, decide_publish
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.sinks import sink_for
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.redis.url import parse_url
from spark_eoc.sinks.rows import Rows


def rows_of(table: pa.Table | dict[str, Any]) -> Rows:
    """Rows with a hash of their content, as the JVM makes one."""
    if isinstance(table, dict):
        table = pa.table(table)
    digests = (hashlib.sha256(repr(row).encode()).digest() for row in table.to_pylist())
    hashes = [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]
    return Rows(table, pa.chunked_array([pa.array(hashes, pa.int64())]))


_TARGET = ("ledger", "chunk_rows", "budget_s", "dead_letter_key", "dead_letter_limit", "replicas")


def redis_sink(url: str, key: str, command: str, **more: Any) -> RedisSink:
    """A sink as RedisWriter builds it."""
    target = {name: more.pop(name) for name in _TARGET if name in more}
    if "fields" in more:
        more["fields"] = tuple(more["fields"])
    told = Command(command, KeyTemplate.parse(key), **more)
    return sink_for(Target(parse_url(url), told, **target))


class Run:
    """One run of a query on one sink; every ``open`` is a call of its own, with a new token."""

    _tokens = itertools.count()

    def __init__(self, sink: RedisSink, writer_id: str, run_id: str = "run-1") -> None:
        self.sink, self.writer_id, self.run_id = sink, writer_id, run_id
        self._first = True

    def open(self, batch_id: int, **more: Any) -> Open | Compare:
        """Opens a batch; what tasks need is kept."""
        call = Call(
            self.writer_id,
            more.pop("query_id", "query-1"),
            self.run_id,
            batch_id,
            f"token-{next(self._tokens)}",
            self._first,
        )
        self.call = replace(call, **more)
        decision = self.sink.open_batch(
            self.writer_id, batch_id, lambda view: decide_open(view, self.call)
        )
        if isinstance(decision, Open):
            self._first = False
            self.control = decision.control
            self.reported: dict[int, Fingerprint] = {}
            self.staged: dict[int, Staged] = {}
        return decision

    def apply(self, rows: Rows | dict[str, Any], partition: int = 0) -> Outcome:
        """What a task does with its partition."""
        rows = rows if isinstance(rows, Rows) else rows_of(rows)
        self.reported[partition] = rows.fingerprint()
        return self.sink.apply(self.unit(rows, partition), self.sink.arrange(rows))

    def unit(self, rows: Rows, partition: int) -> Unit:
        """The right of the newest call to write these rows."""
        return Unit(
            self.writer_id,
            partition,
            self.call.batch_id,
            self.control.epoch,
            self.control.token,
            rows.fingerprint(),
        )

    def close(self) -> None:
        """Completes the batch with what the tasks reported."""
        self.sink.close_batch(
            self.writer_id,
            self.call.batch_id,
            lambda view, units: decide_close(
                view, units, self.reported, self.call, len(self.reported)
            ),
        )

    def stage(self, rows: Rows | dict[str, Any], partition: int = 0) -> Outcome:
        """What a task does with its partition in batch atomicity; each try has its own id."""
        rows = rows if isinstance(rows, Rows) else rows_of(rows)
        unit, staging_id = self.unit(rows, partition), uuid.uuid4().hex
        outcome = self.sink.stage(unit, staging_id, self.sink.arrange(rows))
        if isinstance(outcome, Applied):
            self.staged[partition] = Staged(partition, staging_id, unit.fingerprint)
        return outcome

    def publish(self) -> None:
        """Publishes the newest try of each partition."""
        staged = list(self.staged.values())
        self.sink.publish(
            self.writer_id,
            self.call.batch_id,
            staged,
            lambda view: decide_publish(view, staged, self.call, len(staged)),
        )

    def whole_batch(self, batch_id: int, *partitions: Rows | dict[str, Any]) -> list[Outcome]:
        """A whole batch in batch atomicity, as the driver goes about it."""
        self.open(batch_id, atomicity="batch")
        self.sink.clear_staged(self.writer_id)
        outcomes = [self.stage(rows, number) for number, rows in enumerate(partitions)]
        self.publish()
        self.sink.clear_staged(self.writer_id)
        return outcomes

    def batch(self, batch_id: int, *partitions: Rows | dict[str, Any]) -> list[Outcome]:
        """A whole batch."""
        self.open(batch_id)
        outcomes = [self.apply(rows, number) for number, rows in enumerate(partitions)]
        self.close()
        return outcomes


def counters(rows: int = 40, keys: int = 11) -> dict[str, Any]:
    """A partition of counters; what is added is never the same twice."""
    return {"k": [i * 7 % keys for i in range(rows)], "n": [1 + 3 * i for i in range(rows)]}


def totals(data: dict[str, Any], times: int = 1) -> dict[bytes, bytes]:
    """What a Redis must hold after ``data`` was added ``times`` times."""
    sums: Counter[int] = Counter()
    for key, number in zip(data["k"], data["n"], strict=True):
        sums[key] += number * times
    return {b"%d" % key: b"%d" % number for key, number in sums.items()}


def stored(client: Any, prefix: str) -> dict[bytes, bytes]:
    """The counters in Redis, without the prefix."""
    start = f"{prefix}:".encode()
    return {key[len(start) :]: client.hget(key, "n") for key in client.scan_iter(f"{prefix}:*")}


def added(run: Run) -> dict[bytes, bytes]:
    """The counters that this run's sink adds to."""
    with run.sink.target.address.connect() as client:
        return stored(client, run.sink.target.command.key.prefix.rstrip(":"))


def content(client: Any, start: str) -> dict[bytes, Any]:
    """Every key with its value, whatever its type, and whether it has a TTL."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"list": lambda key: client.lrange(key, 0, -1),
        b"stream": lambda key: [fields for _, fields in client.xrange(key)],
    }
    return {
        key[len(start) :]: (readers[client.type(key)](key), round(client.ttl(key), -3))
        for key in client.scan_iter(f"{start}*")
    }


def error_of(outcome: Any) -> str:
    assert isinstance(outcome, Refused), outcome
    return outcome.error


def ledger_keys(client: Any, prefix: str) -> list[bytes]:
    return sorted(client.scan_iter(f"{prefix}_ledger:*"))


def fail_after_chunk(
    run: Run, rows: Rows, monkeypatch: pytest.MonkeyPatch, number: int = 1
) -> None:
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    monkeypatch.setenv("SPARK_EOC_FAILPOINT", f"redis.after_chunk:{number}=raise")
    with pytest.raises(FailpointError):
        run.apply(rows)
    monkeypatch.delenv("SPARK_EOC_FAILPOINT")
