"""The Spark session of tests: small, quick, quiet, all in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

#: Nothing that a test does should wait for a default that is meant for a cluster.
SETTINGS = {
    "spark.master": "local[2]",
    "spark.app.name": "spark_eoc tests",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
}


def build_session(settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with SETTINGS, overridden by ``settings``; it logs errors only."""
    builder: Any = SparkSession.builder  # type: ignore[attr-defined, unused-ignore]
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
