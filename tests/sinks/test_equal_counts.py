"""Equal counts, other rows: a task fails once behind plans that move rows between partitions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from spark_eoc.testing.plugin import Database
from spark_eoc.testing.servers import Redis

SCRIPT = Path(__file__).with_name("equal_counts.py")
ROOT = Path(__file__).parents[2]
PLANS = ("round_robin", "random_order", "random_key", "random_rows")


def counted(client: Any, start: str) -> list[int]:
    """Each id as often as it was counted."""
    keys = [key.decode() for key in client.scan_iter(f"{start}*", count=1000)]
    return [
        int(key.removeprefix(start))
        for key, times in zip(keys, client.mget(keys), strict=True)
        for _ in range(int(times))
    ]


def test_e4_a_task_that_fails_once_is_right_or_refused(
    mariadb: Database, redis_server: Redis, prefix: str, tmp_path: Path
) -> None:
    """E4: ``repartition(8)``, ``orderBy(rand())``, a random key, and rows that are new at every
    try; the failed task had applied its unit. Multisets are compared, in both sinks."""
    for plan in PLANS:
        mariadb.query(f"CREATE TABLE {plan} (id BIGINT, name TEXT, one INT)")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), mariadb.url(), redis_server.url(), prefix, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
        check=True,
    )
    client: Any = redis_server.client()
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["sink"], one["plan"]) for one in found] == [
        (sink, plan) for sink in ("mysql", "redis") for plan in PLANS
    ]
    for one in found:
        plan = one["plan"]
        assert one["fired"], f"no task failed: {one}"
        rows = (
            [row[0] for row in mariadb.query(f"SELECT id FROM {plan}")]
            if one["sink"] == "mysql"
            else counted(client, f"{prefix}:{plan}:")
        )
        if plan == "random_rows":
            assert one["outcome"] == "ReplayMismatchError", one
            assert max(Counter(rows).values()) == 1, "refused, and nothing is twice"
        else:
            assert one["outcome"] == "complete", one
            assert Counter(rows) == Counter(range(2000)), one
