"""What the receiver needs of a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_eoc.buffer.block import LineBlock, ProducerState
from spark_eoc.buffer.options import BufferOptions


class Log(Protocol):
    """What the receiver needs of a ``LogWriter``."""

    @property
    def options(self) -> BufferOptions:
        """Its sizes."""

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer."""

    @property
    def producers(self) -> Mapping[bytes, ProducerState]:
        """What is appended of each producer."""

    def append(self, block: LineBlock, *, receive_time_us: int) -> int:
        """Adds one frame, not durable yet; LogFullError leaves the log as it was."""

    def sync(self) -> int:
        """Makes all that is appended durable."""

    def room(self, nbytes: int) -> bool:
        """Whether a frame of so many bytes may be added now."""

    def apply_trim(self) -> object:
        """Drops what every consumer has done with; LogError if the disk refuses for now."""
