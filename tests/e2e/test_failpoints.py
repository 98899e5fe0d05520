"""Each failpoint, once for each sink, on real Spark: exactly once."""

from __future__ import annotations

from pathlib import Path

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


def check(campaign: Campaign, sink: str) -> None:
    results = campaign.run()
    assert [result.name for result in results] == names_for(sink)
    assert all(result.passed for result in results), "\n".join(map(str, results))
