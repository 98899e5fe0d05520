"""RedisSink keeps the contract of every sink, in chunks; sinks without one of its rules don't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError

from spark_eoc.sinks.redis import apply, publish, stage, store
from spark_eoc.sinks.redis.address import RedisAddress
from spark_eoc.sinks.redis.server import Script
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.contract.hooks import SinkHooks
from spark_eoc.testing.lines import Killer
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.sink_contract import SinkContract
from tests.sinks.redis import broken
from tests.sinks.redis.driving import redis_sink

KILLED = "test_killed_at_every_line_of_a_unit"


class RedisHooks(SinkHooks):
    """A list for each id, so that every write counts; three rows a script."""

    secret = "s3cr3t-Pa55w0rd"

    @pytest.fixture(autouse=True)
    def _keys(self, redis_server: Any, prefix: str) -> Iterator[None]:
        self.client, self.prefix = redis_server.client(), prefix
        self.client.execute_command(
            "ACL", "SETUSER", prefix, "on", f">{self.secret}", "~*", "+@all"
        )
        self.url = redis_server.url().replace("//", f"//{prefix}:{self.secret}@")
        yield
        self.client.execute_command("ACL", "DELUSER", prefix)

    def make_sink(self) -> Sink:
        key, ledger = f"{self.prefix}:{{id}}", f"{self.prefix}_ledger"
        return redis_sink(self.url, key, "rpush", value="v", chunk_rows=3, ledger=ledger)

    def rows_in_sink(self) -> list[int]:
        keys = list(self.client.scan_iter(f"{self.prefix}:*", count=1000))
        with self.client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.llen(key)
            lengths = pipe.execute()
        ids = (int(key.decode().rpartition(":")[2]) for key in keys)
        return [number for number, n in zip(ids, lengths, strict=True) for _ in range(n)]

    def history_entries(self) -> int:
        (key,) = self.client.scan_iter(f"{self.prefix}_ledger:*:history")
        return int(self.client.hlen(key))

    def sink_files(self) -> list[str]:
        return [str(module.__file__) for module in (store, apply, stage, publish)]

    def cut_off(self, sink: Sink) -> Sink:
        assert isinstance(sink, RedisSink)
        gone = RedisAddress.parse(f"redis://u:{self.secret}@127.0.0.1:{free_port()}/0")
        return replace(sink, target=replace(sink.target, address=gone, budget_s=0.5))

    @contextmanager
    def lost_answer(self) -> Iterator[None]:
        """The script has run, and the connection breaks before its answer."""
        lost: list[str] = []

        def losing(real: Any) -> Any:
            def call(*arguments: Any) -> Any:
                answer = real(*arguments)
                if not lost:
                    lost.append("answer")
                    raise RedisConnectionError("Connection closed by server.")
                return answer

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Script, "run", losing(Script.run))
            patch.setattr(redis.Redis, "eval", losing(redis.Redis.eval))
            yield
        assert lost


class TestRedis(RedisHooks, SinkContract):
    """Rows and ledger in one script a chunk."""


class TestBrokenSinks(RedisHooks):
    """The contract can fail: a sink without one of its rules is caught, by name."""

    def make_sink(self) -> Sink:
        sink = super().make_sink()
        assert isinstance(sink, RedisSink)
        return self.kind(sink.target)

    def sink_files(self) -> list[str]:
        return [*super().sink_files(), str(broken.__file__)]

    @pytest.mark.parametrize(
        ("kind", "test", "how"),
        [
            (
                broken.LedgerApartSink,
                KILLED,
                "in the ledger and in the sink",
            ),
            (broken.PositionalSink, KILLED, "ReplayMismatchError"),
            (broken.TokenlessSink, "test_a_straggler_of_the_same_run_is_fenced", "Applied"),
        ],
    )
    def test_a_broken_sink_is_caught(
        self, killer: Killer, kind: type[RedisSink], test: str, how: str
    ) -> None:
        """Red without the rule."""
        self.kind = kind
        promise = getattr(SinkContract, test)
        with pytest.raises(AssertionError, match=how):
            promise(self, killer) if "killer" in signature(promise).parameters else promise(self)
