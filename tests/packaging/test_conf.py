"""conf/spark-defaults.conf: every key has its reason, is known to Spark, and arrives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONF = Path(__file__).resolve().parents[2] / "conf" / "spark-defaults.conf"

SCRIPT = """
import json
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
find = spark.sparkContext._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
conf = dict(spark.sparkContext.getConf().getAll())
known = {key: find(key) is not None for key in conf}
rows = spark.range(10).repartition(2).count()
print("RESULT " + json.dumps({"conf": conf, "known": known, "rows": rows}))
"""


def settings() -> dict[str, str]:
    lines = (line.split(None, 1) for line in CONF.read_text().splitlines() if line[:1] not in "#")
    return {key: value.strip() for key, value in filter(None, lines)}


def test_each_key_has_its_reason_directly_above():
    """Nobody has to guess why a setting is there."""
    lines = CONF.read_text().splitlines()
    for number, line in enumerate(lines):
        if line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a Spark that was started with the file says of its settings."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "script.py").write_text(SCRIPT)
    submit = Path(sys.executable).parent / "spark-submit"
    result = subprocess.run(
        [str(submit), "--properties-file", str(CONF), str(folder / "script.py")],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    answers = [line for line in result.stdout.splitlines() if line.startswith("RESULT ")]
    assert answers, result.stderr[-3000:]
    return json.loads(answers[0].removeprefix("RESULT "))


def test_spark_starts_with_the_file_and_takes_every_setting(loaded):
    """The values that are written are those that a session sees, and it can work with them."""
    assert settings().items() <= loaded["conf"].items()
    assert loaded["rows"] == 10


def test_every_key_is_one_that_spark_knows(loaded):
    """A misspelled key would be ignored in silence."""
    assert [key for key in settings() if not loaded["known"][key]] == []
