"""Fixtures of the Redis sink's tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.sinks.redis.driving import Run, redis_sink


@pytest.fixture
def new_run(redis_server: Any, prefix: str) -> Callable[..., Run]:
    """``new_run(key, command, ...)``: keys begin with the test's prefix, ledgers too."""

    def build(key: str, command: str, run_id: str = "run-1", **more: Any) -> Run:
        url = more.pop("url", None) or redis_server.url()
        more.setdefault("ledger", f"{prefix}_ledger")
        return Run(redis_sink(url, f"{prefix}:{key}", command, **more), f"{prefix}:{key}", run_id)

    return build


@pytest.fixture
def client(redis_server: Any) -> Any:
    return redis_server.client()


@pytest.fixture
def later() -> Iterator[Callable[..., threading.Timer]]:
    """``later(seconds, do)`` runs ``do`` on a thread of its own; the test ends after it."""
    timers: list[threading.Timer] = []

    def schedule(seconds: float, do: Callable[[], Any]) -> threading.Timer:
        timers.append(threading.Timer(seconds, do))
        timers[-1].start()
        return timers[-1]

    yield schedule
    for timer in timers:
        timer.join()
