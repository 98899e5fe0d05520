"""Run as a script: batches whose rows move between partitions, one task of each fails once.

    equal_counts.py MYSQL_URL REDIS_URL PREFIX FOLDER

Prints a JSON line for each sink and plan: what became of the batch, and whether a task failed.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_eoc
from spark_eoc import MySQLWriter, RedisWriter
from spark_eoc.errors import SparkEocError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT
from spark_eoc.testing.session import build_session
from tests.sinks.calls import Query

cloudpickle.register_pickle_by_value(spark_eoc)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

#: A unit is applied and its task fails: what its next try computes is compared with it.
FAILS = {"mysql": "mysql.after_commit", "redis": "redis.after_unit"}


def fresh_names(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Other content at every try, in equal numbers."""
    for batch in batches:
        names = pa.array([uuid.uuid4().hex for _ in range(batch.num_rows)])
        yield batch.set_column(1, "name", names)


def plans(spark: SparkSession) -> dict[str, DataFrame]:
    rows = spark.range(0, 2000, 1, 4).select("id", F.col("id").cast("string").alias("name"))
    rows = rows.withColumn("one", F.lit(1))
    return {
        "round_robin": rows.repartition(8),
        "random_order": rows.orderBy(F.rand()),
        "random_key": rows.repartition(8, F.rand()),
        "random_rows": rows.mapInArrow(fresh_names, "id BIGINT, name STRING, one INT"),
    }


def main(mysql: str, redis: str, prefix: str, folder: str) -> None:
    armed = Path(folder) / "armed"
    os.environ.update({ENVIRONMENT: f"@{armed}", DIRECTORY: folder})
    # In local mode a task is tried again only where the master says so.
    spark = build_session({"spark.master": "local[2,4]", "spark.sql.shuffle.partitions": "4"})
    spark.sparkContext.setLogLevel("OFF")
    writers: dict[str, Callable[[str], Any]] = {
        "mysql": lambda plan: MySQLWriter(mysql, plan),
        "redis": lambda plan: RedisWriter(
            redis, f"{prefix}:{plan}:{{id}}", "incrby", value="one", ledger=f"{prefix}_ledger"
        ),
    }
    for sink, make in writers.items():
        for plan, frame in plans(spark).items():
            name = FAILS[sink]
            for left in Path(folder).glob(f"{name}.*"):
                left.unlink()
            armed.write_text(f"{name}=raise")
            outcome = call(spark, make(plan), frame)
            fired = (Path(folder) / f"{name}.fired").exists()
            print(json.dumps({"sink": sink, "plan": plan, "outcome": outcome, "fired": fired}))
    spark.stop()


def call(spark: SparkSession, writer: Any, frame: DataFrame) -> str:
    try:
        Query(spark).call(writer, frame, 0)
    except SparkEocError as error:
        return type(error).__name__
    return "complete"


if __name__ == "__main__":
    main(*sys.argv[1:])
