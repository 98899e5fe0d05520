"""Fixtures of the Redis Cluster sink's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_eoc.testing.redis_cluster import RedisCluster
from tests.sinks.redis.driving import Run, redis_sink


@pytest.fixture
def new_run(redis_cluster: RedisCluster, prefix: str) -> Callable[..., Run]:
    """``new_run(key, command, ...)``: keys begin with the test's prefix, ledgers too."""

    def build(key: str, command: str, run_id: str = "run-1", **more: Any) -> Run:
        url = more.pop("url", None) or redis_cluster.url()
        more.setdefault("ledger", f"{prefix}_ledger")
        return Run(redis_sink(url, f"{prefix}:{key}", command, **more), f"{prefix}:{key}", run_id)

    return build
