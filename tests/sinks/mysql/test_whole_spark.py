"""Batch atomicity through real Spark into a real MariaDB: plans that change, minds that change."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_eoc.errors import DeadLetterLimitError, ReplayMismatchError
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.wait import until
from tests.sinks.broken import LastPartitionFails
from tests.sinks.calls import Query
from tests.sinks.mysql.test_batches import counts, frame, once


@pytest.fixture
def table(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE t (id BIGINT, v VARCHAR(40)) ENGINE=InnoDB")
    return mariadb


Plan = Callable[[SparkSession], DataFrame]
#: Each restart has another number, by which a source splits its rows.
CORES = itertools.count(2)

#: Plans that hold other rows, or other partitions, each time they are made.
CHANGING: dict[str, Plan] = {
    "rand()": lambda spark: spark.range(0, 100, 1, 4).selectExpr("id", "cast(rand() AS STRING) v"),
    "uuid()": lambda spark: spark.range(0, 100, 1, 4).selectExpr("id", "uuid() v"),
    "round robin": lambda spark: frame(spark, 0, 100, next(CORES)).repartition(4),
}


def dies(query: Query, table: Database, batch: DataFrame, atomicity: str) -> None:
    """Writes all partitions but the last, and fails."""
    failing = MySQLWriter(table.url(), "t", atomicity=atomicity)
    failing._sink.__class__ = LastPartitionFails
    with pytest.raises(Exception, match="the last partition fails"):
        query.call(failing, batch, 0)
    # The job's other tasks may still be writing when it has failed.
    tracker = query.spark.sparkContext._jsc.sc().statusTracker()
    until(lambda: not any(e.numRunningTasks() for e in tracker.getExecutorInfos()), 60, "its tasks")
    query.restart()


@pytest.mark.parametrize("plan", CHANGING.values(), ids=CHANGING.keys())
def test_a_plan_that_changes_is_exactly_once_as_a_whole(
    table: Database, spark: SparkSession, plan: Plan
) -> None:
    """Run again after a failure, and after it was complete, the batch holds what one computation
    made; in partition atomicity the half that is there matches nothing, and it is refused."""
    query = Query(spark)
    dies(query, table, plan(spark), "batch")
    assert counts(table) == {}
    writer = MySQLWriter(table.url(), "t", atomicity="batch")
    query.call(writer, plan(spark), 0)
    assert counts(table) == once(0, 100)
    written = table.query("SELECT * FROM t ORDER BY id")
    query.restart()
    query.call(writer, plan(spark), 0)
    query.call(writer, frame(spark, 100, 150), 1)
    assert table.query("SELECT * FROM t ORDER BY id LIMIT 100") == written
    assert counts(table) == once(0, 150)
    assert table.query("SELECT COUNT(*) FROM spark_eoc_staged") == [(0,)]


@pytest.mark.parametrize("plan", CHANGING.values(), ids=CHANGING.keys())
def test_a_plan_that_changes_is_refused_by_partitions(
    table: Database, spark: SparkSession, plan: Plan
) -> None:
    """What is applied of it matches nothing of what it holds now: loudly, and nothing is added.
    So it is when the atomicity is changed in the middle."""
    query = Query(spark)
    dies(query, table, plan(spark), "partition")
    half = table.query("SELECT * FROM t ORDER BY id")
    assert 0 < len(half) < 100
    for atomicity in ("partition", "batch"):
        with pytest.raises(ReplayMismatchError, match="partly applied"):
            query.call(MySQLWriter(table.url(), "t", atomicity=atomicity), plan(spark), 0)
        query.restart()
    assert table.query("SELECT * FROM t ORDER BY id") == half


def test_atomicity_is_changed_in_the_middle_of_a_batch(
    table: Database, spark: SparkSession
) -> None:
    """Begun by partitions it is completed by partitions; begun whole it leaves nothing behind."""
    query = Query(spark)
    dies(query, table, frame(spark, 0, 100, 4), "partition")
    whole = MySQLWriter(table.url(), "t", atomicity="batch")
    query.call(whole, frame(spark, 0, 100, 4), 0)
    query.call(whole, frame(spark, 100, 150, 4), 1)
    assert counts(table) == once(0, 150)
    found = table.query("SELECT atomicity FROM spark_eoc_history ORDER BY batch_id")
    assert found == [("partition",), ("batch",)]


def test_upserts_as_a_whole(mariadb: Database, spark: SparkSession) -> None:
    """With hash partitioning, counters in several batches, and one of them run again."""
    mariadb.query("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)")
    how: dict[str, Any] = {"mode": "upsert", "key": ["id"], "merge": {"n": "add"}}
    how |= {"partitioning": "hash", "num_partitions": 3, "atomicity": "batch"}
    query, writer = Query(spark), MySQLWriter(mariadb.url(), "t", **how)
    for batch_id in (0, 1, 1, 2):
        if batch_id == 1:
            query.restart()
        query.call(writer, spark.range(0, 40, 1, 2).selectExpr("id % 10 id", "id n"), batch_id)
    assert mariadb.query("SELECT * FROM t ORDER BY id") == [
        (i, 3 * sum(range(i, 40, 10))) for i in range(10)
    ]


def test_dead_letters_of_a_whole_batch(table: Database, spark: SparkSession) -> None:
    """A run that dies in a task leaves none; a plan that changes leaves those of one computation,
    once, also when the complete batch is run again; above the limit there is nothing."""
    query = Query(spark)
    table.query("ALTER TABLE t MODIFY v VARCHAR(40) NOT NULL")
    wrong = "CASE id % 10 WHEN 3 THEN NULL WHEN 4 THEN repeat('x', 41) ELSE uuid() END v"
    batch = spark.range(0, 60, 1, 4).selectExpr("id", wrong)
    dies(query, table, batch, "batch")
    few: dict[str, Any] = {"atomicity": "batch", "on_bad_row": "dead_letter"}
    with pytest.raises(DeadLetterLimitError, match="dead_letter_limit=11"):
        query.call(MySQLWriter(table.url(), "t", dead_letter_limit=11, **few), batch, 0)
    assert counts(table) == {}
    for _ in range(2):
        query.restart()
        query.call(MySQLWriter(table.url(), "t", **few), batch, 0)
    assert counts(table) == Counter(i for i in range(60) if i % 10 not in (3, 4))
    letters = table.query("SELECT row_json FROM spark_eoc_dead_letters")
    assert Counter(json.loads(row)["id"] for (row,) in letters) == Counter(
        i for i in range(60) if i % 10 in (3, 4)
    )
