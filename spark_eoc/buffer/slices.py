"""A piece of the log that one task reads; travels to it pickled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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


Range = tuple[int, int]


def without(start: int, end: int, gaps: Sequence[Range]) -> list[Range]:
    """What is left of ``[start, end)`` beside rising, half-open gaps in it."""
    left = []
    for low, high in gaps:
        left.append((start, low))
        start = high
    return [(low, high) for low, high in [*left, (start, end)] if low < high]


def split_ranges(ranges: Sequence[Range], parts: int) -> list[Range]:
    """These ranges cut into ``parts`` of nearly equal count, or as many as there are records; a
    part that spans two of the ranges becomes two."""
    total = sum(high - low for low, high in ranges)
    parts = min(parts, total)
    cuts = [number * total // parts for number in range(parts + 1)] if parts else []
    pieces = []
    for first, after in pairwise(cuts):
        passed = 0
        for low, high in ranges:
            start = max(low, low + first - passed)
            end = min(high, low + after - passed)
            if start < end:
                pieces.append((start, end))
            passed += high - low
    return pieces
