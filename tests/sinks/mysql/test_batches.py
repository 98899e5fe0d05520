"""Batches through real Spark into a real MariaDB: repeats, restarts, other splits, failures."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eoc import fan_out
from spark_eoc.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeadLetterLimitError,
    FencedError,
    ReplayMismatchError,
    SinkBehindError,
)
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.wait import until
from tests.sinks.broken import LastPartitionFails
from tests.sinks.calls import Query

pytestmark = pytest.mark.compat


@pytest.fixture
def table(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
    return mariadb


def frame(spark: SparkSession, start: int, end: int, partitions: int = 3) -> DataFrame:
    """Rows ``[start, end)``, the same in each partition whenever it is computed."""
    return spark.range(start, end, 1, partitions).select(
        "id", F.col("id").cast("string").alias("v")
    )


def counts(database: Database) -> Counter[int]:
    return Counter(row[0] for row in database.query("SELECT id FROM t"))


def once(start: int, end: int) -> Counter[int]:
    return Counter(range(start, end))


def test_a_batch_run_again_is_not_written_again(table: Database, spark: SparkSession) -> None:
    """Without a digest the newest batch is compared by its totals."""
    query, writer = Query(spark), MySQLWriter(table.url(), "t")
    query.call(writer, frame(spark, 0, 100), 0)
    query.restart()
    query.call(writer, frame(spark, 0, 100, 7), 0)
    assert counts(table) == once(0, 100)
    with pytest.raises(ReplayMismatchError):
        query.call(writer, frame(spark, 1, 101), 0)
    query.call(writer, frame(spark, 100, 150), 1)
    assert counts(table) == once(0, 150)


def test_a_second_call_for_one_batch_is_refused(table: Database, spark: SparkSession) -> None:
    """Two writes of one foreachBatch function need two writer_ids."""
    query, writer = Query(spark), MySQLWriter(table.url(), "t")
    query.call(writer, frame(spark, 0, 10), 0)
    with pytest.raises(ConfigError, match="its own writer_id"):
        query.call(MySQLWriter(table.url(), "t"), frame(spark, 10, 20), 0)
    query.call(MySQLWriter(table.url(), "t", writer_id="two"), frame(spark, 10, 20), 0)
    assert counts(table) == once(0, 20)


def test_an_empty_batch_leaves_its_history(table: Database, spark: SparkSession) -> None:
    """E9: a filter that removes every row; the next batch and a repeat go on."""
    query, writer = Query(spark), MySQLWriter(table.url(), "t")
    query.call(writer, frame(spark, 0, 10).filter("id < 0"), 0)
    query.restart()
    query.call(writer, frame(spark, 0, 10).filter("id < 0"), 0)
    query.call(writer, frame(spark, 0, 10).limit(0), 1)
    query.call(writer, frame(spark, 0, 10), 2)
    assert counts(table) == once(0, 10)
    assert [r[0] for r in table.query("SELECT batch_id FROM spark_eoc_history")] == [0, 1, 2]


def test_a_wiped_checkpoint_is_refused_and_can_be_adopted(
    table: Database, spark: SparkSession
) -> None:
    """E2: batch ids start again at 0 under a new query id."""
    Query(spark).call(MySQLWriter(table.url(), "t"), frame(spark, 0, 10), 0)
    wiped = Query(spark)
    with pytest.raises(CheckpointMismatchError, match="adopt"):
        wiped.call(MySQLWriter(table.url(), "t"), frame(spark, 10, 20), 0)
    adopting = MySQLWriter(table.url(), "t", on_new_checkpoint="adopt")
    wiped.call(adopting, frame(spark, 10, 20), 0)
    wiped.call(adopting, frame(spark, 20, 30), 1)
    assert counts(table) == once(0, 30)


def test_a_sink_that_was_set_back_is_refused(table: Database, spark: SparkSession) -> None:
    """A dump restored without its newest batches, or without any ledger."""
    query, writer = Query(spark), MySQLWriter(table.url(), "t")
    with pytest.raises(SinkBehindError, match="no ledger"):
        query.call(writer, frame(spark, 0, 10), 3)
    query.call(writer, frame(spark, 0, 10), 0)
    with pytest.raises(SinkBehindError, match="batch 0 as the newest"):
        query.call(writer, frame(spark, 0, 10), 2)


def test_the_older_of_two_runs_is_fenced(table: Database, spark: SparkSession) -> None:
    """E8: A works, B takes over, A's next call raises and writes nothing; B goes on."""
    a, b = Query(spark), Query(spark)
    b.query_id = a.query_id
    writer_a, writer_b = MySQLWriter(table.url(), "t"), MySQLWriter(table.url(), "t")
    a.call(writer_a, frame(spark, 0, 10), 0)
    b.call(writer_b, frame(spark, 10, 20), 1)
    with pytest.raises(FencedError, match=b.run_id):
        a.call(writer_a, frame(spark, 20, 30), 2)
    b.call(writer_b, frame(spark, 20, 30), 2)
    assert counts(table) == once(0, 30)


