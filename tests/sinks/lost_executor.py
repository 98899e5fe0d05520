"""Run as a script: one batch on local-cluster[2,2,1024], which loses an executor on the way.

    lost_executor.py SINK_URL LEDGER FOLDER stage|jobs watch|blind partition|batch

A shuffle's key is random, which Spark can't know: what the lost executor had mapped is mapped again
with other keys. ``stage``: it is lost when three of four result partitions are written or staged,
so parts of a stage are attempted again. ``jobs``: a join with AQE, where each shuffle is a job of
its own, and the executor is lost when the two jobs of the left side have ended; what it had mapped
is mapped again by *new* stages. ``blind`` makes the writer see neither.

Prints what became of the batch, and then of the same batch in a new run, which loses nothing: the
error's name and text, or ``completed``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import redis
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, SparkSession

import spark_eoc
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.sinks.mysql.address import parse_url
from spark_eoc.sinks.redis import RedisWriter
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.wait import until

cloudpickle.register_pickle_by_value(spark_eoc)

PARTITIONS, WAIT_S = 4, 90
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
}


def random_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = [uuid.uuid4().hex for _ in range(batch.num_rows)]
        yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(keys)], ["id", "k"])


@dataclass(frozen=True)
class Sink:
    """MySQL's table ``t``, or lists in Redis, one for each id; ``ledger`` begins its names."""

    url: str
    ledger: str

    def writer(self, atomicity: str) -> Writer:
        """A writer, as each run makes one."""
        if self.url.startswith("mysql"):
            return MySQLWriter(self.url, "t", ledger=self.ledger, atomicity=atomicity)
        return RedisWriter(
            self.url, f"{self.ledger}_id:{{id}}", "rpush", value="id",
            ledger=self.ledger, atomicity=atomicity,
        )  # fmt: skip

    def done(self, atomicity: str) -> int:
        """How many partitions are written, or staged."""
        if self.url.startswith("mysql"):
            return self._rows("units" if atomicity == "partition" else "staged")
        with closing(redis.Redis.from_url(self.url)) as client:
            kind = "units" if atomicity == "partition" else "staging"
            count = client.hlen if kind == "units" else client.scard
            return sum(int(count(key)) for key in client.scan_iter(f"{self.ledger}:*:{kind}"))

    def _rows(self, kind: str) -> int:
        address = parse_url(self.url, None)
        connection = pymysql.connect(
            host=address.host, port=address.port, user=address.user, database=address.database
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COUNT(*) FROM {self.ledger}_{kind}")
            (count,) = cursor.fetchone() or (0,)
            return int(count)


@dataclass(frozen=True)
class LosesExecutorOnce:
    """The task of one partition waits, then kills an executor; later tries do nothing.

    The executor is its own, or the one of two that :class:`Marks` shows to have done the smaller
    part, so that another part stays.
    """

    folder: str
    partition: int
    ready: Callable[[], bool]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch.select(["id"]) for batch in batches]
        context, lost = TaskContext.get(), Path(self.folder, "lost")
        if context is not None and context.partitionId() == self.partition and not lost.exists():
            until(self.ready, WAIT_S, "the moment to lose an executor", interval=0.1)
            lost.touch()
            victim = _with_fewest_marks(self.folder) or _executor()
            os.kill(victim, signal.SIGKILL)
            if victim == _executor():
                until(lambda: False, WAIT_S, "the end", interval=0.1)
        yield from held


@dataclass(frozen=True)
class Marks:
    """Leaves a file for each partition, with its executor's process; the rows are as they were."""

    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch.select(["id"]) for batch in batches]
        context = TaskContext.get()
        assert context is not None
        Path(self.folder, f"mark-{_executor()}-{context.partitionId()}").touch()
        yield from held


def _with_fewest_marks(folder: str) -> int | None:
    marks = Counter(int(path.name.split("-")[1]) for path in Path(folder).glob("mark-*"))
    return min(marks, key=lambda pid: marks[pid], default=None)


def _executor() -> int:
    return _parent(_parent(os.getpid()))


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid")))


def one_shuffle(spark: SparkSession, folder: str, ready: Callable[[], bool]) -> DataFrame:
    """The executor is lost by the last partition of the stage that writes."""
    loses = LosesExecutorOnce(folder, PARTITIONS - 1, ready)
    keyed = spark.range(0, 4000, 1, PARTITIONS).mapInArrow(random_key, "id BIGINT, k STRING")
    return keyed.repartition(PARTITIONS, "k").mapInArrow(loses, "id BIGINT")


def join_of_jobs(spark: SparkSession, folder: str, ready: Callable[[], bool]) -> DataFrame:
    """The executor is lost by the right side, once the left side's shuffles are there."""
    source = spark.range(0, 4000, 1, PARTITIONS)
    left = source.mapInArrow(random_key, "id BIGINT, k STRING").repartition(PARTITIONS, "k")
    loses = LosesExecutorOnce(folder, 0, ready)
    right = source.mapInArrow(loses, "id BIGINT").selectExpr("id", "id AS other")
    return left.mapInArrow(Marks(folder), "id BIGINT").join(right, "id", "left").select("id")


def tell_when_two_jobs_have_ended(spark: SparkSession, group: str, flag: Path) -> None:
    """Those of the left side, since the right side's waits for the flag."""
    tracker: Any = spark.sparkContext.statusTracker()

    def ended() -> bool:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        return sum(job is not None and job.status == "SUCCEEDED" for job in jobs) >= 2

    until(ended, WAIT_S, "the left side's jobs", interval=0.1)
    flag.touch()


def session(plan: str) -> SparkSession:
    builder: Any = SparkSession.builder.master("local-cluster[2,2,1024]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.adaptive.enabled", str(plan == "jobs").lower())
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def call(writer: Writer, batch: DataFrame) -> str:
    try:
        writer(batch, 0)
    except Exception as error:  # noqa: BLE001  the test wants its name
        return " ".join(f"{type(error).__name__} {str(error)[:300]}".split())
    return "completed"


def main(url: str, ledger: str, folder: str, plan: str, how: str, atomicity: str) -> None:  # noqa: PLR0917
    if how == "blind":
        StageWatch.repeated = lambda self: False  # type: ignore[method-assign]
    spark, sink = session(plan), Sink(url, ledger)
    context: Any = spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", str(uuid.uuid4()))
    flag, made = Path(folder, "ended"), {"stage": one_shuffle, "jobs": join_of_jobs}[plan]
    for _ in range(2):
        run = str(uuid.uuid4())
        context.setLocalProperty("spark.jobGroup.id", run)
        if plan == "jobs":
            told = (spark, run, flag)
            threading.Thread(target=tell_when_two_jobs_have_ended, args=told, daemon=True).start()
            batch = made(spark, folder, lambda: Path(folder, "ended").exists())
        else:
            batch = made(spark, folder, lambda: sink.done(atomicity) == PARTITIONS - 1)
        print(call(sink.writer(atomicity), batch), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
