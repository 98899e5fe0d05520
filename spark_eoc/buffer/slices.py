"""A piece of the log that one task reads; travels to it pickled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Records ``first_offset`` up to, not including, ``end_offset``; exactly ``count`` of them.

    ``segment`` and ``position`` name the frame that holds the first one: base offset of its
    segment and its place there in bytes; ``epoch`` is that frame's.
    """

    path: str
    buffer_id: str
    epoch: int
    segment: int
    position: int
    first_offset: int
    count: int

    @property
    def end_offset(self) -> int:
        """One past the last record."""
        return self.first_offset + self.count