def reject(number: int) -> Any:
    """A frame's function that fails at row ``number`` of the batch, as a bad line would."""
    return F.when(F.col("id") == number, F.raise_error(F.lit("no"))).otherwise(F.col("v"))


def test_failing_after_k_rows_for_every_k(table: Database, spark: SparkSession) -> None:
    """E7: the batch fails after k rows, for every k, and is run again by a new run."""
    query = Query(spark)
    for k in range(8):
        batch = frame(spark, k * 8, k * 8 + 8, 3)
        with pytest.raises(Exception, match="no"):
            query.call(MySQLWriter(table.url(), "t"), batch.withColumn("v", reject(k * 9)), k)
        query.restart()
        query.call(MySQLWriter(table.url(), "t"), batch, k)
    assert counts(table) == once(0, 64)


def half_applied(table: Database, spark: SparkSession, query: Query, batch: DataFrame) -> None:
    """Writes some partitions of batch 0 and fails at the last row."""
    bad = batch.withColumn("v", reject(99))
    with pytest.raises(Exception, match="no"):
        query.call(MySQLWriter(table.url(), "t"), bad, 0)
    query.restart()
    # The job's other tasks may still be writing when it has failed.
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    until(lambda: not any(e.numRunningTasks() for e in tracker.getExecutorInfos()), 60, "its tasks")
    table.query("SELECT COUNT(*) FROM t LOCK IN SHARE MODE")
    assert 0 < sum(counts(table).values()) < 100


def test_the_rest_of_a_half_applied_batch_is_written(table: Database, spark: SparkSession) -> None:
    """Pass 1 compares what is there, pass 2 writes what is missing."""
    query = Query(spark)
    half_applied(table, spark, query, frame(spark, 0, 100, 4))
    query.call(MySQLWriter(table.url(), "t"), frame(spark, 0, 100, 4), 0)
    assert counts(table) == once(0, 100)


def test_another_split_of_a_half_applied_batch_is_refused(
    table: Database, spark: SparkSession
) -> None:
    """E3: restarted with other partitions; nothing is written, the settings are named, and with
    the old settings it goes on."""
    query = Query(spark)
    half_applied(table, spark, query, frame(spark, 0, 100, 4))
    before = counts(table)
    with pytest.raises(ReplayMismatchError, match=r"spark\.sql\.shuffle\.partitions"):
        query.call(MySQLWriter(table.url(), "t"), frame(spark, 0, 100, 7), 0)
    assert counts(table) == before
    query.restart()
    query.call(MySQLWriter(table.url(), "t"), frame(spark, 0, 100, 4), 0)
    assert counts(table) == once(0, 100)


def test_hash_partitioning_survives_another_split(table: Database, spark: SparkSession) -> None:
    """E3 with partitioning="hash": the split depends on the rows' content alone."""
    query, how = Query(spark), {"partitioning": "hash", "num_partitions": 4}
    batch = frame(spark, 0, 100, 3)
    failing = MySQLWriter(table.url(), "t", **how)
    failing._sink.__class__ = LastPartitionFails
    with pytest.raises(Exception, match="the last partition fails"):
        query.call(failing, batch, 0)
    assert 0 < sum(counts(table).values()) < 100
    query.restart()
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        again = MySQLWriter(table.url(), "t", **how)
        query.call(again, batch.repartition(5).orderBy(F.rand()), 0)
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert counts(table) == once(0, 100)


