"""Redis: hset against foreachPartition + redis-py pipeline, and the writer against itself bare.

Both sides of a figure take turns on one private Redis and one Spark session; the ratio is that of
the medians. ``--rows`` and ``--rounds`` make it shorter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import redis
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eoc import RedisWriter, register
from spark_eoc.sinks.entries import Fingerprint, Unit
from spark_eoc.sinks.redis.apply import UnitWriter
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.rows import HASH_COLUMN, read_rows
from spark_eoc.testing.servers import Redis

FENCE = "if control[1] ~= token or control[2] ~= batch then"
COMPARE = "if unit ~= expected then"
SMALL_BATCHES = 60


class BareWriter(UnitWriter):
    """The same chunks by the same script, without token, comparison and unit entry."""

    def _source(self) -> str:
        source = super()._source()
        for old, new in (
            (FENCE, "if false then"),
            (COMPARE, "if false then"),
            ("call('HMGET', KEYS[1], 'token', 'open_batch', 'epoch')", "{}"),
            ("call('HGET', KEYS[2], partition) or ''", "''"),
            ("try('HSET', KEYS[2], partition, half)", "nil"),
            ("call('HSET', KEYS[2], partition, done)", ""),
        ):
            if old not in source:
                raise AssertionError(f"the script has no {old!r} any more")
            source = source.replace(old, new)
        return source


class BareSink(RedisSink):
    """Applies units without a ledger."""

    unit_writer: ClassVar[type[UnitWriter]] = BareWriter


@dataclass(frozen=True)
class BarePass:
    """What WritePass does, without the fingerprint that decides."""

    sink: RedisSink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = read_rows(batches, ["user_id", "name", "visits"])
        if rows is not None:
            partition = TaskContext.get().partitionId()
            unit = Unit("bare", partition, 0, 1, "", Fingerprint(len(rows)))
            self.sink.apply(unit, self.sink.arrange(rows))
        yield pa.RecordBatch.from_pydict({"rows": pa.array([0 if rows is None else len(rows)])})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    # This script is a module that workers can't import.
    cloudpickle.register_pickle_by_value(__import__(__name__))
    with tempfile.TemporaryDirectory() as folder, Redis.start(Path(folder) / "redis") as server:
        server.client().config_set("appendonly", "no")
        spark = session()
        try:
            measure(spark, server, args.rows, args.rounds)
        finally:
            spark.stop()


def session() -> SparkSession:
    builder: Any = SparkSession.builder.master("local[2]").appName("bench redis")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def measure(spark: SparkSession, server: Redis, rows: int, rounds: int) -> None:
    frame = spark.range(0, rows, 1, 2).select(
        (F.col("id") * 7919 % 10_000_000).alias("user_id"),
        F.concat(F.lit("name-"), F.col("id")).alias("name"),
        F.col("id").cast("string").alias("visits"),
    )
    frame = frame.cache()
    frame.count()
    writer = RedisWriter(server.url(), key="user:{user_id}", command="hset")
    calls = Calls(spark, writer)
    client = server.client()
    sides: dict[str, Callable[[], None]] = {
        "writer": lambda: calls.call(frame),
        "pipeline": lambda: frame.foreachPartition(pipeline_to(server.port)),
        "bare": lambda: bare(writer, frame),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, side in sides.items():
            forget(client)
            begun = time.perf_counter()
            side()
            if turn:  # the first turn warms up
                seconds[name].append(time.perf_counter() - begun)
            found = client.dbsize()
            if found < rows:
                raise AssertionError(f"{name} wrote {found} keys of {rows}")
    speed = {name: rows / statistics.median(found) for name, found in seconds.items()}
    figure("Redis hset", "`foreachPartition` + redis-py pipeline", speed, "pipeline", 2.0)
    figure("Redis writer", "itself with ledger, token and fingerprint off", speed, "bare", 0.95)
    overhead(frame.limit(100).coalesce(1).cache(), calls)


def forget(client: redis.Redis) -> None:
    """Deletes the rows, and leaves the ledger."""
    keys = list(client.scan_iter("user:*", count=10_000))
    for start in range(0, len(keys), 10_000):
        client.unlink(*keys[start : start + 10_000])


def figure(what: str, against: str, speed: dict[str, float], theirs: str, least: float) -> None:
    line = {
        "what": what,
        "against": against,
        "ratio": round(speed["writer"] / speed[theirs], 3),
        "at_least": least,
        "unit": "rows/s",
        "ours": round(speed["writer"]),
        "theirs": round(speed[theirs]),
    }
    print(json.dumps(line), flush=True)


def overhead(frame: DataFrame, calls: Calls) -> None:
    """The median of a 100-row batch above that of a mapInArrow that writes nothing."""
    times: dict[str, list[float]] = {"writer": [], "nothing": []}
    for _ in range(SMALL_BATCHES):
        for name, side in (
            ("writer", lambda: calls.call(frame)),
            ("nothing", lambda: frame.mapInArrow(nothing, "rows BIGINT").collect()),
        ):
            begun = time.perf_counter()
            side()
            times[name].append((time.perf_counter() - begun) * 1000)
    ours, theirs = (statistics.median(times[name]) for name in ("writer", "nothing"))
    line = {
        "what": "100-row batch into Redis, the writer's own overhead",
        "against": "a no-op `mapInArrow`",
        "value": round(ours - theirs, 1),
        "at_most": 20,
        "unit": "ms",
        "ours": round(ours, 1),
        "theirs": round(theirs, 1),
    }
    print(json.dumps(line), flush=True)


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows])})


def bare(writer: RedisWriter, frame: DataFrame) -> None:
    sink = BareSink(writer._sink.target)
    hashed = frame.withColumn(HASH_COLUMN, F.lit(0).cast("bigint"))
    hashed.mapInArrow(BarePass(sink), "rows BIGINT").collect()


def pipeline_to(port: int) -> Callable[[Iterable[Any]], None]:
    def write(rows: Iterable[Any]) -> None:
        client = redis.Redis(port=port)
        pipe = client.pipeline(transaction=False)
        for number, row in enumerate(rows, 1):
            pipe.hset(f"user:{row.user_id}", mapping={"name": row.name, "visits": row.visits})
            if number % 1000 == 0:
                pipe.execute()
        pipe.execute()
        client.close()

    return write


class Calls:
    """Calls the writer as foreachBatch does, batch after batch."""

    def __init__(self, spark: SparkSession, writer: RedisWriter) -> None:
        self._context: Any = spark.sparkContext
        self._writer, self._batch = writer, 0
        self._query, self._run = str(uuid.uuid4()), str(uuid.uuid4())

    def call(self, frame: DataFrame) -> None:
        self._context.setLocalProperty("sql.streaming.queryId", self._query)
        self._context.setLocalProperty("spark.jobGroup.id", self._run)
        self._writer(frame, self._batch)
        self._batch += 1


if __name__ == "__main__":
    main()
