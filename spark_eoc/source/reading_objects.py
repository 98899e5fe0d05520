"""A task's part where the buffer is in an object store; what travels only for such a buffer."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_eoc.buffer.objects.read import read_object_slice
from spark_eoc.buffer.slices import Slice
from spark_eoc.source.reading import TaskReader, read_records


class ObjectTaskReader(TaskReader):
    """Reads a slice straight from the object store, with the executor's own credentials."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one slice as Arrow batches; all of them, or an error."""
        return read_records(Slice(*partition.value), self._options, read_object_slice)
