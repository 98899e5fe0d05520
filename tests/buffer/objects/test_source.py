"""A query on real Spark whose buffer is in S3: received, restarted, read in its tasks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.testing.ports import free_port

SCRIPT = """
import sys, time
from pyspark.sql import SparkSession
import spark_eoc
from spark_eoc.producer import LineProducer

url, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.sql.shuffle.partitions", "1").getOrCreate())
spark_eoc.register(spark)
seen = []

def run(first, end, **options):
    reader = spark.readStream.format("replayable_socket").option("bufferPath", url)
    reader = reader.option("includeOffset", "true").option("maxRowsPerPartition", "700")
    for name, value in options.items():
        reader = reader.option(name, value)
    query = (reader.load().writeStream.option("checkpointLocation", folder + "/checkpoint")
             .foreachBatch(lambda frame, _: seen.extend(frame.collect())).start())
    if options:
        while True:
            try:
                producer = LineProducer("127.0.0.1", port, "lines")
                break
            except Exception:
                time.sleep(0.1)
        with producer:
            for number in range(first, end):
                producer.send(f"line {number}")
            producer.flush(60)
    end_time = time.monotonic() + 90
    while len(seen) < end and query.isActive and time.monotonic() < end_time:
        time.sleep(0.1)
    if query.exception():
        raise query.exception()
    query.processAllAvailable()
    query.stop()

run(0, 2000, listen=f"127.0.0.1:{port}")
run(2000, 3000, listen=f"127.0.0.1:{port}")
assert sorted(row.offset for row in seen) == list(range(3000)), len(seen)
assert all(row.value == f"line {row.offset}" for row in seen)

# A follower, which receives nothing itself, with a checkpoint of its own.
seen.clear()
folder += "/follower"
spark.conf.set("spark.sql.shuffle.partitions", "1")
reader = spark.readStream.format("replayable_socket").option("bufferPath", url)
query = (reader.option("consumer", "follower").load().writeStream
         .trigger(availableNow=True).option("checkpointLocation", folder)
         .foreachBatch(lambda frame, _: seen.extend(frame.collect())).start())
query.awaitTermination(90)
assert [row.value for row in seen] == [f"line {number}" for number in range(3000)], len(seen)
print("all there")
"""


def test_a_query_on_s3_reads_every_line_once_also_after_a_restart(s3_url, tmp_path):
    """Received over the acknowledged protocol, stored in S3, read by the tasks themselves; the
    second run takes the buffer and the position over and goes on; a second query follows."""
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.getcwd(),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, s3_url, str(free_port()), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["all there"], done.stderr[-4000:]
    assert "very-secret-indeed" not in done.stdout + done.stderr
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or b"very-secret-indeed" not in file.read_bytes()
