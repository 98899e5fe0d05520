"""Batches through real Spark into a real Redis: repeats, restarts, refusals, checkpoint surgery."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eoc import RedisWriter
from spark_eoc.errors import (
    BadRowError,
    CheckpointMismatchError,
    ConfigError,
    ReplayMismatchError,
    SinkBehindError,
)
from spark_eoc.failpoints import ENVIRONMENT, FailpointError
from tests.sinks.calls import Query

pytestmark = pytest.mark.compat

Writers = Callable[..., RedisWriter]


@pytest.fixture
def client(redis_server: Any) -> Any:
    return redis_server.client()


@pytest.fixture
def writer_for(redis_server: Any, prefix: str) -> Writers:
    """``writer_for(command, ...)``: keys are ``<prefix>:{k}``, the ledger has the prefix too."""

    def build(command: str, key: str = "{k}", **more: Any) -> RedisWriter:
        url = more.pop("url", redis_server.url())
        return RedisWriter(
            url, key=f"{prefix}:{key}", command=command, ledger=f"{prefix}_ledger", **more
        )

    return build


def numbers(spark: SparkSession, partitions: int = 3, keys: int = 20, rows: int = 200) -> DataFrame:
    """Counters to add to; the same in each partition whenever it is computed."""
    frame = spark.range(0, rows, 1, partitions)
    return frame.select((F.col("id") * 7 % keys).alias("k"), (F.col("id") + 1).alias("n"))


def expected(times: int, keys: int = 20, rows: int = 200) -> dict[bytes, int]:
    """What ``times`` times ``numbers`` adds up to."""
    sums: Counter[bytes] = Counter()
    for i in range(rows):
        sums[b"%d" % (i * 7 % keys)] += (i + 1) * times
    return dict(sums)


def counted(client: Any, prefix: str) -> dict[bytes, int]:
    """The counters in Redis."""
    keys = list(client.scan_iter(f"{prefix}:*"))
    return {key.rpartition(b":")[2]: int(client.hget(key, "n")) for key in keys}


def test_e7_a_bad_key_in_every_chunk(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """E7: one chunk of one partition fails, for every chunk; mended, a new run writes the rest."""
    query = Query(spark)
    frame = numbers(spark, partitions=2).cache()
    for batch in range(6):
        stranger, kept = f"{prefix}:{batch * 3}", f"{prefix}_kept"
        if client.exists(stranger):
            client.rename(stranger, kept)
        client.set(stranger, "text")
        with pytest.raises(BadRowError, match=f"{prefix}:{batch * 3}"):
            query.call(writer_for("hincrby", chunk_rows=3), frame, batch)
        client.delete(stranger)
        if client.exists(kept):
            client.rename(kept, stranger)
        query.restart()
        query.call(writer_for("hincrby", chunk_rows=3), frame, batch)
        assert counted(client, prefix) == expected(batch + 1)
        query.restart()


def test_e3_another_split_of_a_partly_applied_batch_is_refused(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """E3: refused with the settings to put back, nothing written; with them, it is completed."""
    query = Query(spark)
    client.set(f"{prefix}:19", "text")
    with pytest.raises(BadRowError):
        query.call(writer_for("hincrby", chunk_rows=4), numbers(spark), 0)
    client.delete(f"{prefix}:19")
    before = counted(client, prefix)
    assert before
    query.restart()
    with pytest.raises(ReplayMismatchError, match="settings"):
        query.call(writer_for("hincrby", chunk_rows=4), numbers(spark, partitions=5), 0)
    assert counted(client, prefix) == before
    query.restart()
    query.call(writer_for("hincrby", chunk_rows=7), numbers(spark), 0)
    assert counted(client, prefix) == expected(1)


@pytest.mark.parametrize(
    "point", ["batch.before_open", "batch.after_open", "batch.before_close", "batch.after_close"]
)
def test_a_driver_that_dies_around_a_batch(  # noqa: PLR0917
    spark: SparkSession,
    writer_for: Writers,
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """Before and after open and close: the next run writes what is missing, once."""
    query = Query(spark)
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT, f"{point}=raise")
        with pytest.raises(FailpointError):
            query.call(writer_for("hincrby"), numbers(spark), 0)
    query.restart()
    writer = writer_for("hincrby")
    query.call(writer, numbers(spark), 0)
    query.call(writer, numbers(spark), 1)
    assert counted(client, prefix) == expected(2)


def test_a_shuffle_before_the_writer(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """Aggregates of a shuffle, empty partitions and an empty batch among them."""
    query, writer = Query(spark), writer_for("hincrby")
    for batch in range(3):
        frame = numbers(spark).groupBy("k").agg(F.sum("n").alias("n"))
        query.call(writer, frame.repartition(7, "k"), 2 * batch)
        query.call(writer, frame.filter("k < 0"), 2 * batch + 1)
    assert counted(client, prefix) == expected(3)


def test_e2_a_wiped_checkpoint_and_a_second_query(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """E2: another query id is refused with the remedy; nothing is dropped in silence."""
    query = Query(spark)
    query.call(writer_for("hincrby"), numbers(spark), 0)
    stranger = Query(spark)
    with pytest.raises(CheckpointMismatchError, match="wiped"):
        stranger.call(writer_for("hincrby"), numbers(spark), 0)
    stranger.call(writer_for("hincrby", writer_id="second"), numbers(spark), 0)
    stranger.restart()
    adopting = writer_for("hincrby", on_new_checkpoint="adopt")
    stranger.call(adopting, numbers(spark), 0)
    assert counted(client, prefix) == expected(3)


def test_a_lost_ledger_is_refused_by_name(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """SinkBehindError when the ledger is gone, whatever was written before."""
    query = Query(spark)
    query.call(writer_for("hincrby"), numbers(spark), 0)
    client.delete(*client.keys(f"{prefix}_ledger:*"))
    with pytest.raises(SinkBehindError):
        query.call(writer_for("hincrby"), numbers(spark), 1)
    assert counted(client, prefix) == expected(1)


def test_types_of_spark_arrive_as_documented(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """Scalars as text, nested columns as JSON in UTC, NULL fields absent."""
    instant = "TIMESTAMP'2013-01-31 23:59:59.000001+05:00'"
    frame = spark.sql(
        f"""SELECT 1 AS k, 'é😀' AS s, X'00FF0D0A' AS b, 127Y AS i, 9223372036854775807L AS l,
        CAST(12.5 AS DECIMAL(38,18)) AS d, DOUBLE('NaN') AS nan, TRUE AS t, DATE'2013-01-31' AS day,
        {instant} AS at, TIMESTAMP_NTZ'1969-12-31 23:59:59' AS ntz, CAST(NULL AS STRING) AS gone,
        named_struct('x', 1, 'y', array(1, NULL), 'at', {instant}) AS nested, NULL AS nothing"""
    )
    if "void" in frame.schema.simpleString():
        frame = frame.drop("nothing")
    Query(spark).call(writer_for("hset"), frame, 0)
    found = client.hgetall(f"{prefix}:1")
    nested = json.loads(found.pop(b"nested"))
    assert nested["x"] == 1
    assert nested["y"] == [1, None]
    assert dt.datetime.fromisoformat(nested["at"].replace("Z", "+00:00")) == dt.datetime(
        2013, 1, 31, 18, 59, 59, 1, dt.timezone.utc
    )
    assert found == {
        b"s": "é😀".encode(),
        b"b": b"\x00\xff\r\n",
        b"i": b"127",
        b"l": b"9223372036854775807",
        b"d": b"12.500000000000000000",
        b"nan": b"nan",
        b"t": b"true",
        b"day": b"2013-01-31",
        b"at": b"2013-01-31 18:59:59.000001Z",
        b"ntz": b"1969-12-31 23:59:59.000000",
    }


def test_r7_a_key_only_frame_is_refused(spark: SparkSession, writer_for: Writers) -> None:
    """R7: never ignored in silence; and intervals are refused by name."""
    with pytest.raises(ConfigError, match="write nothing"):
        Query(spark).call(writer_for("hset"), numbers(spark).select("k"), 0)
    frame = numbers(spark).selectExpr("k", "INTERVAL '1' DAY AS i")
    with pytest.raises(ConfigError, match="interval"):
        Query(spark).call(writer_for("hset"), frame, 0)


def test_r6_a_null_key_names_the_column(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str
) -> None:
    """R6: nothing of the batch's only chunk is written, and the message says which column."""
    frame = spark.sql("SELECT * FROM VALUES ('a', 1), (NULL, 2), ('b', 3) AS t(k, n)").coalesce(1)
    with pytest.raises(BadRowError, match=r"'k'.*NULL"):
        Query(spark).call(writer_for("hincrby"), frame, 0)
    assert counted(client, prefix) == {}


