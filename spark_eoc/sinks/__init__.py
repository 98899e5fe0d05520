"""Writers for ``foreachBatch`` that write each batch exactly once, and what a new one builds on."""

from spark_eoc.sinks.store import Column, Sink
from spark_eoc.sinks.writer import Writer, WriterOptions

__all__ = ["Column", "Sink", "Writer", "WriterOptions"]