def test_a_half_applied_batch_keeps_its_number_of_partitions(
    table: Database, spark: SparkSession
) -> None:
    """Killed after partition 0 of 4, restarted with 7 and by another column: the batch is
    completed as 4, the next has 7."""
    query, batch = Query(spark), frame(spark, 0, 100, 3)
    failing = MySQLWriter(table.url(), "t", partitioning="hash", num_partitions=4)
    failing._sink.__class__ = LastPartitionFails
    with pytest.raises(Exception, match="the last partition fails"):
        query.call(failing, batch, 0)
    ((applied,),) = table.query("SELECT COUNT(*) FROM spark_eoc_units")
    assert 0 < applied < 4
    query.restart()
    how = {"partitioning": "hash", "num_partitions": 7, "partition_by": ["v"]}
    again = MySQLWriter(table.url(), "t", **how)
    query.call(again, batch, 0)
    query.call(again, frame(spark, 100, 200), 1)
    assert counts(table) == once(0, 200)
    assert table.query("SELECT partitions FROM spark_eoc_history ORDER BY batch_id") == [(4,), (7,)]


def test_a_batch_begun_as_the_frame_is_split_is_completed_so(
    table: Database, spark: SparkSession
) -> None:
    """partitioning="hash" comes into force with the next batch."""
    query, batch = Query(spark), frame(spark, 0, 100, 4)
    half_applied(table, spark, query, batch)
    again = MySQLWriter(table.url(), "t", partitioning="hash", num_partitions=2)
    query.call(again, batch, 0)
    query.call(again, frame(spark, 100, 200), 1)
    assert counts(table) == once(0, 200)
    assert table.query("SELECT partitions FROM spark_eoc_history ORDER BY batch_id") == [(4,), (2,)]


def streamed(spark: SparkSession, folder: Path, writer: MySQLWriter) -> None:
    """Runs a query over the folder's files until all are read; raises what it raised."""
    lines = spark.readStream.schema("id BIGINT, v STRING").json(str(folder / "in"))
    checkpoint = str(folder / "checkpoint") + "/"
    query = (
        lines.writeStream.foreachBatch(writer)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)


def add_file(folder: Path, start: int, end: int) -> None:
    text = "".join(f'{{"id": {i}, "v": "{i}"}}\n' for i in range(start, end))
    (folder / "in").mkdir(exist_ok=True)
    unfinished = folder / f"{start}.tmp"
    unfinished.write_text(text)
    unfinished.rename(folder / "in" / f"{start}.json")


def forget_newest_commit(folder: Path) -> int:
    """Deletes Spark's newest commit, as a driver that died before writing it; its batch."""
    newest = max(
        (p for p in (folder / "checkpoint/commits").iterdir() if p.name.isdigit()),
        key=lambda path: int(path.name),
    )
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    return int(newest.name)


