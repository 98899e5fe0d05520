"""Run as a script: one batch on local-cluster[2,1,1024], which loses an executor on the way.

    lost_executor.py DATABASE_URL FOLDER watch|blind partition|batch

The shuffle's key is random, which Spark can't know: what the lost executor had mapped is mapped
again with other keys, after three of four result partitions are written or staged. Prints the
error's name, or ``completed``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import spark_eoc
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.sinks.mysql.address import parse_url

cloudpickle.register_pickle_by_value(spark_eoc)


#: Where a row is added for each partition that is done.
WRITTEN = {"partition": "spark_eoc_units", "batch": "spark_eoc_staged"}


def random_key(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        keys = [uuid.uuid4().hex for _ in range(batch.num_rows)]
        yield pa.RecordBatch.from_arrays([batch.column(0), pa.array(keys)], ["id", "k"])


@dataclass(frozen=True)
class LoseExecutorOnce:
    """The last partition's task waits for the other units, then kills its own executor."""

    url: str
    flag: str
    table: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch.select(["id"]) for batch in batches]
        context = TaskContext.get()
        if context is not None and context.partitionId() == 3 and not Path(self.flag).exists():
            self._wait_for_units()
            Path(self.flag).touch()
            os.kill(_parent(_parent(os.getpid())), signal.SIGKILL)
            time.sleep(60)
        yield from held

    def _wait_for_units(self) -> None:
        address = parse_url(self.url, None)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            connection = pymysql.connect(
                host=address.host, port=address.port, user=address.user, database=address.database
            )
            with connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT COUNT(*) FROM {self.table}")
                if cursor.fetchone() == (3,):
                    return
            time.sleep(0.2)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid")))


def main(url: str, folder: str, how: str, atomicity: str) -> None:
    builder: Any = SparkSession.builder.master("local-cluster[2,1,1024]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if how == "blind":
        StageWatch.repeated = lambda self: False  # type: ignore[method-assign]
    context: Any = spark.sparkContext
    context.setLocalProperty("sql.streaming.queryId", str(uuid.uuid4()))
    context.setLocalProperty("spark.jobGroup.id", str(uuid.uuid4()))
    batch = (
        spark.range(0, 4000, 1, 4)
        .mapInArrow(random_key, "id BIGINT, k STRING")
        .repartition(4, "k")
        .mapInArrow(LoseExecutorOnce(url, f"{folder}/lost", WRITTEN[atomicity]), "id BIGINT")
    )
    try:
        MySQLWriter(url, "t", atomicity=atomicity)(batch, 0)
        print("completed")
    except Exception as error:  # noqa: BLE001  the test wants its name
        print(type(error).__name__, str(error)[:300])
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
