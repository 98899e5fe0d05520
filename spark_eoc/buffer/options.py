"""The settings of a segment log."""

from __future__ import annotations

from dataclasses import dataclass

from spark_eoc.errors import ConfigError

MIB = 1024 * 1024


@dataclass(frozen=True)
class BufferOptions:
    """Sizes and retention of a log; raises ConfigError for values that can't work.

    * ``segment_bytes``: the active segment is rolled once it holds this many.
    * ``max_buffer_bytes``: bound on the segments that aren't handed out to every consumer yet,
      at least four segments.
    * ``retention_ms``: how long a segment stays, counted from when it was sealed, after every
      consumer has committed it. Above zero by default, for checkpoints that are restored.
    * ``retention_bytes``: at most so many bytes are kept only because of ``retention_ms``.
    """

    segment_bytes: int = 64 * MIB
    max_buffer_bytes: int = 4096 * MIB
    retention_ms: int = 3_600_000
    retention_bytes: int = 1024 * MIB

    def __post_init__(self) -> None:
        if self.segment_bytes < 4096:
            raise ConfigError(
                f"segment_bytes is {self.segment_bytes}", next_step="use at least 4096"
            )
        if self.max_buffer_bytes < 4 * self.segment_bytes:
            raise ConfigError(
                f"max_buffer_bytes is {self.max_buffer_bytes}, less than four segments of "
                f"{self.segment_bytes} bytes",
                next_step=f"use at least {4 * self.segment_bytes}, or smaller segments",
            )
        if self.retention_ms < 0 or self.retention_bytes < 0:
            raise ConfigError("retention is negative", next_step="use 0 or more")
