"""One query of the demo, a script of its own: ``python -m spark_eoc.cli.demo_query JOB.json``.

Nothing in it knows of the kills. What it does is what a user's script does: read lines from the
socket, make columns, hand the batches to a writer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pymysql
import redis
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import spark_eoc
from spark_eoc import MySQLWriter, RedisWriter
from spark_eoc.cli.demo_data import CARRIER, COLUMNS, DISTANCE, NO_VALUE, SCHEMA
from spark_eoc.cli.demo_job import KEY, TABLE, Job

#: A JVM that is soon killed again: half the CPU time of its start is the second compiler's.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

BatchWriter = Callable[[DataFrame, int], None]


def main(job: Job) -> None:
    """Runs the query until it fails or the process is ended."""
    spark = session(job)
    spark_eoc.register(spark)
    lines = (
        spark.readStream.format("replayable_socket")
        .option("listen", job.listen)
        .option("bufferPath", f"{job.folder}/buffer")
        .option("maxRowsPerTrigger", job.rows_per_batch)
        .option("minPartitions", 2)
        .load()
    )
    columns, writer = QUERIES[job.sink, job.ledger](job.sink_url)
    query = (
        columns(lines)
        .writeStream.foreachBatch(recorded(writer, job.transcript))
        .option("checkpointLocation", str(job.checkpoint))
        .start()
    )
    query.awaitTermination()


def session(job: Job) -> SparkSession:
    """A small local Spark: two of these, two servers and the demo share a laptop."""
    folder = Path(job.folder)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # A killed JVM can't clean up: what it leaves must lie in the demo's own folder.
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder} {_SHORT_LIVED}",
    }
    builder = SparkSession.builder.master("local[2]").appName(f"spark-eoc demo {job.sink}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def recorded(write: BatchWriter, transcript: Path) -> BatchWriter:
    """The writer, with a line in the transcript before and after each batch that it is given."""

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        _note(transcript, batch_id, "begun")
        try:
            write(batch, batch_id)
        except Exception as error:
            _note(transcript, batch_id, "failed", type(error).__name__)
            raise
        _note(transcript, batch_id, "done")

    return write_batch


def _note(transcript: Path, batch_id: int, event: str, error: str | None = None) -> None:
    entry = {"pid": os.getpid(), "batch_id": batch_id, "event": event, "error": error}
    with transcript.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def flight_columns(lines: DataFrame) -> DataFrame:
    """Each line of the CSV as its 19 typed columns."""
    flight = F.from_csv("value", SCHEMA, {"nullValue": NO_VALUE, "mode": "FAILFAST"})
    return lines.select(flight.alias("flight")).select("flight.*")


def carrier_increments(lines: DataFrame) -> DataFrame:
    """Each line as what it adds to its carrier's counters."""
    field = F.split("value", ",")
    return lines.select(
        field[CARRIER].alias("carrier"),
        F.lit(1).cast("bigint").alias("flights"),
        field[DISTANCE].cast("bigint").alias("distance"),
    )


def mysql_exactly_once(url: str) -> BatchWriter:
    writer: BatchWriter = MySQLWriter(url, table=TABLE)
    return writer


def redis_exactly_once(url: str) -> BatchWriter:
    writer: BatchWriter = RedisWriter(url, key=KEY, command="hincrby")
    return writer


def mysql_plain(url: str) -> BatchWriter:
    """What many people write; kept small and honest, each partition in one transaction."""

    def insert(rows: Iterable[Row]) -> None:
        connection = _connect(url)
        with connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {TABLE} VALUES ({', '.join(['%s'] * len(COLUMNS))})",  # noqa: S608
                [tuple(row) for row in rows],
            )
            connection.commit()

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        batch.foreachPartition(insert)

    return write_batch


def redis_plain(url: str) -> BatchWriter:
    """The same for the counters: each partition in one MULTI."""

    def increment(rows: Iterable[Row]) -> None:
        client = redis.Redis.from_url(url)
        with client, client.pipeline() as pipeline:
            for row in rows:
                key = KEY.format(carrier=row.carrier)
                pipeline.hincrby(key, "flights", row.flights)
                pipeline.hincrby(key, "distance", row.distance)
            pipeline.execute()

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        batch.foreachPartition(increment)

    return write_batch


def _connect(url: str) -> pymysql.Connection:
    address, _, database = url.removeprefix("mysql://root@").partition("/")
    host, _, port = address.partition(":")
    return pymysql.connect(host=host, port=int(port), user="root", database=database)


#: (sink, with a ledger) to what the query makes of the lines, and its writer.
QUERIES: dict[
    tuple[str, bool],
    Callable[[str], tuple[Callable[[DataFrame], DataFrame], BatchWriter]],
] = {
    ("mysql", True): lambda url: (flight_columns, mysql_exactly_once(url)),
    ("mysql", False): lambda url: (flight_columns, mysql_plain(url)),
    ("redis", True): lambda url: (carrier_increments, redis_exactly_once(url)),
    ("redis", False): lambda url: (carrier_increments, redis_plain(url)),
}


if __name__ == "__main__":
    main(Job.load(sys.argv[1]))
