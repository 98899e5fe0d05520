"""The module by which Spark finds the source itself, once the package is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
import sys
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
         .config("spark.driver.host", "127.0.0.1").getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
lines = spark.readStream.format("replayable_socket").option("bufferPath", sys.argv[1]).load()
print("SCHEMA", lines.schema.simpleString())
import spark_eoc
spark_eoc.register(spark)
again = spark.readStream.format("replayable_socket").option("bufferPath", sys.argv[1]).load()
for name, frame in (("found", lines), ("registered", again)):
    query = (frame.writeStream.format("memory").queryName(name)
             .option("checkpointLocation", sys.argv[2] + name).start())
    query.processAllAvailable()
    query.stop()
    print(name, [row.value for row in spark.table(name).collect()])
"""

FILL = """
import sys
from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.writer import LogWriter
writer = LogWriter.open(sys.argv[1])
writer.append(LineBlock.from_lines([b"a", b"b"]), receive_time_us=1)
writer.sync()
writer.close()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site folder with what the wheel installs; that the wheel holds it is tested there."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "spark_eoc", folder / "spark_eoc")
    shutil.move(folder / "spark_eoc" / "autoload", folder / "pyspark_eoc")
    return folder


def test_it_imports_next_to_nothing_and_cannot_raise(site, tmp_path):
    """S6: one module of this kind that raises hides all others of every vendor."""
    code = (
        "import sys, pyspark.sql.datasource\n"
        "before = set(sys.modules)\n"
        "import pyspark_eoc\n"
        "print(sorted(set(sys.modules) - before), pyspark_eoc.DefaultSource.name())"
    )
    assert run(site, tmp_path, code).strip() == "['pyspark_eoc'] replayable_socket"
    broken = (
        "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
        "import pyspark_eoc; print(hasattr(pyspark_eoc, 'DefaultSource'))"
    )
    assert run(site, tmp_path, broken).strip() == "False"


@pytest.mark.compat
def test_the_format_is_found_without_register_which_does_no_harm_afterwards(site, tmp_path):
    """S6: installed is enough. Some versions refuse to replace what they have found."""
    run(site, tmp_path, FILL, tmp_path / "buffer")
    out = run(site, tmp_path, USE, tmp_path / "buffer", tmp_path / "checkpoint")
    assert "SCHEMA struct<value:string>" in out
    assert "found ['a', 'b']" in out
    assert "registered ['a', 'b']" in out


def run(site, cwd, code, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
