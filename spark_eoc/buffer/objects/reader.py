"""Reading the extent of a buffer in an object store, beside its writer, from any process."""

from __future__ import annotations

import logging
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spark_eoc.buffer.frame import DATA, HEADER_BYTES, data_layout
from spark_eoc.buffer.objects.chunk import ChunkHeader, check_chunk, corrupt_chunk, frames_of
from spark_eoc.buffer.objects.extent import (
    Extent,
    chunk_name,
    find_extent,
    read_buffer_id,
    read_header,
    read_start,
)
from spark_eoc.buffer.objects.store import Objects, ObstoreObjects
from spark_eoc.buffer.slices import Slice, split_ranges
from spark_eoc.errors import LogError, OffsetOutOfRangeError

LOG = logging.getLogger("spark_eoc.buffer")

#: How often the store is asked for what is new, at the most.
POLL_SECONDS = 0.5
_HEADERS_KEPT = 4096


class ObjectReader:
    """Reads the buffer at ``url``; as ``BufferReader`` promises. One thread at a time.

    What a chunk holds never changes, so headers are kept in memory. Where the buffer ends is asked
    for at most each ``poll_seconds``: until then a record that another process has made durable
    may not be seen. :meth:`reach` asks at once.
    """

    def __init__(
        self,
        url: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        objects: Objects | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes no request. ``objects`` and ``monotonic`` replace store and clock, in tests."""
        self._objects = objects or ObstoreObjects(url)
        self.path = self._objects.url
        self._poll_seconds = poll_seconds
        self._monotonic = monotonic
        self._id: bytes | None = None
        self._seen: Extent | None = None
        self._looked = float("-inf")
        self._headers: dict[int, ChunkHeader] = {}
        self._ends: tuple[int, list[int]] | None = None

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer, 32 hex digits. Raises LogError if there is no buffer."""
        return self._known_id().hex()

    def start_offset(self) -> int:
        """First retained record."""
        return self._extent().start.offset

    def end_offset(self) -> int:
        """One past the last durable record, as of at most ``poll_seconds`` ago."""
        last = self._extent().last
        return 0 if last is None else last.end_offset

    def reach(self, offset: int) -> None:
        """Asks the store at once if the end is known to be below ``offset`` only."""
        if self._seen is None or self._seen.last is None or self._seen.last.end_offset < offset:
            self._look()

    def epoch(self) -> int:
        """Epoch of the newest writer."""
        last = self._extent().last
        return 0 if last is None else last.epoch

    def epoch_of(self, offset: int) -> int:
        """Epoch of the writer that appended record ``offset``; at the end, the newest. Raises
        OffsetOutOfRangeError outside of what is retained."""
        if offset == self.end_offset():
            return self.epoch()
        self._check_range(offset, offset + 1)
        return self._find(offset).epoch

    def epoch_end(self, epoch: int) -> int:
        """One past the last record that epoch ``epoch`` or one before it appended."""
        last = self._extent().last
        if last is None or last.epoch <= epoch:
            return self.end_offset()
        return self._first(lambda header: header.epoch > epoch).base_offset

    def bound(self, start: int, max_rows: int | None = None, max_bytes: int | None = None) -> int:
        """End of the next batch from ``start``: the durable end, or earlier, so that it holds at
        most ``max_rows`` records and ``max_bytes`` of lines, but one record where there is one."""
        end = self.end_offset()
        if start >= end:
            return start
        if max_rows is not None:
            end = min(end, start + max(max_rows, 1))
        if max_bytes is not None:
            self._check_range(start, end)
            end = self._bound_bytes(start, end, max_bytes)
        return end

    def split(
        self,
        start: int,
        end: int,
        partitions: int = 1,
        *,
        skip_gaps: bool = False,
    ) -> list[Slice]:
        """Cuts ``[start, end)`` into ``partitions`` slices of nearly equal count, none of them
        empty. Raises OffsetOutOfRangeError for a range that isn't retained and durable. There are
        no gaps here: nothing is ever given up."""
        self._check_range(start, end)
        return [self._slice(low, high) for low, high in split_ranges([(start, end)], partitions)]

    def _slice(self, first: int, after: int) -> Slice:
        header = self._find(first)
        return Slice(
            path=self.path,
            buffer_id=self.buffer_id,
            epoch=header.epoch,
            segment=header.number,
            position=header.frames_at,
            first_offset=first,
            count=after - first,
        )

    def _known_id(self) -> bytes:
        if self._id is None:
            with _as_log_error(self.path):
                self._id = read_buffer_id(self._objects)
        if self._id is None:
            raise LogError(
                f"there is no buffer at {self.path}",
                next_step="start a receiver or a query with host and port, or listen, on it",
                path=self.path,
            )
        return self._id

    def _extent(self) -> Extent:
        if self._seen is not None and self._monotonic() - self._looked < self._poll_seconds:
            return self._seen
        try:
            return self._look()
        except LogError as error:
            if self._seen is None or not isinstance(error.__cause__, OSError):
                raise
            LOG.warning("%s; going on with what is known", error)
            self._looked = self._monotonic()
            return self._seen

    def _look(self) -> Extent:
        buffer_id = self._known_id()
        known = self._seen.last if self._seen is not None else None
        with _as_log_error(self.path):
            seen = find_extent(self._objects, buffer_id, known)
        if seen.last is not None:
            self._keep(seen.last)
        self._seen, self._looked = seen, self._monotonic()
        return seen

    def _keep(self, header: ChunkHeader) -> None:
        self._headers[header.number] = header
        while len(self._headers) > _HEADERS_KEPT:
            del self._headers[next(iter(self._headers))]

    def _header(self, number: int) -> ChunkHeader:
        header = self._headers.get(number)
        if header is None:
            with _as_log_error(self.path):
                header = read_header(self._objects, number, self._known_id())
            if header is None:
                raise self._gone(number)
            self._keep(header)
        return header

    def _gone(self, number: int) -> LogError:
        with _as_log_error(self.path):
            start = read_start(self._objects)
        if number >= start.number:
            return corrupt_chunk(chunk_name(number), 0, "it is missing")
        self._look()
        return _out_of_range(f"chunk {number} of buffer {self.path} was trimmed", start.offset)

    def _check_range(self, start: int, end: int) -> None:
        self.reach(end)
        seen = self._seen or self._look()
        first, last = seen.start.offset, seen.last.end_offset if seen.last is not None else 0
        if start < first or end > last or start > end:
            raise _out_of_range(
                f"records {start} to {end} are not all in buffer {self.path}, which holds "
                f"{first} to {last}",
                first,
            )

    def _first(self, passes: Callable[[ChunkHeader], bool]) -> ChunkHeader:
        """The first chunk that passes, where all behind it do, the last one included; about as
        many requests as the logarithm of the chunks that are in question."""
        # What was last seen will do: the caller has checked its range by that.
        seen = self._seen or self._look()
        if seen.last is None:
            raise _out_of_range(f"buffer {self.path} holds nothing", 0)
        low, high = seen.start.number, seen.last.number
        for number, header in self._headers.items():
            if low <= number < high and passes(header):
                high = number
            elif low <= number <= high and not passes(header):
                low = number + 1
        while low < high:
            middle = (low + high) // 2
            if passes(self._header(middle)):
                high = middle
            else:
                low = middle + 1
        return self._header(low)

    def _find(self, offset: int) -> ChunkHeader:
        return self._first(lambda header: header.end_offset > offset)

    def _bound_bytes(self, start: int, end: int, max_bytes: int) -> int:
        limit = self._bytes_until(self._find(start), start) + max_bytes
        last = self._find(end - 1)
        if self._bytes_until(last, end) <= limit:
            return end
        full = self._first(lambda header: header.bytes_before + header.line_bytes > limit)
        fits = bisect_right(self._line_ends(full), limit - full.bytes_before) - 1
        return min(end, max(full.base_offset + fits, start + 1))

    def _bytes_until(self, header: ChunkHeader, offset: int) -> int:
        """Line bytes of all records before ``offset``, which lies in this chunk or at its end."""
        if offset == header.base_offset:
            return header.bytes_before
        if offset == header.end_offset:
            return header.bytes_before + header.line_bytes
        return header.bytes_before + self._line_ends(header)[offset - header.base_offset]

    def _line_ends(self, header: ChunkHeader) -> list[int]:
        """Bytes of its first 0, 1, 2, ... records; reads the chunk."""
        if self._ends is None or self._ends[0] != header.number:
            name = chunk_name(header.number)
            with _as_log_error(self.path):
                data = self._objects.get(name)
            if data is None:
                raise self._gone(header.number)
            check_chunk(name, data, header.number, self._known_id())
            self._ends = (header.number, _line_ends(name, header, data))
        return self._ends[1]


def _line_ends(name: str, header: ChunkHeader, data: memoryview) -> list[int]:
    ends = [0]
    for frame, position in frames_of(name, header, data):
        if frame.kind == DATA:
            payload = data[position + HEADER_BYTES : position + frame.length]
            found = struct.unpack_from(
                f"<{frame.records + 1}i", payload, data_layout(payload, frame)[0]
            )
            before = ends[-1]
            ends += [before + end for end in found[1:]]
    return ends


def _out_of_range(what: str, start: int) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        what,
        next_step="restore the buffer that belongs to this checkpoint, or set "
        "failOnDataLoss=false to go on with what is there",
        start_offset=start,
    )


@contextmanager
def _as_log_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(
            f"buffer {path} can't be read: {error}",
            applied="nothing",
            next_step="see that the store can be reached, and that region and credentials are in "
            "the environment of this process",
            path=path,
        ) from error
