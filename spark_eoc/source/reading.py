"""A task's part: one slice of the log as Arrow record batches, complete, with text checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from spark_eoc.buffer.read import read_slice
from spark_eoc.buffer.slices import Slice
from spark_eoc.errors import LogError
from spark_eoc.failpoints import hit
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.text import text_rule

FORMAT_NAME = "replayable_socket"


class TaskSource(DataSource):
    """What travels to a task in place of the source: Spark only asks it for its name there."""

    def __init__(self) -> None:
        super().__init__({})

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME


class TaskReader(DataSourceStreamReader):
    """What travels to a task: enough to read, and nothing of planning and receiving.

    Code travels with every task. With the log's writer and the receiver it was three times as
    much, and loading it took most of the time that a small partition costs.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one slice as Arrow batches; all of them, or an error."""
        return read_records(Slice(*partition.value), self._options, read_slice)


def read_records(
    part: Slice, options: SourceOptions, read: Callable[..., Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yields exactly ``part.count`` rows in order, or raises; never fewer.

    Columns are ``value``, and as the options say ``timestamp`` (UTC, microseconds) and
    ``offset``. ``read`` is the buffer's way to read a slice: it verifies what it reads, and waits
    for what isn't shown to this host yet.
    """
    hit("source.read_partition")
    rule = text_rule(options.encoding_errors)
    offset = part.first_offset
    for batch in read(part, timestamp=options.include_timestamp, offset=options.include_offset):
        columns = [rule(batch.column(0), offset), *batch.columns[1:]]
        yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        offset += batch.num_rows
    if offset != part.end_offset:
        raise LogError(
            f"the log gave {offset - part.first_offset} of the {part.count} records from "
            f"{part.first_offset} on",
            applied="nothing of this partition",
            next_step=f"check the buffer: spark-eoc buffer verify {part.path}",
        )
