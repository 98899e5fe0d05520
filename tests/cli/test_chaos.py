"""``spark-eoc chaos``: a script of a user's own, under kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_eoc.testing.wait import until

CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]

SCRIPT = """
import sys, time
import spark_eoc
from pyspark.sql import SparkSession, functions as F

listen, buffer, checkpoint, url, plain = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark_eoc.register(spark)
lines = (spark.readStream.format("replayable_socket")
         .option("listen", listen).option("bufferPath", buffer).load())

def count_plainly(rows):
    import redis
    client = redis.Redis.from_url(url)
    for row in rows:
        client.incr("word:" + row.value)
        time.sleep(0.005)  # a server that is not next door

def write(batch, batch_id):
    batch.foreachPartition(count_plainly)

if plain == "ledger":
    counted = lines.select("value", F.lit(1).alias("n"))
    writer = spark_eoc.RedisWriter(url, key="word:{value}", command="incrby", value="n")
    stream = counted.writeStream.foreachBatch(writer)
else:
    stream = lines.writeStream.foreachBatch(write)
stream.option("checkpointLocation", checkpoint).start().awaitTermination()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "count.py"
    path.write_text(SCRIPT)
    (tmp_path / "lines.txt").write_text("".join(f"w{n % 97}\n" for n in range(1500)))
    return path


def chaos(script: Path, kind: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*CLI, "chaos", str(script), "--feed", "listen"]
    command += ["--lines", str(script.parent / "lines.txt"), "--redis", "--json"]
    command += ["--keys", "word:*", "--counters", "--kills", "1", "--kinds", "jvm", *more]
    command += ["--", "{listen}", "{buffer}", "{checkpoint}", "{redis_url}", kind]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=script.parent)


@pytest.mark.timeout(400)
def test_a_script_with_the_ledger_is_exactly_once(script: Path) -> None:
    """Exit code 0, one JSON object, and a page that names no other."""
    done = chaos(script, "ledger", "--report", "report.html", "--seed", "7")
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    found = json.loads(done.stdout)
    assert (found["exactly_once"], found["seed"], found["kills"]) == (True, 7, {"jvm": 1})
    assert found["verdict"]["in_sink"] == 1500
    assert found["history"]["batches"]["query"]
    page = (script.parent / "report.html").read_text()
    assert "<h1>Exactly once</h1>" in page
    assert "http" not in page


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plain_script_is_found_out(script: Path) -> None:
    """Exit code 1, and what was counted twice."""
    done = chaos(script, "plain", "--kills", "3")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "twice" in done.stdout


def test_a_killed_run_leaves_no_folder(tmp_path: Path) -> None:
    """Nor processes; with SIGKILL nobody is there to clear up but the reaper."""
    (tmp_path / "wait.py").write_text("import time; time.sleep(100)")
    (tmp_path / "rows.py").write_text("read = list")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [*CLI, "chaos", "wait.py", "--rows-from", "rows:read"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE
    ) as running:
        assert running.stderr is not None
        assert b"run 1 started" in running.stderr.readline()
        assert list(temporary.iterdir())
        running.kill()
    until(lambda: not list(temporary.iterdir()), 30, "the temporary folder gone")