@pytest.mark.parametrize(
    "times", [4, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_driver_that_dies_before_sparks_commit(
    table: Database, spark: SparkSession, tmp_path: Path, times: int
) -> None:
    """E1: the newest file in commits/ is deleted and the query restarted, again and again."""
    for n in range(times):
        add_file(tmp_path, n * 50, n * 50 + 50)
        streamed(spark, tmp_path, MySQLWriter(table.url(), "t"))
        assert forget_newest_commit(tmp_path) == n
        if n % 2:
            streamed(spark, tmp_path, MySQLWriter(table.url(), "t"))
        assert counts(table) == once(0, n * 50 + 50)
    digests = table.query("SELECT DISTINCT offsets_digest FROM spark_eoc_history")
    assert len(digests) == times
    assert None not in [row[0] for row in digests]


def test_an_older_checkpoint_that_went_another_way_is_refused(
    table: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """The checkpoint is set back by one batch and reads other data: the digest tells."""
    add_file(tmp_path, 0, 10)
    streamed(spark, tmp_path, MySQLWriter(table.url(), "t"))
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "checkpoint", saved)
    add_file(tmp_path, 10, 20)
    streamed(spark, tmp_path, MySQLWriter(table.url(), "t"))
    shutil.rmtree(tmp_path / "checkpoint")
    saved.rename(tmp_path / "checkpoint")
    add_file(tmp_path, 20, 30)
    with pytest.raises(Exception, match="other offsets"):
        streamed(spark, tmp_path, MySQLWriter(table.url(), "t"))
    assert counts(table) == once(0, 20)


def counted(spark: SparkSession, batch: DataFrame) -> tuple[DataFrame, Any]:
    """The frame, and an accumulator of the rows that were computed for it."""
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for one in batches:
            computed.add(one.num_rows)
            yield one

    return batch.mapInArrow(count, "id BIGINT, v STRING"), computed


def test_each_batch_is_computed_once(table: Database, spark: SparkSession) -> None:
    """E5: an action more would compute it again."""
    batch, computed = counted(spark, frame(spark, 0, 100))
    Query(spark).call(MySQLWriter(table.url(), "t"), batch, 0)
    assert computed.value == 100


def test_dead_letters_of_a_batch(
    table: Database, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning a partition with its numbers; the batch run again adds no letter; more than the
    limit in one batch is an error, and with a higher one it goes on."""
    query, aside = Query(spark), {"on_bad_row": "dead_letter", "password": "hush-hush"}
    table.query("CREATE OR REPLACE USER app IDENTIFIED BY 'hush-hush'")
    table.query(f"GRANT ALL ON `{table.name}`.* TO app")
    url = table.url().replace("root@", "app@")
    wrong = F.when(F.col("id") % 10 == 3, F.repeat(F.lit("x"), 21)).otherwise(F.col("v"))
    batch = frame(spark, 0, 90, 3).withColumn("v", wrong)
    with pytest.raises(DeadLetterLimitError, match="dead_letter_limit=2"):
        query.call(MySQLWriter(url, "t", dead_letter_limit=2, **aside), batch, 0)
    assert counts(table) == Counter()
    with caplog.at_level("WARNING", "spark_eoc.sinks"):
        for _ in range(2):
            query.restart()
            query.call(MySQLWriter(url, "t", **aside), batch, 0)
    good = {i for i in range(90) if i % 10 != 3}
    assert counts(table) == Counter(good)
    letters = table.query("SELECT row_json, reason FROM spark_eoc_dead_letters")
    assert Counter(json.loads(row)["id"] for row, _ in letters) == once(0, 90) - Counter(good)
    warnings = [r.getMessage() for r in caplog.records if "put aside" in r.getMessage()]
    assert sorted(warnings) == [
        f"batch 0, partition {p}: 3 of 30 rows were refused and put aside in table "
        "spark_eoc_dead_letters"
        for p in range(3)
    ]
    assert "hush" not in repr(letters) + caplog.text


def test_fan_out_computes_once_and_tries_every_sink(table: Database, spark: SparkSession) -> None:
    """E5: one sink refuses, the other has the batch; run again, each has it once."""
    table.query("CREATE TABLE u (id BIGINT, v VARCHAR(20))")
    query = Query(spark)
    broken = MySQLWriter(table.url(), "missing")
    with pytest.raises(ConfigError, match="no table"):
        query.call(fan_out(broken, MySQLWriter(table.url(), "t")), frame(spark, 0, 100), 0)
    assert counts(table) == once(0, 100)
    query.restart()
    batch, computed = counted(spark, frame(spark, 0, 100))
    both = fan_out(MySQLWriter(table.url(), "u"), MySQLWriter(table.url(), "t"))
    query.call(both, batch, 0)
    assert computed.value == 100
    assert counts(table) == once(0, 100)
    assert table.query("SELECT COUNT(*), COUNT(DISTINCT id) FROM u") == [(100, 100)]
