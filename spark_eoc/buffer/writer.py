"""The one writer of a log: append, sync, roll, trim."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from spark_eoc.buffer.block import MAX_PRODUCER_BYTES, BytesLike, LineBlock, ProducerState
from spark_eoc.buffer.columns import check_offsets
from spark_eoc.buffer.consumers import read_positions
from spark_eoc.buffer.directory import (
    Identity,
    ensure_identity,
    read_segment_header,
    segment_path,
)
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.frame import (
    CONTROL,
    DATA,
    MAX_DATA_BYTES,
    MAX_RECORDS,
    MAX_RUNS,
    FrameChain,
    FrameHeader,
    Place,
    data_parts,
)
from spark_eoc.buffer.lock import WriterLock, boot_id
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.published import (
    PUBLISHED_MAGIC,
    PUBLISHED_NAME,
    START_MAGIC,
    START_NAME,
    PublishedEnd,
    pack_start,
)
from spark_eoc.buffer.recover import Recovered, Recovery
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from spark_eoc.buffer.slots import SlotWriter
from spark_eoc.buffer.table import table_frames
from spark_eoc.buffer.trim import SegmentAge, count_trimmable
from spark_eoc.errors import (
    ConfigError,
    LogClosedError,
    LogError,
    LogFullError,
    RecordTooLargeError,
)
from spark_eoc.failpoints import hit

LOG = logging.getLogger("spark_eoc.buffer")

_FULL = (errno.ENOSPC, errno.EDQUOT)


class LogWriter:
    """Appends lines to the buffer at ``path``; there is one writer at a time, by flock.

    A line is durable, and readers see it, once :meth:`sync` has returned a higher offset than its
    own; before that a crash may lose it, but no other. After a write or an fsync that failed, the
    log is poisoned: everything raises LogClosedError, the published end stays, and only a new
    writer, which recovers, goes on. A full disk is not a failure: LogFullError, try again.

    ``append`` and what trims belong to one thread at a time; ``sync`` may run in another beside
    them; the properties may be read by any.
    """

    def __init__(
        self,
        directory: Path,
        options: BufferOptions,
        *,
        clock: Callable[[], float],
        files: Files,
        lock: WriterLock,
        identity: Identity,
        boot: bytes,
    ) -> None:
        self.path = directory
        self.options = options
        self._clock = clock
        self._files = files
        self._lock_file = lock
        self._identity = identity
        self._boot = boot
        self._published = SlotWriter(directory / PUBLISHED_NAME, PUBLISHED_MAGIC, files)
        self._start = SlotWriter(directory / START_NAME, START_MAGIC, files)
        self._state = threading.RLock()  # what append and sync share; held for moments
        self._syncing = threading.Lock()  # held over an fsync and a roll, taken before _state
        self._failure: str | None = None
        self._descriptor = -1
        self._segment = 0
        self._place = Place(0, 0, 0)
        self._end = (0, 0)  # durable and published: offset and position
        self._start_offset = 0
        self._epoch = 0
        self._sealed: list[SegmentAge] = []
        self._producers: dict[bytes, ProducerState] = {}
        self._handed_out = 0

    @classmethod
    def open(
        cls,
        path: str | Path,
        options: BufferOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
        takeover_ms: int | None = None,
        files: Files | None = None,
        boot: bytes | None = None,
    ) -> LogWriter:
        """Creates or recovers the buffer at ``path`` and takes the next epoch.

        Raises LogLockedError, naming the process, if another writer has it; with ``takeover_ms``
        a writer on this host that stays *stopped* so long is killed. CorruptLogError if a record
        that was acknowledged isn't there as it was written; ConfigError for a path that can't be
        created, appended to or synced. ``clock`` gives seconds since 1970; ``files`` and ``boot``
        (id of the machine's start) are for tests.
        """
        directory = Path(path)
        used = files or Files()
        lock = None
        try:
            used.make_directory(directory)
            lock = WriterLock.acquire(directory, takeover_ms)
            identity = ensure_identity(directory, used)
            writer = cls(
                directory,
                options or BufferOptions(),
                clock=clock,
                files=used,
                lock=lock,
                identity=identity,
                boot=boot or boot_id(),
            )
            writer._recover()
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, OSError):
                raise _unusable(directory, error) from error
            raise
        return writer

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer, 32 hex digits."""
        return self._identity.buffer_id

    @property
    def epoch(self) -> int:
        """Number of this writer; each start takes the next."""
        return self._epoch

    @property
    def start_offset(self) -> int:
        """First retained record."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """One past the last durable record."""
        return self._end[0]

    @property
    def next_offset(self) -> int:
        """One past the last appended record, which may not be durable yet."""
        return self._place.offset

    @property
    def producers(self) -> Mapping[bytes, ProducerState]:
        """Newest sequence number of every producer, appended but not yet durable ones included."""
        return MappingProxyType(self._producers)

    @property
    def failure(self) -> str | None:
        """Why the log takes nothing more; None while it is healthy."""
        return self._failure

    def append(self, block: LineBlock, *, receive_time_us: int) -> int:
        """Appends the lines as one frame; returns the offset of the first. Not durable yet.

        Raises ValueError for a block that is not in form, or whose sequence numbers don't rise;
        RecordTooLargeError above the limits of a frame; LogFullError if the disk is full, and
        then nothing of it is in the log; LogClosedError once the log is closed or poisoned.
        """
        _check_block(block)
        states = self._states_after(block, receive_time_us)
        records = block.records
        if self._is_full():
            self.roll()
        with self._state:
            self._check_open()
            base = self._place.offset
            if records:
                hit("buffer.before_append")
                parts = data_parts(block.runs, block.offsets, block.data)
                header = self._header(DATA, len(block.runs), records, receive_time_us)
                self._write(header, parts)
                self._producers.update(states)
                hit("buffer.after_append")
            return base

    def sync(self) -> int:
        """Makes everything appended before the call durable, then publishes; the end offset."""
        with self._syncing:
            self._sync()
        return self._end[0]

    def roll(self) -> None:
        """Seals the active segment and begins a new one; does nothing if it holds no record."""
        with self._syncing, self._state:
            self._check_open()
            if self._place.offset > self._segment:
                self._sync()
                self._begin_segment(self._place.offset)

    def room(self, nbytes: int) -> bool:
        """True if ``nbytes`` more fit into ``max_buffer_bytes``; else stop receiving for a while.

        What counts are the segments not handed out yet to every consumer. An active one that is
        fully handed out is rolled when the limit is hit: commits come only when a next batch is
        planned, so a full buffer without anything new to plan would wait for ever.
        """
        if self._unread_bytes() + nbytes <= self.options.max_buffer_bytes:
            return True
        self._handed_out = self._lowest("handed_out")
        if self._unread_bytes() + nbytes <= self.options.max_buffer_bytes:
            return True
        if self._handed_out < self._place.offset:
            return False
        self.roll()
        return True

    def apply_trim(self) -> int:
        """Deletes the oldest segments that every consumer has committed and that retention
        doesn't keep; the start offset. The start pointer is durable before the first unlink.

        Raises LogError if the disk refuses; nothing that is needed is gone then, try again later.
        """
        with self._state:
            self._check_open()
            now_us = int(self._clock() * 1_000_000)
            committed = self._lowest("committed")
            count = count_trimmable(self._sealed, committed, now_us, self.options)
            if count:
                try:
                    self._trim(count)
                except OSError as error:
                    raise LogError(
                        f"segments of {self.path} could not be deleted: {error}",
                        next_step="see to the disk; the next trim tries again",
                    ) from error
            return self._start_offset

    def expire_producers(self, before_us: int) -> int:
        """Forgets producers that sent nothing since ``before_us`` (microseconds since 1970), so
        that their next line counts as new; how many. Durable after the next sync."""
        with self._state:
            self._check_open()
            kept = {
                name: state
                for name, state in self._producers.items()
                if state.last_time_us >= before_us
            }
            expired = len(self._producers) - len(kept)
            if expired:
                for header, parts in table_frames(kept, self._place.offset, self._epoch):
                    self._write(header._replace(synced_upto=self._end[0]), parts)
                self._producers = kept
            return expired

    def close(self) -> None:
        """Syncs and publishes what was appended, and lets the lock go. Never raises for a log
        that is poisoned or closed already."""
        try:
            if self._failure is None:
                self.sync()
                self._publish(sync=True)
        finally:
            self._abandon("it was closed")

    def _abandon(self, why: str) -> None:
        with self._syncing, self._state:
            self._failure = self._failure or why
            for slots in (self._published, self._start):
                slots.close()
            if self._descriptor >= 0:
                self._files.close(self._descriptor)
                self._descriptor = -1
            self._lock_file.release()

    def _recover(self) -> None:
        self._start.open()
        self._published.open()
        recovered = Recovery.of(self.path, self._identity, self._files, self._now_us()).run()
        self._start.write_both(pack_start(recovered.start_offset))
        self._adopt(recovered)

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def _adopt(self, recovered: Recovered) -> None:
        self._epoch = recovered.epoch + 1
        self._start_offset = recovered.start_offset
        self._producers = recovered.producers
        self._place = recovered.place
        if recovered.active is None:
            self._begin_segment(recovered.place.offset)
        else:
            self._segment = recovered.active
            self._descriptor = self._files.open(segment_path(self.path, recovered.active))
            self._end = (recovered.place.offset, recovered.place.position)
            self._sealed = _ages(self.path, recovered.bases)
            self._publish(sync=True, both=True)
        try:
            self._write(self._header(CONTROL, 0, 0, self._now_us()), [])
        except LogFullError as error:
            LOG.warning("%s", error)
        self.sync()
        self._handed_out = self._lowest("handed_out")

    def _is_full(self) -> bool:
        place = self._place
        return place.position >= self.options.segment_bytes and place.offset > self._segment

    def _check_open(self) -> None:
        if self._failure is not None:
            raise LogClosedError(
                f"buffer {self.path} takes nothing more: {self._failure}",
                applied=f"everything below offset {self._end[0]} is durable",
                next_step="open the log again; that recovers it",
                path=str(self.path),
            )

    @contextmanager
    def _poisoning(self, step: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with self._state:
                self._failure = self._failure or f"{step} failed: {error}"
                self._check_open()

    def _states_after(self, block: LineBlock, time_us: int) -> dict[bytes, ProducerState]:
        states: dict[bytes, ProducerState] = {}
        for run in block.runs:
            if run.producer:
                known = states.get(run.producer) or self._producers.get(run.producer)
                if known is not None and run.first_sequence <= known.last_sequence:
                    raise ValueError(
                        f"sequence {run.first_sequence} of producer {run.producer!r} is in the "
                        f"log already, up to {known.last_sequence}"
                    )
                last = run.first_sequence + run.records - 1
                states[run.producer] = ProducerState(last, time_us)
        return states

    def _header(self, kind: int, runs: int, records: int, time_us: int) -> FrameHeader:
        return FrameHeader(
            payload_length=0,
            kind=kind,
            flags=0,
            runs=runs,
            base_offset=self._place.offset,
            records=records,
            epoch=self._epoch,
            receive_time_us=time_us,
            synced_upto=self._end[0],
            previous_crc=0,
        )

    def _write(self, header: FrameHeader, payload: list[BytesLike]) -> None:
        chain = FrameChain(self._place, self._identity.tag)
        chain.add(header, payload)
        position = self._place.position
        with self._poisoning("a write"):
            try:
                self._files.write(self._descriptor, position, chain.parts)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._files.truncate(self._descriptor, position)
                raise _full(self.path, error) from error
        self._place = chain.place

    def _sync(self) -> None:
        with self._state:
            self._check_open()
            target = (self._place.offset, self._place.position)
            if target == self._end:
                return
            descriptor = self._descriptor
        with self._poisoning("fsync"):
            self._files.sync_data(descriptor)
        hit("buffer.after_fsync")
        with self._state:
            self._publish(target)
        hit("buffer.after_publish")

    def _publish(
        self, end: tuple[int, int] | None = None, *, sync: bool = False, both: bool = False
    ) -> None:
        offset, position = end or self._end
        record = PublishedEnd(offset, self._segment, position, self._epoch, self._boot)
        with self._poisoning("publishing"):
            if both:
                self._published.write_both(record.pack())
            else:
                self._published.write(record.pack(), sync=sync)
        self._end = (offset, position)

    def _begin_segment(self, base: int) -> None:
        """Makes the next segment durable with its table of producers, then the active one."""
        first = self._descriptor < 0
        header = SegmentHeader(
            epoch=self._epoch,
            buffer_id=self._identity.raw,
            base_offset=base,
            created_us=self._now_us(),
            previous_base=base if first else self._segment,
        )
        chain = FrameChain(Place(SEGMENT_HEADER_BYTES, base, header.crc), self._identity.tag)
        for table, payload in table_frames(self._producers, base, self._epoch, base):
            chain.add(table, payload)
        descriptor = self._create(segment_path(self.path, base), [header.pack(), *chain.parts])
        if not first:
            age = SegmentAge(self._segment, base, self._place.position, header.created_us)
            self._sealed.append(age)
            self._files.close(self._descriptor)
        self._descriptor, self._segment, self._place = descriptor, base, chain.place
        self._publish((base, chain.place.position), sync=True, both=first)

    def _create(self, path: Path, parts: list[BytesLike]) -> int:
        try:
            return self._files.create(
                path,
                parts,
                at_empty=_hit_before_header,
                at_written=_hit_after_header,
            )
        except OSError as error:
            with self._poisoning("creating a segment"):
                if error.errno not in _FULL:
                    raise
                self._files.unlink(path)
                self._files.sync_directory(path.parent)
            raise _full(self.path, error) from error
        except Exception as error:
            self._failure = f"creating a segment failed: {error}"
            raise

    def _unread_bytes(self) -> int:
        unread = sum(age.size for age in self._sealed if age.end_offset > self._handed_out)
        return unread + self._place.position

    def _lowest(self, field: str) -> int:
        positions = read_positions(self.path).values()
        return min((getattr(position, field) for position in positions), default=0)

    def _trim(self, count: int) -> None:
        start = self._sealed[count - 1].end_offset
        hit("buffer.trim_before_start")
        self._start.write(pack_start(start), sync=True)
        self._start_offset = start
        hit("buffer.trim_after_start")
        for _ in range(count):
            path = segment_path(self.path, self._sealed[0].base_offset)
            if path.exists():
                self._files.unlink(path)
            del self._sealed[0]
            hit("buffer.trim_after_unlink")
        self._files.sync_directory(self.path)


def _hit_before_header() -> None:
    hit("buffer.roll_before_header")


def _hit_after_header() -> None:
    hit("buffer.roll_after_header")


def _check_block(block: LineBlock) -> None:
    if not -1 < block.records <= MAX_RECORDS or len(block.runs) > MAX_RUNS:
        raise RecordTooLargeError(
            f"a block of {block.records} records and {len(block.runs)} runs is more than a frame "
            "holds",
            next_step="split it",
        )
    if block.data_bytes > MAX_DATA_BYTES:
        raise RecordTooLargeError(
            f"a block of {block.data_bytes} bytes is more than int32 offsets reach",
            next_step="split it",
        )
    if block.runs and sum(run.records for run in block.runs) != block.records:
        raise ValueError("the runs of a block don't add up to its records")
    if any(len(run.producer) > MAX_PRODUCER_BYTES or run.records < 1 for run in block.runs):
        raise ValueError("a run is empty, or its producer's name is too long")
    check_offsets(block)


def _unusable(directory: Path, error: OSError) -> LogError | ConfigError:
    if error.errno in _FULL:
        return _full(directory, error)
    return ConfigError(
        f"bufferPath {directory} can't be created, appended to and synced: {error}",
        applied="nothing",
        next_step="use a directory on a local disk that this user may write",
        path=str(directory),
    )


def _full(directory: Path, error: OSError) -> LogFullError:
    return LogFullError(
        f"no space is left for buffer {directory}: {error}",
        applied="nothing of this write; what is durable stays",
        next_step="free space, or let the queries commit so that segments are trimmed",
        path=str(directory),
    )


def _ages(directory: Path, bases: list[int]) -> list[SegmentAge]:
    ages = []
    for base, following in pairwise(bases):
        header = read_segment_header(segment_path(directory, following))
        sealed_us = header.created_us if header else 0
        size = segment_path(directory, base).stat().st_size
        ages.append(SegmentAge(base, following, size, sealed_us))
    return ages
