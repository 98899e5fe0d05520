"""``format("replayable_socket")``: lines from a socket, durable and replayable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_eoc.errors import ConfigError
from spark_eoc.source.options import SourceOptions, parse_options
from spark_eoc.source.reader import ReplayableSocketReader
from spark_eoc.source.reading import FORMAT_NAME, TaskSource


class ReplayableSocketSource(DataSource):
    """Lines from a TCP socket that survive a restart: each is kept on disk until it is done.

    Every line that the buffer has acknowledged is in exactly one batch, and a batch that is run
    again holds the same lines in the same partitions, whatever has been killed in between.
    Columns: ``value STRING`` (BINARY with ``encodingErrors=binary``), and on demand ``timestamp
    TIMESTAMP``, the time of receipt, and ``offset BIGINT``, the line's number in the buffer.

    Give ``host`` and ``port`` to read from a server, ``listen`` to accept senders, or neither to
    only read a buffer that something else fills; and always ``bufferPath``.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        """Checks every option; raises ConfigError. Neither connects nor locks."""
        self.source_options: SourceOptions = parse_options(options)
        self._is_planned = False

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        """The columns as DDL, all nullable, as those of Spark's own socket source are."""
        return columns_of(self.source_options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader; several processes make one each, so it opens nothing yet."""
        found = ", ".join(f"{column.name} {column.dataType.simpleString().upper()}"
                          for column in schema)  # fmt: skip
        if found != columns_of(self.source_options):
            raise ConfigError(
                f"the frame was given the schema ({found}), and the source has "
                f"({columns_of(self.source_options)})",
                next_step="leave out .schema(...), and use includeTimestamp, includeOffset and "
                "encodingErrors=binary to choose columns",
            )
        self._is_planned = True
        return ReplayableSocketReader(self.source_options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Once the reader is made, Spark pickles the source only beside it, for its tasks.
        if self._is_planned and type(self) is ReplayableSocketSource:
            return TaskSource, ()
        return super().__reduce_ex__(protocol)


def columns_of(options: SourceOptions) -> str:
    """The columns of a frame with these options, as DDL."""
    value = "value BINARY" if options.encoding_errors == "binary" else "value STRING"
    timestamp = ", timestamp TIMESTAMP" if options.include_timestamp else ""
    offset = ", offset BIGINT" if options.include_offset else ""
    return value + timestamp + offset
