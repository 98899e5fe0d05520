"""Calls a writer as ``foreachBatch`` would, without the 100 ms of a streaming trigger."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class Query:
    """A query id and a run id in Spark's local properties, where the engine puts them."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.query_id = str(uuid.uuid4())
        self.run_id = str(uuid.uuid4())

    def restart(self) -> None:
        """The same checkpoint in a new run."""
        self.run_id = str(uuid.uuid4())

    def call(self, writer: Callable[[DataFrame, int], None], df: DataFrame, batch_id: int) -> None:
        """One call of the writer, as a batch of this run."""
        with self._properties():
            writer(df, batch_id)

    @contextmanager
    def _properties(self) -> Iterator[None]:
        context: Any = self.spark.sparkContext
        context.setLocalProperty("sql.streaming.queryId", self.query_id)
        context.setLocalProperty("spark.jobGroup.id", self.run_id)
        try:
            yield
        finally:
            context.setLocalProperty("sql.streaming.queryId", None)
            context.setLocalProperty("spark.jobGroup.id", None)
