"""What is handed to the log: lines in Arrow's binary layout, and who sent them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

BytesLike = bytes | bytearray | memoryview

#: Longest name of a producer, in bytes.
MAX_PRODUCER_BYTES = 255


@dataclass(frozen=True)
class Run:
    """``records`` consecutive lines of one producer, numbered from ``first_sequence`` on.

    ``producer`` is ``b""`` for a plain connection, which has no sequence numbers.
    """

    producer: bytes
    records: int
    first_sequence: int = 0


@dataclass(frozen=True)
class ProducerState:
    """The newest sequence number of a producer in the log, and when it was received."""

    last_sequence: int
    last_time_us: int


@dataclass(frozen=True)
class LineBlock:
    """Lines without their newlines: line ``i`` is ``data[offsets[i]:offsets[i + 1]]``.

    ``offsets`` holds ``n + 1`` little-endian int32, from 0 to ``len(data)``, never falling, as
    bytes. The records of ``runs`` add up to ``n``; without runs, all lines came in plainly.
    A block becomes one frame, so it is bounded by int32 at 2 GiB: split before.
    """

    data: BytesLike
    offsets: BytesLike
    runs: tuple[Run, ...] = ()

    @property
    def records(self) -> int:
        """Number of lines."""
        return memoryview(self.offsets).nbytes // 4 - 1

    @property
    def data_bytes(self) -> int:
        """Bytes of all lines."""
        return memoryview(self.data).nbytes

    @classmethod
    def from_lines(cls, lines: Iterable[bytes], runs: Sequence[Run] = ()) -> LineBlock:
        """A block of these lines; convenient, and too slow for the receiver's hot path."""
        kept = list(lines)
        ends = list(accumulate(map(len, kept), initial=0))
        return cls(b"".join(kept), struct.pack(f"<{len(ends)}i", *ends), tuple(runs))

    def lines(self) -> list[bytes]:
        """The lines, one by one."""
        data = bytes(self.data)
        ends = struct.unpack(f"<{self.records + 1}i", self.offsets)
        return [data[a:b] for a, b in pairwise(ends)]
