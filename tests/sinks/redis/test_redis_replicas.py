"""``wait_replicas``: no step is done before enough replicas have it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError, SinkUnavailableError
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.ledger import Compare
from spark_eoc.sinks.redis.replicas import Replicas
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.store import Column
from spark_eoc.testing.redis_replicas import RedisReplica
from tests.sinks.redis.driving import Run, counters, error_of, redis_sink, stored, totals

COLUMNS = [Column("k", "bigint"), Column("n", "bigint")]


@pytest.fixture
def replica(own_redis: Any, tmp_path: Path) -> Iterator[RedisReplica]:
    with RedisReplica.of(own_redis, tmp_path / "replica") as server:
        yield server


@pytest.fixture
def new_waiting(own_redis: Any) -> Callable[..., Run]:
    """A run that waits for one replica, and gives up soon."""

    def build(run_id: str = "run-1") -> Run:
        return Run(waiting_sink(own_redis, budget_s=0.2), "w", run_id)

    return build


def waiting_sink(server: Any, budget_s: float) -> RedisSink:
    """It waits for one replica. What must succeed is given time: a replica that goes on again may
    be a second behind."""
    replicas = Replicas(1, 50)
    return redis_sink(server.url(), "c:{k}", "hincrby", replicas=replicas, budget_s=budget_s)


def test_no_step_is_done_before_a_replica_has_it(
    own_redis: Any, replica: RedisReplica, new_waiting: Callable[..., Run]
) -> None:
    """The replica is stopped before each step: refused, though written; when it goes on, the
    repeat finds everything there and waits for it again, and counters are exact."""
    data, run, patient = counters(), new_waiting(), waiting_sink(own_redis, budget_s=60)
    impatient = run.sink
    replica.stop_process()
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        run.sink.check(COLUMNS)
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        run.open(0)
    replica.continue_()
    run = new_waiting()
    run.sink = patient
    run.sink.check(COLUMNS)
    run.open(0)
    replica.stop_process()
    run.sink = impatient
    refused = run.apply(data)
    assert error_of(refused) == "SinkUnavailableError"
    assert "wait_replicas" in str(refused)
    assert stored(own_redis.client(), "c") == totals(data)
    assert error_of(run.apply(data)) == "SinkUnavailableError", "the skip path must wait as well"
    replica.continue_()
    run.sink = patient
    assert run.apply(data) == AlreadyApplied()
    assert stored(replica.client(), "c") == totals(data)
    replica.stop_process()
    run.sink = impatient
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        run.close()
    again = new_waiting("run-2")
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        again.open(0)
    replica.continue_()
    again.sink = patient
    assert isinstance(again.open(0), Compare)
    again.batch(1, data)
    assert stored(replica.client(), "c") == totals(data, 2)


def test_a_task_waits_while_its_replica_hangs(
    own_redis: Any, replica: RedisReplica, later: Callable[..., None]
) -> None:
    """Within the budget it is tried again: a short stop of the replica fails no batch."""
    run = Run(waiting_sink(own_redis, budget_s=60), "w")
    run.open(0)
    replica.stop_process()
    later(0.4, replica.continue_)
    assert run.apply(counters()) in (Applied(), AlreadyApplied())
    run.close()
    assert stored(replica.client(), "c") == totals(counters())


@pytest.mark.parametrize(
    "wait", [{"wait_replicas": -1}, {"wait_replicas": 1, "wait_timeout_ms": 0}]
)
def test_arguments_that_cannot_work(wait: dict[str, int]) -> None:
    """Refused when the writer is built; so is a WAIT longer than the socket's patience."""
    with pytest.raises(ConfigError, match=r"wait_\w+=" + str(next(reversed(wait.values())))):
        RedisWriter("redis://h", key="{k}", command="hset", **wait)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="socket"):
        RedisWriter(
            "redis://h?socket_timeout=0.5",
            key="{k}",
            command="hset",
            wait_replicas=1,
            wait_timeout_ms=500,
        )
