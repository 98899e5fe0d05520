"""RedisClusterSink keeps the contract of every sink, over many slots and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from spark_eoc.sinks.redis import apply as unit_apply
from spark_eoc.sinks.redis.cluster import apply, flight, ledger
from spark_eoc.sinks.redis.cluster.sink import RedisClusterSink
from spark_eoc.sinks.redis.server import Script
from spark_eoc.sinks.redis.url import parse_url
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.lines import Killer
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.redis_cluster import RedisCluster
from spark_eoc.testing.sink_contract import SinkContract
from tests.sinks.redis.driving import redis_sink


class TestRedisCluster(SinkContract):
    """A list for each id, so that every write counts; one row a script."""

    secret = "s3cr3t-Pa55w0rd"
    offers_batches = False

    @pytest.fixture(autouse=True)
    def _keys(self, redis_cluster: RedisCluster, prefix: str) -> Iterator[None]:
        self.cluster, self.prefix = redis_cluster, prefix
        for node in redis_cluster.nodes:
            node.ask("ACL", "SETUSER", prefix, "on", f">{self.secret}", "~*", "+@all")
        self.url = redis_cluster.url().replace("//", f"//{prefix}:{self.secret}@")
        yield
        for node in redis_cluster.nodes:
            node.ask("ACL", "DELUSER", prefix)

    def make_sink(self) -> Sink:
        key, more = f"{self.prefix}:{{id}}", {"ledger": f"{self.prefix}_ledger", "chunk_rows": 1}
        return redis_sink(self.url, key, "rpush", value="v", **more)

    def rows_in_sink(self) -> list[int]:
        return [
            int(key.rpartition(b":")[2])
            for key, node in self.cluster.keys(f"{self.prefix}:*")
            for _ in range(node.ask("LLEN", key))
        ]

    def history_entries(self) -> int:
        ((key, node),) = self.cluster.keys(f"{self.prefix}_ledger:*:history")
        return int(node.ask("HLEN", key))

    def sink_files(self) -> list[str]:
        return [str(module.__file__) for module in (ledger, apply, flight, unit_apply)]

    def cut_off(self, sink: Sink) -> Sink:
        assert isinstance(sink, RedisClusterSink)
        gone = parse_url(f"redis+cluster://u:{self.secret}@127.0.0.1:{free_port()}")
        return replace(sink, target=replace(sink.target, address=gone, budget_s=0.5))

    @pytest.mark.slow
    def test_killed_at_every_line_of_a_unit(self, killer: Killer) -> None:
        super().test_killed_at_every_line_of_a_unit(killer)

    @pytest.mark.slow
    @pytest.mark.parametrize("step", ["open", "close"])
    def test_killed_at_every_line_of_a_step_of_the_driver(self, killer: Killer, step: str) -> None:
        super().test_killed_at_every_line_of_a_step_of_the_driver(killer, step)

    @pytest.mark.slow
    def test_what_a_new_owner_reads_is_all_there_will_be(self) -> None:
        super().test_what_a_new_owner_reads_is_all_there_will_be()

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
            patch.setattr(flight, "_receive", losing(flight._receive))
            patch.setattr(ledger, "run_script", losing(ledger.run_script))
            yield
        assert lost
