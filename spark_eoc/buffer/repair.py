"""Giving up what can't be read, and nothing else; `spark-eoc buffer repair`.

What was acknowledged and is damaged can't come back by software. A repair keeps every frame that
is whole, copies each damaged file aside, and leaves a hole in the numbers where records are gone:
no number is ever used again, readers of a hole are told, and the next writer goes on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spark_eoc.buffer.directory import Identity, ensure_identity, list_segments, segment_path
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.frame import HEADER_BYTES
from spark_eoc.buffer.lock import WriterLock, boot_id
from spark_eoc.buffer.published import (
    PUBLISHED_MAGIC,
    PUBLISHED_NAME,
    START_MAGIC,
    START_NAME,
    PublishedEnd,
    pack_start,
)
from spark_eoc.buffer.recover import Recovery
from spark_eoc.buffer.scan import Found, ProducerTable
from spark_eoc.buffer.segment import AFTER_GAP, SegmentHeader
from spark_eoc.buffer.slots import SlotWriter
from spark_eoc.buffer.survey import Piece, SegmentSurvey, survey_segment
from spark_eoc.buffer.table import begin_segment

LOG = logging.getLogger("spark_eoc.buffer")

DAMAGED_NAME = "damaged"


@dataclass(frozen=True)
class RepairReport:
    """``lost`` are the half-open ranges of offsets that were given up, ``rewritten`` the segments
    that were written anew, ``kept`` the copies of them as they were."""

    path: str
    lost: tuple[tuple[int, int], ...]
    rewritten: tuple[str, ...]
    kept: tuple[str, ...]


def repair(
    path: str | Path, *, clock: Callable[[], float] = time.time, files: Files | None = None
) -> RepairReport:
    """Makes the log fit to be opened again. Raises LogLockedError while a writer has it.

    May be killed at any time and run again. A log that is sound is left as it is.
    """
    directory = Path(path)
    lock = WriterLock.acquire(directory)
    try:
        used = files or Files()
        identity = ensure_identity(directory, used)
        return _Repair(directory, identity, used, int(clock() * 1_000_000)).run()
    finally:
        lock.release()


@dataclass
class _Repair:
    """Goes through the segments once. ``next_offset`` is one past the last record kept,
    ``previous`` the segment before, ``table`` the producers there, ``position`` the end of the
    last segment that was written."""

    directory: Path
    identity: Identity
    files: Files
    now_us: int
    lost: list[tuple[int, int]] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    table: ProducerTable = field(default_factory=ProducerTable)
    position: int = 0
    previous: int | None = None
    next_offset: int = 0
    epoch: int = 0

    def run(self) -> RepairReport:
        recovery = Recovery.of(self.directory, self.identity, self.files, self.now_us)
        bases = list_segments(self.directory)
        start = recovery.start if recovery.start is not None else min(bases, default=0)
        self.next_offset = start
        for base in bases:
            survey = survey_segment(self.directory, base, self.identity)
            if self.rewritten or not self._is_sound(survey):
                self._rewrite(survey)
            else:
                self._pass(survey)
        if self.next_offset < recovery.known_end or self.previous is None:
            self._write(recovery.known_end, [], -1)
        elif self.rewritten and not self.position:
            # All that was wrong lay in an empty segment, and that is gone.
            self._write(self.next_offset, [], -1)
        if self.rewritten:
            first = min(list_segments(self.directory))
            self._write_pointers(max(start, first), recovery.published)
        return RepairReport(
            str(self.directory), tuple(self.lost), tuple(self.rewritten), tuple(self.kept)
        )

    def _is_sound(self, survey: SegmentSurvey) -> bool:
        header = survey.header
        if header is None or survey.damages or len(survey.pieces) != 1:
            return False
        if self.previous is None:
            return survey.base_offset <= self.next_offset
        follows = survey.base_offset == self.next_offset or header.flags & AFTER_GAP
        return bool(follows) and header.previous_base == self.previous

    def _pass(self, survey: SegmentSurvey) -> None:
        for found, change in survey.pieces[0].frames:
            self.table.apply(change)
            self.epoch = max(self.epoch, found.header.epoch)
        self.previous, self.next_offset = survey.base_offset, survey.end_offset

    def _rewrite(self, survey: SegmentSurvey) -> None:
        """Writes what can be read of a segment anew, a segment for each piece."""
        if survey.damages:
            self._keep(survey)
        written = []
        with survey.path.open("rb", buffering=0) as file:
            for piece in survey.pieces:
                frames = self._wanted(piece)
                if frames:
                    written.append(frames[0].header.base_offset)
                    self._write(written[-1], frames, file.fileno())
                for _, change in piece.frames:
                    self.table.apply(change)
        self.rewritten.append(str(survey.path))
        if survey.base_offset not in written:
            self.files.unlink(survey.path)
            self.files.sync_directory(self.directory)

    def _wanted(self, piece: Piece) -> list[Found]:
        """The frames to keep, from the first with records on; applies those before it."""
        data = [
            found
            for found, _ in piece.frames
            if found.header.records and found.header.base_offset >= self.next_offset
        ]
        if not data:
            return []
        for found, change in piece.frames:
            if found.position < data[0].position:
                self.table.apply(change)
        return [found for found, _ in piece.frames if found.position >= data[0].position]

    def _write(self, base: int, frames: list[Found], descriptor: int) -> None:
        """A segment of these frames, of the open file ``descriptor``, durable."""
        self.epoch = max([self.epoch, *(found.header.epoch for found in frames)])
        is_first = self.previous is None
        header = SegmentHeader(
            epoch=frames[0].header.epoch if frames else self.epoch,
            buffer_id=self.identity.raw,
            base_offset=base,
            created_us=self.now_us,
            previous_base=base if self.previous is None else self.previous,
            flags=0 if is_first or base == self.next_offset else AFTER_GAP,
        )
        chain = begin_segment(header, self.table.states, self.identity.tag)
        for found in frames:
            at, length = found.position + HEADER_BYTES, found.header.payload_length
            chain.add(found.header, [os.pread(descriptor, length, at)])
        path = segment_path(self.directory, base)
        self.files.replace(path, chain.parts)
        if base > self.next_offset:
            self.lost.append((self.next_offset, base))
        if not frames:
            self.rewritten.append(str(path))
        self.position, self.previous = chain.place.position, base
        self.next_offset = chain.place.offset

    def _keep(self, survey: SegmentSurvey) -> None:
        folder = self.directory / DAMAGED_NAME
        self.files.make_directory(folder)
        copy = folder / f"{survey.path.name}-{self.now_us}"
        with survey.path.open("rb") as file:
            data = file.read()
        self.files.close(self.files.create(copy, [data]))
        self.kept.append(str(copy))
        for damage in survey.damages:
            LOG.warning("%s at %d: %s; kept as %s", damage.file, damage.position, damage.why, copy)

    def _write_pointers(self, start: int, published: PublishedEnd | None) -> None:
        """The newest segment was written and synced by this repair, to its end."""
        end = PublishedEnd(
            end_offset=self.next_offset,
            segment=self.previous or 0,
            position=self.position,
            epoch=max(self.epoch, published.epoch if published else 0),
            boot_id=boot_id(),
        )
        for name, magic, content in (
            (START_NAME, START_MAGIC, pack_start(start)),
            (PUBLISHED_NAME, PUBLISHED_MAGIC, end.pack()),
        ):
            slots = SlotWriter(self.directory / name, magic, self.files)
            slots.open()
            slots.write_both(content)
            slots.close()
