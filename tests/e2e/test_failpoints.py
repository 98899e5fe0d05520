"""Each failpoint, once for each sink, on real Spark: exactly once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.failpoints import FAILPOINTS
from spark_eoc.testing.failpoints import Campaign, names_for
from spark_eoc.testing.rig import MYSQL, REDIS
from spark_eoc.testing.servers import MariaDB, Redis


def test_no_failpoint_is_left_out():
    """Both sinks together reach every name of the registry; shared ones are reached by both."""
    reached = set()
    for atomicity in ("partition", "batch"):
        mysql, redis = (set(names_for(sink, atomicity)) for sink in (MYSQL, REDIS))
        reached |= mysql | redis
        assert mysql & redis == {n for n in mysql | redis if n[:6] not in ("mysql.", "redis.")}
    assert reached == set(FAILPOINTS)


@pytest.mark.timeout(900)
def test_mysql_is_exactly_once_after_a_kill_at_each_failpoint(
    tmp_path: Path, mariadb_server: MariaDB
):
    """The process that reaches the point is SIGKILLed there; the checker compares after each."""
    check(Campaign(tmp_path, mariadb=mariadb_server), MYSQL)


@pytest.mark.timeout(900)
def test_redis_is_exactly_once_after_a_kill_at_each_failpoint(tmp_path: Path, redis_server: Redis):
    """The same with counters, where nothing is idempotent."""
    check(Campaign(tmp_path, redis=redis_server), REDIS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mysql_is_exactly_once_and_whole_after_a_kill_at_each_failpoint(
    tmp_path: Path, mariadb_server: MariaDB
):
    """In batch atomicity, with a reader that looks all the time: of each batch it sees nothing or
    all."""
    names = [n for n in names_for(MYSQL, "batch") if n.startswith(("batch.", "mysql."))]
    seen: dict[int, set[int]] = {}
    stop = threading.Event()

    def look() -> None:
        with mariadb_server.connect() as connection, connection.cursor() as cursor:
            while not (tables := _tables(cursor)) and not stop.wait(0.5):
                pass
            while not stop.wait(0.02):
                for table in tables:
                    cursor.execute(f"SELECT batch_id, COUNT(*) FROM {table} GROUP BY batch_id")
                    for batch_id, rows in cursor.fetchall():
                        seen.setdefault(batch_id, set()).add(rows)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(look)
        try:
            campaign = Campaign(tmp_path, mariadb=mariadb_server, atomicity="batch")
            check(campaign, MYSQL, names)
        finally:
            stop.set()
        reader.result(30)
    assert len(seen) > len(names)
    assert [batch for batch, found in seen.items() if len(found) > 1] == []


def _tables(cursor: Any) -> list[str]:
    """Every table that a workload appends to."""
    cursor.execute(
        "SELECT CONCAT(table_schema, '.', table_name) FROM information_schema.columns "
        "WHERE column_name = 'part' AND table_name NOT LIKE '%\\_rows\\_%'"
    )
    return [name for (name,) in cursor.fetchall()]


def check(campaign: Campaign, sink: str, names: list[str] | None = None) -> None:
    results = campaign.run(names)
    assert [result.name for result in results] == (names or names_for(sink))
    assert all(result.passed for result in results), "\n".join(map(str, results))
