"""The durable buffer: a segment log of lines, which knows nothing of Spark.

Guarantees, on a local POSIX file system that keeps what it has synced:

* A line below the offset that :meth:`LogWriter.sync` returned survives every crash of processes,
  kernel and power, stays the same bytes, and keeps its offset and its time of receipt for ever.
* Readers see durable lines only, in order, each once; they take no lock.
* Recovery cuts only what was never acknowledged, and keeps a copy of that. Where anything else is
  damaged or missing it raises :class:`~spark_eoc.errors.CorruptLogError` and changes nothing.
* A number that was handed out is never given to another line unnoticed: each writer has its
  epoch, in every frame.
* A segment is deleted only after every consumer has committed it and its retention is over.

Not promised: lines that were appended but not synced; a file system that lies about fsync, or one
shared by machines that don't see each other's locks; a whole buffer put back to an earlier copy
(readers refuse where offset or epoch tell it; a copy that has caught up under the same epoch looks
right). Where a disk has lost what was acknowledged, :func:`repair` gives up exactly that: its
numbers stay a gap, which readers are told of.

``interface.py`` says what receiver and source need of any buffer; ``objects/`` is the one in an
object store, and ``opening.py`` chooses by the path. Here, ``frame.py`` draws the bytes,
``files.py`` holds all rules of durability, ``recover.py`` those of recovery.
"""

from spark_eoc.buffer.block import LineBlock, ProducerState, Run
from spark_eoc.buffer.columns import schema
from spark_eoc.buffer.consumers import (
    ConsumerPosition,
    Position,
    read_positions,
    remove_consumer,
)
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.read import read_slice
from spark_eoc.buffer.reader import LogReader
from spark_eoc.buffer.repair import RepairReport, repair
from spark_eoc.buffer.slices import Slice
from spark_eoc.buffer.verify import LogReport, SegmentReport, verify
from spark_eoc.buffer.writer import LogWriter

__all__ = [
    "BufferOptions",
    "ConsumerPosition",
    "LineBlock",
    "LogReader",
    "LogReport",
    "LogWriter",
    "Position",
    "ProducerState",
    "RepairReport",
    "Run",
    "SegmentReport",
    "Slice",
    "read_positions",
    "read_slice",
    "remove_consumer",
    "repair",
    "schema",
    "verify",
]
