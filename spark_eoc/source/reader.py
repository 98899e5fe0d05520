"""The stream reader that Spark talks to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_eoc.source.options import SourceOptions


class ReplayableSocketReader(DataSourceStreamReader):
    """Filled in next."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, Any]:
        return {"x": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        return {"x": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(i) for i in range(start["x"], end["x"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"value": ["a", "b"]})
