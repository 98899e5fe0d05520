"""Run as a script: a query that writes FOLDER/in/*.json to FOLDER/shop.db, one file a batch."""

from __future__ import annotations

import sys

from pyspark import cloudpickle

import spark_eoc
from spark_eoc.sinks.writer import Writer, WriterOptions
from spark_eoc.testing.session import build_session
from tests.sinks import sqlite_sink

# Workers can import neither.
cloudpickle.register_pickle_by_value(spark_eoc)
cloudpickle.register_pickle_by_value(sqlite_sink)


def main(folder: str) -> None:
    spark = build_session()
    writer = Writer(sqlite_sink.SQLiteSink(f"{folder}/shop.db", "orders"), WriterOptions())
    query = (
        spark.readStream.schema("id BIGINT, v STRING")
        .option("maxFilesPerTrigger", 1)
        .json(f"{folder}/in")
        .repartition(2, "id")
        .writeStream.foreachBatch(writer)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
