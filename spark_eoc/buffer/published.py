"""The published end: how far the log is durable, and so how far anybody may read.

The writer publishes after each fsync, by one write that readers see whole (``slots.py``). The file
itself isn't synced each time; after a restart of the machine it may be *behind*, never ahead,
so the record carries the boot id, and a reader of another boot doesn't take it for the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_eoc.buffer.layout import Layout
from spark_eoc.buffer.slots import read_slots

PUBLISHED_NAME = "published"
PUBLISHED_MAGIC = b"EOCE"
START_NAME = "start"
START_MAGIC = b"EOCS"

_PUBLISHED = Layout("<QQQI16s")
_START = Layout("<Q")


@dataclass(frozen=True)
class PublishedEnd:
    """Every record below ``end_offset`` is durable, and every byte of ``segment`` below
    ``position``; ``epoch`` is that of the writer that says so."""

    end_offset: int
    segment: int
    position: int
    epoch: int
    boot_id: bytes

    def pack(self) -> bytes:
        """Content of the slot file."""
        return _PUBLISHED.pack(
            self.end_offset, self.segment, self.position, self.epoch, self.boot_id
        )


def read_published(directory: Path) -> PublishedEnd | None:
    """The newest record; None if there is none that is whole."""
    record = read_slots(directory / PUBLISHED_NAME, PUBLISHED_MAGIC)
    if record is None:
        return None
    return PublishedEnd(*_PUBLISHED.unpack(record.content[: _PUBLISHED.size]))


def read_start(directory: Path) -> int | None:
    """The start pointer; None if there is none that is whole."""
    record = read_slots(directory / START_NAME, START_MAGIC)
    return None if record is None else unpack_start(record.content)


def pack_start(start_offset: int) -> bytes:
    """Content of the start pointer's slot file."""
    return _START.pack(start_offset)


def unpack_start(content: bytes) -> int:
    """The start offset in the start pointer's content."""
    return int(_START.unpack(content[: _START.size])[0])
