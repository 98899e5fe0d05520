"""The package as a zip given with --py-files, on executors of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
import spark_eoc
assert ".zip" in spark_eoc.__file__, spark_eoc.__file__
from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.writer import LogWriter


class Shouting(spark_eoc.ReplayableSocketSource):
    # As in a notebook's cell: a class of __main__ on top of one of the package.
    @classmethod
    def name(cls):
        return "shouting"


folder = sys.argv[1]
writer = LogWriter.open(folder + "/buffer")
writer.append(LineBlock.from_lines([b"%d" % n for n in range(100)]), receive_time_us=1)
writer.sync()
spark_eoc.register(spark)
spark.dataSource.register(Shouting)
for name in ("replayable_socket", "shouting"):
    lines = (spark.readStream.format(name).option("bufferPath", folder + "/buffer")
             .option("minPartitions", 4).option("consumer", name).load())
    query = (lines.writeStream.format("memory").queryName(name)
             .option("checkpointLocation", folder + "/" + name).start())
    query.processAllAvailable()
    query.stop()
    values = sorted(int(row.value) for row in spark.table(name).collect())
    print(name, values == list(range(100)))
spark.stop()
"""


@pytest.mark.compat
def test_a_zip_is_enough_for_runner_and_executors(tmp_path):
    """S7: a Python streaming source given by --py-files alone dies at start with
    ModuleNotFoundError, since the source runner has no such path: it must travel by value."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT / "spark_eoc", copy / "spark_eoc", ignore=shutil.ignore_patterns("__pycache__")
    )
    archive = shutil.make_archive(str(tmp_path / "spark_eoc"), "zip", copy)
    shutil.rmtree(copy)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    submit = [shutil.which("spark-submit", path=str(Path(sys.executable).parent)) or "spark-submit"]
    done = subprocess.run(
        [
            *submit,
            *("--master", "local-cluster[2,1,1024]"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"),
            *("--py-files", archive),
            str(script),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "replayable_socket True" in done.stdout
    assert "shouting True" in done.stdout