class Stream:
    """A query over a folder of files, one a batch, run to its end and restarted at will."""

    def __init__(self, spark: SparkSession, folder: Path, writers: Callable[[], RedisWriter]):
        self.spark, self.writers = spark, writers
        self.source, self.checkpoint = folder / "source", folder / "checkpoint"
        self.source.mkdir()
        self.rows: Counter[bytes] = Counter()

    def add(self, number: int) -> None:
        """One more file, which becomes a batch of its own."""
        lines = []
        for i in range(30):
            self.rows[b"%d" % (i % 7)] += number * 1000 + i
            lines.append(json.dumps({"k": i % 7, "n": number * 1000 + i}))
        path = self.source / f"{number:05d}.json"
        path.with_suffix(".tmp").write_text("\n".join(lines))
        path.with_suffix(".tmp").rename(path)

    def run(self) -> None:
        """Everything that is there, then stop."""
        lines = self.spark.readStream.schema("k INT, n BIGINT").option("maxFilesPerTrigger", 1)
        query = (
            lines.json(str(self.source))
            .repartition(3, "k")
            .writeStream.foreachBatch(self.writers())
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)

    def forget_newest_commit(self) -> None:
        """What a driver that dies between the sink's end and Spark's commit log leaves behind."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        newest = max(commits, key=lambda path: int(path.name))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "times", [8, pytest.param(100, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_e1_the_newest_commit_is_lost_again_and_again(  # noqa: PLR0917
    spark: SparkSession,
    writer_for: Writers,
    client: Any,
    prefix: str,
    tmp_path: Path,
    times: int,
) -> None:
    """E1: Spark runs the newest batch again after every restart, and counters stay exact."""
    stream = Stream(spark, tmp_path, lambda: writer_for("hincrby"))
    for number in range(times):
        stream.add(number)
        stream.run()
        assert counted(client, prefix) == dict(stream.rows)
        stream.forget_newest_commit()
    stream.run()
    assert counted(client, prefix) == dict(stream.rows)


def test_an_older_checkpoint_that_went_another_way_is_refused(
    spark: SparkSession, writer_for: Writers, client: Any, prefix: str, tmp_path: Path
) -> None:
    """Two commits and offsets lost, other files behind them: refused, nothing is written."""
    stream = Stream(spark, tmp_path, lambda: writer_for("hincrby"))
    for number in range(3):
        stream.add(number)
        stream.run()
    before = counted(client, prefix)
    for log in ("offsets", "commits"):
        (stream.checkpoint / log / "2").unlink()
    (stream.checkpoint / "offsets" / ".2.crc").unlink(missing_ok=True)
    (stream.source / "00002.json").unlink()
    for path in (stream.checkpoint / "sources" / "0").glob("*2*"):
        path.unlink()
    stream.add(3)
    stream.add(4)
    with pytest.raises(Exception, match=r"other offsets|holds other|older"):
        stream.run()
    assert counted(client, prefix) == before


@pytest.mark.parametrize("point", ["batch.before_publish", "batch.after_publish"])
def test_a_driver_that_dies_around_the_publication(  # noqa: PLR0917
    spark: SparkSession,
    writer_for: Writers,
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
) -> None:
    """Before the publication nothing is in, and the batch may hold other rows when it comes again;
    after it nothing more is. No key stays staged."""
    query, writer = Query(spark), writer_for("hincrby", atomicity="batch")
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT, f"{point}=raise")
        with pytest.raises(FailpointError):
            query.call(writer, numbers(spark), 0)
    published = point == "batch.after_publish"
    assert counted(client, prefix) == (expected(1) if published else {})
    query.restart()
    again = writer_for("hincrby", atomicity="batch")
    query.call(again, numbers(spark, partitions=5, rows=150), 0)
    rest = Counter(expected(1) if published else expected(1, rows=150))
    assert counted(client, prefix) == rest
    query.call(again, numbers(spark).filter("k < 0"), 1)
    query.call(again, numbers(spark), 2)
    rest.update(expected(1))
    assert counted(client, prefix) == rest
    assert list(client.scan_iter(f"{prefix}_ledger:*:staging*")) == []
