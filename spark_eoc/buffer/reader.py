"""Reading a buffer's extent without any lock: how far it goes, and which piece a task reads."""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from spark_eoc.buffer.directory import (
    Identity,
    list_segments,
    read_identity,
    read_segment_header,
    segment_path,
)
from spark_eoc.buffer.frame import (
    HEADER_BYTES,
    MAX_TABLE_BYTES,
    FrameHeader,
    Place,
    runs_length,
)
from spark_eoc.buffer.index import SegmentIndex
from spark_eoc.buffer.lock import boot_id
from spark_eoc.buffer.published import PublishedEnd, read_published, read_start
from spark_eoc.buffer.scan import ByteReader, scan_segment
from spark_eoc.buffer.segment import AFTER_GAP, SEGMENT_HEADER_BYTES
from spark_eoc.buffer.slices import Slice, split_ranges, without
from spark_eoc.errors import LogError, OffsetOutOfRangeError

LOG = logging.getLogger("spark_eoc.buffer")

_INDEXES_KEPT = 16


class LogReader:
    """Reads the buffer at ``path``, beside its writer and other readers, in any process.

    It never sees beyond the published end, so everything it sees is durable. It keeps no position
    of its own; what it caches are places of frames, which never change. One thread at a time.
    """

    def __init__(self, path: str | Path, *, boot: bytes | None = None) -> None:
        self.path = Path(path)
        self._boot = boot or boot_id()
        self._identity: Identity | None = None
        self._indexes: dict[int, SegmentIndex] = {}
        self._after_gap: dict[int, bool] = {}
        self._scanned: tuple[tuple[int, int, PublishedEnd | None], PublishedEnd] | None = None

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer, 32 hex digits. Raises LogError if there is no buffer."""
        return self._known_identity().buffer_id

    def start_offset(self) -> int:
        """First retained record."""
        start = read_start(self.path)
        if start is None:
            self._known_identity()
            start = min(list_segments(self.path), default=0)
        return start

    def end_offset(self) -> int:
        """One past the last durable record, by one read of a small file."""
        return self._published().end_offset

    def reach(self, offset: int) -> None:
        """Does nothing: the end is read anew each time it is asked for."""

    def epoch(self) -> int:
        """Epoch of the writer that published the end."""
        return self._published().epoch

    def epoch_of(self, offset: int) -> int:
        """Epoch of the writer that appended record ``offset``; at the end, of the one that
        published it. Raises OffsetOutOfRangeError outside of what is retained."""
        end = self._published()
        if offset == end.end_offset:
            return end.epoch
        self._check_range(offset, offset + 1, end)
        offset = self._behind_gap(offset)
        return end.epoch if offset >= end.end_offset else self._find(offset, end)[2].epoch

    def epoch_end(self, epoch: int) -> int:
        """One past the last record that epoch ``epoch`` or one before it appended.

        An offset above it, handed out under that epoch, belongs to a tail that was lost: its
        numbers have been used again, or will be.
        """
        end = self._published()
        bases = self._bases(end)
        low, high = 0, len(bases)
        while low < high:
            middle = (low + high) // 2
            header = read_segment_header(segment_path(self.path, bases[middle]))
            if header is not None and header.epoch <= epoch:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return bases[0]
        index = self._index(bases[low - 1])
        index.extend(*self._limits(low - 1, bases, end))
        for seen, first_offset in index.epochs:
            if seen > epoch:
                return first_offset
        return bases[low] if low < len(bases) else end.end_offset

    def bound(self, start: int, max_rows: int | None = None, max_bytes: int | None = None) -> int:
        """End of the next batch from ``start``: the durable end, or earlier, so that it holds at
        most ``max_rows`` records and ``max_bytes`` of lines, but one record where there is one."""
        published = self._published()
        end = published.end_offset
        if start >= end:
            return start
        if max_rows is not None:
            end = min(end, start + max(max_rows, 1))
        if max_bytes is not None:
            self._check_range(start, end, published)
            end = self._bound_bytes(start, end, max_bytes, published)
        return end

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Half-open ranges within ``[start, end)`` whose records a repair had to give up."""
        published = self._published()
        bases = self._bases(published)
        found = []
        for number, (base, following) in enumerate(pairwise(bases)):
            if following > start and base < end and self._is_after_gap(following):
                index = self._index(base)
                index.extend(*self._limits(number, bases, published))
                low, high = max(start, index.end_offset), min(end, following)
                found += [(low, high)] if low < high else []
        return found

    def split(
        self, start: int, end: int, partitions: int = 1, *, skip_gaps: bool = False
    ) -> list[Slice]:
        """Cuts ``[start, end)`` into about ``partitions`` slices of nearly equal count, none of
        them empty. Raises OffsetOutOfRangeError for a range that isn't retained and durable, or
        from which a repair had to give up records; with ``skip_gaps`` it leaves those out."""
        published = self._published()
        self._check_range(start, end, published)
        gaps = self.gaps(start, end)
        if gaps and not skip_gaps:
            raise OffsetOutOfRangeError(
                f"records {gaps[0][0]} to {gaps[0][1]} of buffer {self.path} were damaged, and a "
                "repair gave them up",
                next_step="set failOnDataLoss=false to go on without them",
                gaps=gaps,
            )
        if gaps:
            LOG.warning("buffer %s lacks records that a repair gave up: %s", self.path, gaps)
        return [
            self._slice(first, after, published)
            for first, after in split_ranges(without(start, end, gaps), partitions)
        ]

    def _slice(self, first: int, after: int, published: PublishedEnd) -> Slice:
        segment, position, header = self._find(first, published)
        return Slice(
            path=str(self.path),
            buffer_id=self.buffer_id,
            epoch=header.epoch,
            segment=segment,
            position=position,
            first_offset=first,
            count=after - first,
        )

    def _known_identity(self) -> Identity:
        if self._identity is None:
            self._identity = read_identity(self.path)
        if self._identity is None:
            raise LogError(
                f"there is no buffer at {self.path}",
                next_step="start a receiver or a query with host and port, or listen, on it",
                path=str(self.path),
            )
        return self._identity

    def _published(self) -> PublishedEnd:
        found = read_published(self.path)
        if found is not None and found.boot_id == self._boot:
            return found
        return self._scan_end(found)

    def _scan_end(self, published: PublishedEnd | None) -> PublishedEnd:
        """The end where no writer of this boot has published one: what is whole, and synced now."""
        identity = self._known_identity()
        for base in reversed(list_segments(self.path)):
            path = segment_path(self.path, base)
            header = read_segment_header(path)
            if header is None:
                continue  # a crash cut its creation short
            size = path.stat().st_size
            key = (base, size, published)
            if self._scanned is None or self._scanned[0] != key:
                with path.open("rb", buffering=0) as file:
                    os.fsync(file.fileno())
                    scan = scan_segment(
                        ByteReader(file.fileno()),
                        Place(SEGMENT_HEADER_BYTES, base, header.crc),
                        size,
                        identity.tag,
                    )
                epoch = max(scan.epoch, header.epoch, published.epoch if published else 0)
                place = scan.end
                found = PublishedEnd(place.offset, base, place.position, epoch, self._boot)
                self._scanned = (key, found)
            return self._scanned[1]
        return published or PublishedEnd(0, 0, 0, 0, self._boot)

    def _check_range(self, start: int, end: int, published: PublishedEnd) -> None:
        first = self.start_offset()
        if start < first or end > published.end_offset or start > end:
            raise OffsetOutOfRangeError(
                f"records {start} to {end} are not all in buffer {self.path}, which holds "
                f"{first} to {published.end_offset}",
                next_step="restore the buffer that belongs to this checkpoint, or set "
                "failOnDataLoss=false to go on with what is there",
                start=start,
                end=end,
                start_offset=first,
                end_offset=published.end_offset,
            )

    def _bases(self, end: PublishedEnd) -> list[int]:
        bases = [base for base in list_segments(self.path) if base <= end.segment]
        if not bases:
            raise OffsetOutOfRangeError(
                f"buffer {self.path} has no segment any more",
                next_step="restore the buffer that belongs to this checkpoint",
            )
        return bases

    def _limits(self, number: int, bases: list[int], end: PublishedEnd) -> tuple[int | None, int]:
        if number + 1 < len(bases):
            if self._is_after_gap(bases[number + 1]):
                return segment_path(self.path, bases[number]).stat().st_size, 0
            return None, bases[number + 1]
        return end.position, end.end_offset

    def _is_after_gap(self, base: int) -> bool:
        known = self._after_gap.get(base)
        if known is None:
            header = read_segment_header(segment_path(self.path, base))
            known = header is not None and bool(header.flags & AFTER_GAP)
            self._after_gap[base] = known
        return known

    def _behind_gap(self, offset: int) -> int:
        """``offset``, or the first record behind the gap that it lies in."""
        gaps = self.gaps(offset, offset + 1)
        if not gaps:
            return offset
        return next(base for base in list_segments(self.path) if base > offset)

    def _index(self, base: int) -> SegmentIndex:
        index = self._indexes.pop(base, None)
        if index is None:
            path = segment_path(self.path, base)
            index = SegmentIndex(path, base, self._known_identity().tag)
            for oldest in list(self._indexes)[: 1 - _INDEXES_KEPT]:
                del self._indexes[oldest]
        self._indexes[base] = index
        return index

    def _find(self, offset: int, end: PublishedEnd) -> tuple[int, int, FrameHeader]:
        bases = self._bases(end)
        number = max(bisect_right(bases, offset) - 1, 0)
        index = self._index(bases[number])
        position, header = index.find(offset, *self._limits(number, bases, end))
        return bases[number], position, header

    def _frames(
        self, start: int, end: int, published: PublishedEnd
    ) -> Iterator[tuple[int, int, FrameHeader]]:
        """(segment, position, header) of the frames that hold ``[start, end)``."""
        while (start := self._behind_gap(start)) < end:
            segment, position, header = self._find(start, published)
            bases = self._bases(published)
            limits = self._limits(bisect_right(bases, start) - 1, bases, published)
            for place, found in self._index(segment).hop(position, header.base_offset, *limits):
                if start >= end:
                    return
                if found.end_offset > start:
                    yield segment, place, found
                    start = found.end_offset

    def _bound_bytes(self, start: int, end: int, max_bytes: int, published: PublishedEnd) -> int:
        left = max_bytes
        for segment, position, header in self._frames(start, end, published):
            first = max(start, header.base_offset)
            if first == header.base_offset and header.data_length <= left:
                left -= header.data_length
                continue
            ends = self._line_ends(segment, position, header)
            low = first - header.base_offset
            reach = bisect_right(ends, ends[low] + left, low)
            last = header.base_offset + reach - 1
            if last < header.end_offset:
                return min(end, max(last, start + 1))
            left -= ends[-1] - ends[low]
        return end

    def _line_ends(self, segment: int, position: int, header: FrameHeader) -> tuple[int, ...]:
        place = position + HEADER_BYTES
        with segment_path(self.path, segment).open("rb", buffering=0) as file:
            skip = 0
            if header.runs:
                table = os.pread(file.fileno(), min(header.payload_length, MAX_TABLE_BYTES), place)
                skip = runs_length(table, header.runs)
            length = 4 * (header.records + 1)
            data = os.pread(file.fileno(), length, place + skip)
        return struct.unpack(f"<{header.records + 1}i", data)
