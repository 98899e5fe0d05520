"""A user's script for kills: lines from sockets into MySQL and Redis, nothing else.

``python -m spark_eoc.testing.workload JOB.json`` runs one query for each stream of the job, in one
Spark application. It knows of no kill. What the harness needs to compare is in the data: each
MySQL row carries offset, batch and partition, and each Redis key counts one line with `hincrby`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

import spark_eoc
from spark_eoc import MySQLWriter, RedisWriter
from spark_eoc.testing.job import Job, Stream
from spark_eoc.testing.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Exit code of a script whose query ended with an error, as a service manager sees it.
QUERY_FAILED = 3


def main(path: str) -> int:
    """Runs the job until its queries fail or the process is ended."""
    job = Job.load(path)
    spark = build_session({"spark.master": "local[2]", **job.settings})
    spark_eoc.register(spark)
    running = [(stream, start(spark, stream)) for stream in job.streams]
    while running:
        for stream, query in list(running):
            if query.isActive:
                continue
            _record(job, stream, query)
            running.remove((stream, query))
            if job.on_failure == "end":
                return QUERY_FAILED
            if job.on_failure == "restart":
                running.append((stream, start(spark, stream)))
        time.sleep(0.05)
    return QUERY_FAILED


def start(spark: SparkSession, stream: Stream) -> StreamingQuery:
    """Starts one query, as the README does."""
    reader = spark.readStream.format("replayable_socket").option("bufferPath", str(stream.buffer))
    if stream.listen:
        reader = reader.option("listen", stream.listen)
    lines = reader.options(includeOffset="true", **stream.options).load()
    return (
        lines.writeStream.foreachBatch(_writers[stream.sink](stream))
        .option("checkpointLocation", str(stream.checkpoint))
        .queryName(stream.sink)
        .start()
    )


def _mysql(stream: Stream) -> Callable[[DataFrame, int], None]:
    writer = MySQLWriter(stream.url, stream.target, mode="append", **stream.writer)

    def write(lines: DataFrame, batch_id: int) -> None:
        # Tags, so that rows and ledger can be compared in both directions.
        tags = (F.lit(batch_id).alias("batch_id"), F.spark_partition_id().alias("part"))
        writer(lines.select("value", "offset", *tags), batch_id)

    return write


def _redis(stream: Stream) -> Callable[[DataFrame, int], None]:
    key = stream.target + "{value}"
    writer = RedisWriter(stream.url, key=key, command="hincrby", **stream.writer)

    def write(lines: DataFrame, batch_id: int) -> None:
        writer(lines.select("value", F.lit(1).alias("n")), batch_id)

    return write


_writers = {"mysql": _mysql, "redis": _redis}


def _record(job: Job, stream: Stream, query: StreamingQuery) -> None:
    error = query.exception()
    entry = {"pid": os.getpid(), "sink": stream.sink, "error": str(error)}
    with job.failures.open("a") as file:
        file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
