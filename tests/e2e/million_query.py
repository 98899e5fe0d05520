"""Run as a script: ``million_query.py BUFFER CHECKPOINT MYSQL-URL``; every line into table t."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import spark_eoc
from spark_eoc import MySQLWriter


def main() -> None:
    buffer, checkpoint, url = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark_eoc.register(spark)
    lines = spark.readStream.format("replayable_socket").option("bufferPath", buffer)
    lines = lines.option("includeOffset", "true").option("maxRowsPerTrigger", "100000")
    writer = lines.load().writeStream.foreachBatch(MySQLWriter(url, table="t"))
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
