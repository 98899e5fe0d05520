"""Where a partition's operations are cut into chunks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

#: Bytes of keys and values in one script; one operation may be larger and then goes alone.
CHUNK_BYTES = 8 * 1024 * 1024
#: Arguments in one script; Redis 6.2 takes no more than 1,048,576.
CHUNK_ARGUMENTS = 400_000


@dataclass(frozen=True)
class Cutter:
    """Cuts operations, of which those with equal keys are adjacent, at a key's end if possible.

    A cut between two keys leaves a well-defined set of rows before it, so that a repeat whose rows
    arrive in another order can go on there. Only a key with more operations than one chunk takes
    is cut inside.
    """

    size_sums: memoryview
    key_ends: memoryview | range
    chunk_rows: int
    chunk_bytes: int = CHUNK_BYTES

    @classmethod
    def of(cls, keys: pa.Array, sizes: pa.Array, chunk_rows: int, arguments: int) -> Cutter:
        """``sizes`` are bytes an operation, ``arguments`` the script arguments of each."""
        rows = max(1, min(chunk_rows, CHUNK_ARGUMENTS // max(1, arguments)))
        return cls(_numbers(pc.cumulative_sum(sizes.cast(pa.int64()))), _key_ends(keys), rows)

    def end(self, start: int) -> int:
        """One past the last operation of the chunk that begins at ``start``."""
        total = len(self.size_sums)
        before = self.size_sums[start - 1] if start else 0
        end = bisect_right(self.size_sums, before + self.chunk_bytes, lo=start)
        end = min(total, max(start + 1, min(end, start + self.chunk_rows)))
        return end if end == total else self.key_end(start, end)

    def key_end(self, start: int, end: int) -> int:
        """The last key's end in ``(start, end]``; ``end`` if there is none."""
        at = bisect_right(self.key_ends, end)
        key_end = self.key_ends[at - 1] if at else 0
        return key_end if key_end > start else end


def _key_ends(keys: pa.Array) -> memoryview | range:
    """Positions at which another key begins, ascending."""
    if len(keys) < 2:
        return range(0)
    changes = pc.indices_nonzero(pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)))
    if len(changes) == len(keys) - 1:
        return range(1, len(keys))
    return _numbers(pc.add(changes.cast(pa.int64()), 1))


def _numbers(values: pa.Array) -> memoryview:
    """An int64 array as a sequence that bisect can search."""
    _, data = values.buffers()
    if data is None or not len(values):
        return memoryview(b"").cast("q")
    return memoryview(data).cast("q")[values.offset : values.offset + len(values)]
