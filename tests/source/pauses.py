"""Run as a script: queries with long pauses between triggers, on impatient timeouts.

``pauses.py FOLDER PORT SECONDS COMMAND-FILE``: what foreachBatch sees goes to FOLDER/seen, one
JSON object a batch. When COMMAND-FILE says ``stop`` the query is stopped, and started again when it
says ``start``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import spark_eoc

#: All that makes Spark give up a Python process that is silent, as low as it goes.
IMPATIENT = {
    "spark.python.authenticate.socketTimeout": "1s",
    "spark.python.worker.idleTimeoutSeconds": "1",
    "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "1",
}


def main() -> None:
    folder, port, seconds, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1")
    for name, value in IMPATIENT.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark_eoc.register(spark)

    def see(frame, batch_id):
        rows = [row.value for row in frame.collect()]
        with (folder / "seen").open("a") as file:
            file.write(json.dumps({"batch": batch_id, "time": time.time(), "rows": rows}) + "\n")
        if rows == ["slow"]:
            time.sleep(3)

    def start():
        lines = spark.readStream.format("replayable_socket")
        lines = lines.option("listen", f"127.0.0.1:{port}").option("bufferPath", f"{folder}/buffer")
        writer = lines.load().writeStream.foreachBatch(see)
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        return writer.trigger(processingTime=f"{seconds} seconds").start()

    query, said = start(), "start"
    while query is None or query.isActive:
        time.sleep(0.05)
        wanted = command.read_text() if command.exists() else said
        if wanted != said:
            said = wanted
            if said == "stop":
                query.stop()
                (folder / "stopped").touch()
                query = None
            else:
                query = start()
    sys.exit(f"the query ended: {query.exception()}")


if __name__ == "__main__":
    main()
