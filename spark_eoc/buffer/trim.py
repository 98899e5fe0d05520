"""Which segments may go; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_eoc.buffer.options import BufferOptions


@dataclass(frozen=True)
class SegmentAge:
    """A segment, its size in bytes and when it was sealed, in microseconds since 1970."""

    base_offset: int
    end_offset: int
    size: int
    sealed_us: int


def count_trimmable(
    sealed: Sequence[SegmentAge], committed: int, now_us: int, options: BufferOptions
) -> int:
    """Number of leading segments of ``sealed`` that may be deleted.

    Those that every consumer has committed, and that are older than the retention or beyond its
    bytes. Time that runs backwards only keeps more. The active segment isn't among ``sealed``.
    """
    done = [age for age in sealed if age.end_offset <= committed]
    kept = 0
    for age in reversed(done):
        kept += age.size
        old = now_us - age.sealed_us >= options.retention_ms * 1000
        if old or kept > options.retention_bytes:
            return done.index(age) + 1
    return 0
