"""Recovery: what a writer does to a log before it appends.

Nothing that was acknowledged is ever cut. A bad frame is a torn tail only if

* it lies at or beyond the published end, and
* no whole frame behind it says that its records were durable (``synced_upto``),

and anything else is CorruptLogError. "Cut at the first bad frame" loses acknowledged lines for
each flipped bit. Torn bytes are copied aside before they are cut.

Whole frames that nothing proves durable are written anew, into a new segment: after a fsync that
failed, the page cache shows bytes which the disk doesn't have, and another fsync of the same
pages would succeed without writing them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from spark_eoc.buffer.block import ProducerState
from spark_eoc.buffer.consumers import read_positions
from spark_eoc.buffer.directory import (
    TORN_NAME,
    Identity,
    corrupt,
    list_segments,
    read_segment_header,
    remove_temporary,
    segment_path,
)
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.frame import (
    HEADER_BYTES,
    PRODUCERS,
    TABLE_LAST,
    FrameChain,
    Place,
)
from spark_eoc.buffer.published import PublishedEnd, read_published, read_start
from spark_eoc.buffer.scan import (
    ByteReader,
    SegmentScan,
    later_frames,
    scan_segment,
    walk,
)
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES, SegmentHeader, segment_name
from spark_eoc.buffer.table import begin_segment

LOG = logging.getLogger("spark_eoc.buffer")


_TORN_KEPT = 32


def _modified(path: Path) -> float:
    return path.stat().st_mtime


@dataclass
class Recovered:
    """A log that is fit to be appended to. ``active`` is None for one without any segment, whose
    first one begins at ``place.offset``."""

    bases: list[int]
    active: int | None
    place: Place
    start_offset: int
    epoch: int
    producers: dict[bytes, ProducerState] = field(default_factory=dict)


@dataclass(frozen=True)
class Recovery:
    """One recovery. ``published`` and ``start`` are what their files say, None if they are
    damaged or missing; ``known_end`` is the highest offset that any small file tells of, all of
    which tell only of durable records. The caller holds the writer lock."""

    directory: Path
    identity: Identity
    files: Files
    published: PublishedEnd | None
    start: int | None
    known_end: int
    now_us: int

    @classmethod
    def of(cls, directory: Path, identity: Identity, files: Files, now_us: int) -> Recovery:
        """The recovery of a directory, with what its small files say."""
        published, start = read_published(directory), read_start(directory)
        ends = [position.handed_out for position in read_positions(directory).values()]
        ends += [published.end_offset if published else 0, start or 0]
        return cls(directory, identity, files, published, start, max(ends), now_us)

    def run(self) -> Recovered:
        """Recovers the log; raises CorruptLogError, with nothing changed that was acknowledged."""
        remove_temporary(self.directory, self.files)
        bases = self._finish_trim(list_segments(self.directory))
        born = self._drop_unborn(bases)
        # A segment is created only once the one before it is whole and durable.
        end = max([self.known_end, *bases[len(born) :]])
        start = self._start_of(born)
        if not born:
            return Recovered([], None, Place(0, start, 0), start, self._published_epoch())
        self._check_chain(born)
        recovered = self._recover_active(born, end)
        recovered.start_offset = start
        return recovered

    def _published_epoch(self) -> int:
        return self.published.epoch if self.published else 0

    def _finish_trim(self, bases: list[int]) -> list[int]:
        if self.start is None:
            return bases
        gone = [base for base, following in pairwise(bases) if following <= self.start]
        for base in gone:
            self.files.unlink(segment_path(self.directory, base))
        if gone:
            self.files.sync_directory(self.directory)
        return bases[len(gone) :]

    def _start_of(self, bases: list[int]) -> int:
        """The start offset; checks that nothing is missing before the first segment."""
        if not bases:
            if (self.start or 0) != self.known_end:
                raise corrupt(self.directory, 0, f"no segment is left of {self.known_end} records")
            return self.known_end
        if self.start is None:
            return bases[0]
        if self.start < bases[0]:
            path = segment_path(self.directory, self.start)
            raise corrupt(path, 0, f"records {self.start} to {bases[0]} are missing")
        return self.start

    def _drop_unborn(self, bases: list[int]) -> list[int]:
        """Puts a newest segment aside whose creation a crash cut short: it was never used."""
        if not bases or self._is_born(bases[-1]):
            return bases
        path = segment_path(self.directory, bases[-1])
        if self._known_position(bases[-1]) or self.known_end > bases[-1]:
            raise corrupt(path, 0, "its beginning is not what was written")
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            reader = ByteReader(file.fileno())
            for found in later_frames(reader, 0, size, self.identity.tag):
                if found.header.records:
                    raise corrupt(path, 0, "its beginning is not what was written")
            self._copy_aside(bases[-1], file.fileno(), 0, size)
        LOG.warning("%s was not finished by a writer that died; removed", path)
        self.files.unlink(path)
        self.files.sync_directory(self.directory)
        return bases[:-1]

    def _is_born(self, base: int) -> bool:
        header = self._header(base)
        if header is None:
            return False
        path = segment_path(self.directory, base)
        place = Place(SEGMENT_HEADER_BYTES, base, header.crc)
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for found in walk(ByteReader(file.fileno()), place, size, self.identity.tag):
                if found.header.kind != PRODUCERS or found.header.flags & TABLE_LAST:
                    return found.header.kind == PRODUCERS
        return False

    def _header(self, base: int) -> SegmentHeader | None:
        path = segment_path(self.directory, base)
        header = read_segment_header(path)
        if header is not None and header.buffer_id != self.identity.raw:
            raise corrupt(path, 16, f"it is of buffer {header.buffer_id.hex()}")
        if header is not None and header.base_offset != base:
            raise corrupt(path, 32, f"it begins at {header.base_offset}, not as its name says")
        return header

    def _check_chain(self, bases: list[int]) -> None:
        for before, base in zip([None, *bases], bases, strict=False):
            path = segment_path(self.directory, base)
            header = self._header(base)
            if header is None:
                raise corrupt(path, 0, "its header is not what was written")
            if before is not None and header.previous_base != before:
                missing = segment_path(self.directory, header.previous_base)
                raise corrupt(missing, 0, f"it is missing, or one before {segment_name(base)} is")

    def _scan(self, base: int, header: SegmentHeader) -> SegmentScan:
        path = segment_path(self.directory, base)
        place = Place(SEGMENT_HEADER_BYTES, base, header.crc)
        known = self._known_position(base)
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            reader = ByteReader(file.fileno())
            return scan_segment(reader, place, size, self.identity.tag, known)

    def _known_position(self, base: int) -> int:
        if self.published is not None and self.published.segment == base:
            return self.published.position
        return 0

    def _recover_active(self, bases: list[int], end: int) -> Recovered:
        base = bases[-1]
        header = self._header(base)
        if header is None:
            raise corrupt(segment_path(self.directory, base), 0, "its header is damaged")
        scan = self._scan(base, header)
        self._check_tail(base, scan, end)
        epoch = max(scan.epoch, header.epoch, self._published_epoch())
        if scan.pending:
            return self._write_anew(bases, scan, epoch)
        return Recovered(bases, base, scan.end, 0, epoch, scan.producers.states)

    def _check_tail(self, base: int, scan: SegmentScan, end: int) -> None:
        """Cuts a torn tail; raises CorruptLogError if it isn't one."""
        path = segment_path(self.directory, base)
        position, offset = scan.end.position, scan.end.offset
        if offset < end or position < self._known_position(base):
            raise corrupt(path, position, f"records {offset} to {end} were acknowledged")
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if position >= size:
                return
            reader = ByteReader(file.fileno())
            for found in later_frames(reader, position, size, self.identity.tag):
                if found.header.synced_upto > offset:
                    raise corrupt(
                        path,
                        position,
                        f"the frame at {found.position} says that records up to "
                        f"{found.header.synced_upto} were durable",
                    )
            self._copy_aside(base, file.fileno(), position, size)
        LOG.warning("%s: cut a torn tail of %d bytes at %d", path, size - position, position)
        self.files.cut(path, position)

    def _copy_aside(self, base: int, descriptor: int, position: int, size: int) -> None:
        """Keeps bytes that are about to be cut, unless they are zeros; never stops recovery."""
        data = os.pread(descriptor, size - position, position)
        if not data.strip(b"\0"):
            return
        folder = self.directory / TORN_NAME
        path = folder / f"{base:020d}-{position}-{self.now_us}"
        try:
            self.files.make_directory(folder)
            self.files.close(self.files.create(path, [data]))
            for old in sorted(folder.iterdir(), key=_modified)[:-_TORN_KEPT]:
                self.files.unlink(old)
        except OSError as error:
            LOG.warning("%d torn bytes could not be kept in %s: %s", len(data), path, error)
        else:
            LOG.warning("%d torn bytes are kept in %s", len(data), path)

    def _write_anew(self, bases: list[int], scan: SegmentScan, epoch: int) -> Recovered:
        """Writes frames that may not be durable once more, into a file of their own."""
        base, anew = bases[-1], scan.durable.offset
        LOG.info("writes %d frames anew, from offset %d", len(scan.pending), anew)
        if anew == base:
            # All of its records are in doubt. The bytes stay as they are, and each at its place,
            # because the published end may tell of that.
            data = self._read(base, 0, scan.end.position)
            self.files.replace(segment_path(self.directory, base), [data])
            return Recovered(bases, base, scan.end, 0, epoch, scan.table())
        chain = self._next_segment(base, scan)
        self.files.replace(segment_path(self.directory, anew), chain.parts)
        self.files.cut(segment_path(self.directory, base), scan.durable.position)
        return Recovered([*bases, anew], anew, chain.place, 0, epoch, scan.table())

    def _next_segment(self, base: int, scan: SegmentScan) -> FrameChain:
        epoch, offset = scan.pending[0][0].header.epoch, scan.durable.offset
        header = SegmentHeader(epoch, self.identity.raw, offset, self.now_us, base)
        chain = begin_segment(header, scan.producers.states, self.identity.tag)
        for found, _ in scan.pending:
            at, length = found.position + HEADER_BYTES, found.header.payload_length
            chain.add(found.header, [self._read(base, at, length)])
        return chain

    def _read(self, base: int, position: int, length: int) -> bytes:
        with segment_path(self.directory, base).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, position)
