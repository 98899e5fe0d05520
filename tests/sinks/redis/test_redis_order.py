"""A unit that is applied in part goes on, whether its rows fit into memory or not."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from spark_eoc.failpoints import ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import Applied
from tests.sinks.redis.driving import Run, rows_of

COUNT = 400
Limits = Callable[[bool], None]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """``limits(True)``: partitions are sorted by way of files."""

    def choose(files: bool) -> None:
        monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", 1000 if files else 1 << 25)
        monkeypatch.setattr("spark_eoc.sinks.order.PIECE_BYTES", 1500)
        monkeypatch.setattr("spark_eoc.sinks.order._LEAST_BYTES", 1)

    return choose


@pytest.mark.parametrize("aside", [False, True])
@pytest.mark.parametrize("files_first", [False, True])
@pytest.mark.parametrize("command", ["rpush", "incrby"])
def test_a_unit_goes_on_when_the_limit_of_memory_changes(
    new_run: Callable[..., Run],
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
    *,
    eoc_random: random.Random,
    command: str,
    files_first: bool,
    aside: bool,
) -> None:
    """Red if the order of the files were another: the prefix would not be that of the entry."""
    rows = rows_of(
        {
            "k": [eoc_random.randrange(60) for _ in range(COUNT)],
            "n": [None if aside and n % 100 == 7 else n for n in range(COUNT)],
        }
    )
    more: dict[str, Any] = {"value": "n", "chunk_rows": 7}
    if aside:
        more["dead_letter_limit"] = 10
    for run_id in ("run-1", "run-2", "run-3"):
        limits(files_first == (run_id != "run-2"))
        run = new_run("{k}", command, run_id, **more)
        run.open(0)
        if run_id == "run-3":
            break
        monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
        monkeypatch.setenv(ENVIRONMENT, "redis.after_chunk:2=raise")
        with pytest.raises(FailpointError):
            run.apply(rows)
        monkeypatch.delenv(ENVIRONMENT)
    assert run.apply(rows) == Applied(4 if aside else 0)
    run.close()
    expected: dict[int, list[int]] = defaultdict(list)
    for key, number in zip(*rows.table.to_pydict().values(), strict=True):
        expected[key] += [] if number is None else [number]
    for key, numbers in expected.items():
        name = f"{prefix}:{key}"
        if command == "rpush":
            assert list(map(int, client.lrange(name, 0, -1))) == numbers
        else:
            assert int(client.get(name) or 0) == sum(numbers)
