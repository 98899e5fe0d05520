"""Run as a script: a join with AQE on local-cluster[2,2,1024], which loses an executor on the way.

    lost_between_jobs.py FOLDER

With AQE each shuffle is a job of its own. The executor is lost when the left side's job, with keys
that are random, has ended: what it had mapped is mapped again, with other keys, by a *new* stage.
Prints how many of 4,000 rows differ, and what StageWatch says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

import spark_eoc
from spark_eoc.sinks.attempts import StageWatch

cloudpickle.register_pickle_by_value(spark_eoc)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.adaptive.enabled": "true",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
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


def main(folder: str) -> None:
    def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = [batch.select(["id"]) for batch in batches]
        context = TaskContext.get()
        assert context is not None
        Path(folder, f"mapped-{context.partitionId()}").touch()
        yield from held

    def losing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        context = TaskContext.get()
        lost = Path(folder, "lost")
        if context is not None and context.partitionId() == 0 and not lost.exists():
            until = time.monotonic() + 90
            while time.monotonic() < until and len(list(Path(folder).glob("mapped-*"))) < 4:
                time.sleep(0.2)
            time.sleep(3)  # the left side's job has ended by then, or this is another test
            lost.touch()
            os.kill(_parent(_parent(os.getpid())), signal.SIGKILL)
            time.sleep(60)
        yield from held

    builder: Any = SparkSession.builder.master("local-cluster[2,2,1024]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", str(uuid.uuid4()))
    source = spark.range(0, 4000, 1, 4)
    left = source.mapInArrow(random_key, "id BIGINT, k STRING").repartition(4, "k")
    right = source.mapInArrow(losing, "id BIGINT").selectExpr("id", "id AS other")
    batch = left.mapInArrow(mapped, "id BIGINT").join(right, "id", "left").select("id")
    watch = StageWatch(batch)
    found = Counter(row[0] for row in batch.collect())
    wrong = Counter(range(4000)) - found + (found - Counter(range(4000)))
    print(wrong.total(), watch.repeated())
    spark.stop()


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid")))


if __name__ == "__main__":
    main(*sys.argv[1:])
