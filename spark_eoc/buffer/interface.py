"""What a buffer is to the receiver and the source, whatever it is kept on.

Two implementations keep these promises, and pass the same contract tests: the segment log on a
POSIX disk (:mod:`spark_eoc.buffer`), and chunks in an object store
(:mod:`spark_eoc.buffer.objects`). :mod:`spark_eoc.buffer.opening` chooses by the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_eoc.buffer.block import LineBlock, ProducerState
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.slices import Slice


class BufferWriter(Protocol):
    """The one writer: a line is durable, and readers see it, once :meth:`sync` has returned an
    offset above its own. After any failure but LogFullError it takes nothing more
    (LogClosedError, or FencedError where another writer took over), and a new one recovers.

    ``append`` and what trims belong to one thread; ``sync`` may run in another beside them.
    """

    @property
    def options(self) -> BufferOptions:
        """Its sizes and its retention."""

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer, 32 hex digits."""

    @property
    def epoch(self) -> int:
        """Number of this writer; each start takes a higher one."""

    @property
    def start_offset(self) -> int:
        """First retained record."""

    @property
    def end_offset(self) -> int:
        """One past the last durable record; without any input or output."""

    @property
    def next_offset(self) -> int:
        """One past the last appended record."""

    @property
    def producers(self) -> Mapping[bytes, ProducerState]:
        """Newest sequence number of every producer, appended ones included."""

    @property
    def failure(self) -> str | None:
        """Why it takes nothing more; None while it is healthy."""

    def append(self, block: LineBlock, *, receive_time_us: int) -> int:
        """Adds the lines as one frame, not durable yet; returns the offset of the first."""

    def sync(self) -> int:
        """Makes everything appended before the call durable; the end offset."""

    def room(self, nbytes: int) -> bool:
        """True if ``nbytes`` more fit into ``max_buffer_bytes``."""

    def apply_trim(self) -> int:
        """Deletes what every consumer has committed and retention doesn't keep; the start
        offset, which is durable before anything is deleted."""

    def expire_producers(self, before_us: int) -> int:
        """Forgets the numbers of producers that sent nothing since ``before_us``, but not that
        there were such names; how many. Durable after the next sync."""

    def close(self) -> None:
        """Makes durable what was appended, and ends."""


class BufferReader(Protocol):
    """The extent of a buffer, as any process may read it beside the writer and other readers.
    It sees durable records only, and keeps no position."""

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer. Raises LogError if there is none."""

    def start_offset(self) -> int:
        """First retained record."""

    def end_offset(self) -> int:
        """One past the last durable record; may be asked 100 times a second."""

    def reach(self, offset: int) -> None:
        """The caller has heard that records below ``offset`` are durable: what was kept in
        memory about the end is looked up again if it is lower."""

    def epoch_of(self, offset: int) -> int:
        """Epoch of the writer that appended record ``offset``; at the end, the newest."""

    def epoch_end(self, epoch: int) -> int:
        """One past the last record that epoch ``epoch`` or one before it appended."""

    def bound(self, start: int, max_rows: int | None = None, max_bytes: int | None = None) -> int:
        """End of the next batch from ``start`` within these limits, but one record at least."""

    def split(
        self, start: int, end: int, partitions: int = 1, *, skip_gaps: bool = False
    ) -> list[Slice]:
        """Cuts ``[start, end)`` into about ``partitions`` slices, none of them empty."""


class BufferPosition(Protocol):
    """How far one consumer has come. Positions only go forward, but for :meth:`rewind`."""

    @property
    def committed(self) -> int:
        """Records below are never asked for again by this consumer."""

    @property
    def handed_out(self) -> int:
        """One past the last record that was planned into a batch."""

    @property
    def held(self) -> bool:
        """True if this reader, and no other, moves the position."""

    def hand_out(self, offset: int) -> bool:
        """Records below ``offset`` are planned; False, and nothing done, if it isn't held."""

    def commit(self, offset: int) -> bool:
        """Records below ``offset`` are done with; False, and nothing done, if it isn't held."""

    def rewind(self, offset: int) -> bool:
        """Records from ``offset`` on are asked for again; False if it isn't held."""

    def close(self) -> None:
        """Lets go; the position stays."""
