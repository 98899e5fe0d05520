"""One batch into MariaDB and Redis: computed once, and a failure of one never doubles the other."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eoc import MySQLWriter, RedisWriter, fan_out
from spark_eoc.errors import BadRowError, ConfigError, SinkUnavailableError
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.ports import free_port
from tests.sinks.calls import Query

ROWS = 40
#: Of every 20 rows, the one whose value is too large for the table, and is fine for Redis; and
#: the one whose value is NULL, which the table takes and HINCRBY doesn't.
BIG, NONE = 7, 11


class Died(BaseException):
    """As a kill of the driver: nothing catches it."""


@pytest.fixture
def table(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE t (k BIGINT, n TINYINT) ENGINE=InnoDB")
    return mariadb


@pytest.fixture
def sinks(table: Database, redis_server: Any, prefix: str) -> Callable[..., Any]:
    """``sinks(mysql={...}, redis={...})``: both writers in one, with more arguments for each."""

    def build(mysql: dict[str, Any] | None = None, redis: dict[str, Any] | None = None) -> Any:
        aside = {"on_bad_row": "dead_letter"}
        told = {"url": redis_server.url(), "ledger": f"{prefix}_ledger", **(redis or {})}
        return fan_out(
            MySQLWriter(table.url(), "t", **{**aside, **(mysql or {})}),
            RedisWriter(key=f"{prefix}:{{k}}", command="hincrby", **aside, **told),
        )

    return build


def batch(spark: SparkSession, number: int) -> DataFrame:
    """Rows with keys that no other batch has; two are bad for MySQL, two others for Redis."""
    start, place = number * ROWS, F.col("id") % 20
    value = F.when(place == BIG, 1000).when(place != NONE, 1)
    return spark.range(start, start + ROWS, 1, 3).select(F.col("id").alias("k"), value.alias("n"))


def in_both(table: Database, client: Any, prefix: str, batches: int) -> None:
    """Each row once in each sink: as a dead letter if it is bad there."""
    ids = range(batches * ROWS)
    big, none = ([i for i in ids if i % 20 == place] for place in (BIG, NONE))
    rows = Counter(row[0] for row in table.query("SELECT k FROM t"))
    assert rows == Counter(set(ids) - set(big))
    aside = table.query("SELECT row_json FROM spark_eoc_dead_letters")
    assert Counter(json.loads(row)["k"] for (row,) in aside) == Counter(big)
    found = {
        int(key.rpartition(b":")[2]): int(client.hget(key, "n"))
        for key in client.scan_iter(f"{prefix}:*", count=10_000)
    }
    assert found == {i: 1000 if i in big else 1 for i in ids if i not in none}
    entries = client.xrange(f"{prefix}_ledger:dead_letters")
    assert Counter(json.loads(e[b"row"])["k"] for _, e in entries) == Counter(none)


def test_the_driver_dies_within_and_between_the_sinks(  # noqa: PLR0917
    spark: SparkSession,
    sinks: Callable[..., Any],
    table: Database,
    redis_server: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run again, each sink has each row once. E5: every call computes once."""
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            computed.add(one.num_rows)
            yield one

    query, calls = Query(spark), 0
    # "batch.before_open" of the second sink lies between the two.
    points = [(f"batch.{step}", n) for step in ("before_close", "before_open") for n in (1, 2)]
    for number, (point, time) in enumerate(points):
        frame = batch(spark, number).mapInArrow(count, "k BIGINT, n INT")
        seen: list[str] = []

        def hit(name: str, point: str = point, time: int = time, seen: Any = seen) -> None:
            seen.append(name)
            if seen.count(point) == time and name == point:
                raise Died

        query.restart()
        with monkeypatch.context() as patch:
            patch.setattr("spark_eoc.sinks.writer.hit", hit)
            with pytest.raises(Died):
                query.call(sinks(), frame, number)
        query.restart()
        query.call(sinks(), frame, number)
        in_both(table, redis_server.client(), prefix, number + 1)
        # The first call may have died before anything was computed.
        calls += 1 if (point, time) == ("batch.before_open", 1) else 2
        assert computed.value == calls * ROWS, (point, time)


def test_a_sink_that_is_down_for_a_while(
    spark: SparkSession,
    sinks: Callable[..., Any],
    table: Database,
    redis_server: Any,
    prefix: str,
) -> None:
    """The other gets the batch, once, however often it is tried; then the first gets it."""
    query = Query(spark)
    query.call(sinks(), batch(spark, 0), 0)
    gone = {"url": f"redis://127.0.0.1:{free_port()}", "retry_minutes": 0.002}
    for _ in range(2):
        query.restart()
        with pytest.raises(SinkUnavailableError):
            query.call(sinks(redis=gone), batch(spark, 1), 1)
        assert len(table.query("SELECT k FROM t")) == 76
    query.restart()
    query.call(sinks(), batch(spark, 1), 1)
    query.call(sinks(), batch(spark, 2), 2)
    in_both(table, redis_server.client(), prefix, 3)


def test_a_bad_row_of_one_sink_does_not_double_the_other(
    spark: SparkSession,
    sinks: Callable[..., Any],
    table: Database,
    redis_server: Any,
    prefix: str,
) -> None:
    """One fails, the other has the batch; restarted with dead letters, both are complete."""
    query = Query(spark)
    for _ in range(2):
        query.restart()
        with pytest.raises(BadRowError, match="Out of range"):
            query.call(sinks(mysql={"on_bad_row": "fail"}), batch(spark, 0), 0)
    query.restart()
    query.call(sinks(), batch(spark, 0), 0)
    in_both(table, redis_server.client(), prefix, 1)


def test_a_frame_that_the_caller_keeps_stays_kept(
    spark: SparkSession, sinks: Callable[..., Any]
) -> None:
    """fan_out drops only what it has persisted itself."""
    query = Query(spark)
    own = batch(spark, 0).persist(StorageLevel.MEMORY_ONLY)
    query.call(sinks(), own, 0)
    assert own.storageLevel.useMemory
    own.unpersist()
    other = batch(spark, 1)
    query.call(sinks(), other, 1)
    assert not other.storageLevel.useMemory


def test_what_fan_out_takes(sinks: Callable[..., Any], table: Database) -> None:
    """Writers, each once; and it travels, as every function for foreachBatch on Connect."""
    writer = MySQLWriter(table.url(), "t")
    for wrong in ((), (writer, print), (writer, writer)):
        with pytest.raises(ConfigError, match="fan_out"):
            fan_out(*wrong)
    assert "RedisWriter" in repr(pickle.loads(pickle.dumps(sinks())))
