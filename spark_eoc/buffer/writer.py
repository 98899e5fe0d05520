"""The one writer of a log: append, sync, roll, trim."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from spark_eoc.buffer.active import ActiveSegment
from spark_eoc.buffer.admit import check_block, states_after
from spark_eoc.buffer.block import BytesLike, LineBlock, ProducerState
from spark_eoc.buffer.consumers import lowest_position
from spark_eoc.buffer.directory import Identity, ensure_identity
from spark_eoc.buffer.expiry import expire, warn_of_room
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.frame import CONTROL, DATA, FrameHeader, Place, data_parts
from spark_eoc.buffer.health import Health
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
from spark_eoc.buffer.refuse import refusing
from spark_eoc.buffer.segment import SegmentHeader
from spark_eoc.buffer.slots import SlotWriter
from spark_eoc.buffer.table import begin_segment, table_frames
from spark_eoc.buffer.trim import (
    SealedSegment,
    count_trimmable,
    list_sealed,
    unlink_segments,
    unread_bytes,
)
from spark_eoc.errors import LogError, LogFullError
from spark_eoc.failpoints import hit

LOG = logging.getLogger("spark_eoc.buffer")


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
        self._health = Health(directory)
        self._active: ActiveSegment | None = None
        self._sealed: list[SealedSegment] = []
        self._place = Place(0, 0, 0)
        self._durable = Place(0, 0, 0)
        self._start_offset = 0
        self._epoch = 0
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
        with refusing(directory):
            used.make_directory(directory)
            lock = WriterLock.acquire(directory, takeover_ms)
            try:
                identity = ensure_identity(directory, used)
            except BaseException:
                lock.release()
                raise
            writer = cls(
                directory,
                options or BufferOptions(),
                clock=clock,
                files=used,
                lock=lock,
                identity=identity,
                boot=boot or boot_id(),
            )
            try:
                writer._recover()
            except BaseException:
                writer._release()
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
        return self._durable.offset

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
        return self._health.failure

    def append(self, block: LineBlock, *, receive_time_us: int) -> int:
        """Appends the lines as one frame; returns the offset of the first. Not durable yet.

        Raises ValueError for a block that is not in form, or whose sequence numbers don't rise;
        RecordTooLargeError above the limits of a frame; LogFullError if the disk is full, and
        then nothing of it is in the log; LogClosedError once the log is closed or poisoned.
        """
        check_block(block)
        states = states_after(block, self._producers, receive_time_us)
        if self._place.position >= self.options.segment_bytes:
            self.roll()
        with self._state:
            self._check_open()
            base, records = self._place.offset, block.records
            if records:
                hit("buffer.before_append")
                header = self._header(DATA, len(block.runs), records, receive_time_us)
                header = header._replace(data_length=block.data_bytes)
                self._write(header, data_parts(block.runs, block.offsets, block.data))
                self._producers.update(states)
                hit("buffer.after_append")
            return base

    def sync(self) -> int:
        """Makes everything appended before the call durable, then publishes; the end offset."""
        with self._syncing:
            self._sync()
            return self._durable.offset

    def roll(self) -> None:
        """Seals the active segment and begins a new one; does nothing if it holds no record."""
        with self._syncing, self._state:
            active = self._check_open()
            if active.has_records:
                self._sync()
                self._begin_segment(self._place.offset, active)

    def room(self, nbytes: int) -> bool:
        """True if ``nbytes`` more fit into ``max_buffer_bytes``; else stop receiving for a while.

        What counts are the segments not handed out yet to every consumer. An active one that is
        fully handed out is rolled when the limit is hit: commits come only when a next batch is
        planned, so a full buffer without anything new to plan would wait for ever.
        """
        if self._fits(nbytes):
            return True
        self._handed_out = lowest_position(self.path).handed_out
        if self._fits(nbytes):
            return True
        if self._handed_out < self._place.offset:
            return False
        try:
            self.roll()
        except LogFullError:
            return False
        return True

    def apply_trim(self) -> int:
        """Deletes the oldest segments that every consumer has committed and that retention
        doesn't keep; the start offset. The start pointer is durable before the first unlink.

        Raises LogError if the disk refuses; nothing that is needed is gone then, try again later.
        """
        with self._state:
            self._check_open()
            committed = lowest_position(self.path).committed
            count = count_trimmable(self._sealed, committed, self._now_us(), self.options)
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
        """Forgets the numbers of producers that sent nothing since ``before_us`` (microseconds
        since 1970), but not that there were such names; how many. Durable after the next sync."""
        with self._state:
            self._check_open()
            expiry = expire(self._producers, before_us)
            if expiry.expired:
                for header, payload in table_frames(
                    expiry.table, self._place.offset, self._epoch, self._durable.offset
                ):
                    self._write(header, payload)
                self._producers = expiry.table
            warn_of_room(expiry)
            return expiry.expired

    def close(self) -> None:
        """Syncs and publishes what was appended, and lets the lock go. Raises LogClosedError if
        that sync fails; does nothing more for a log that is poisoned or closed already."""
        try:
            if self._health.failure is None:
                self.sync()
                self._publish(self._durable, sync=True)
        finally:
            self._release()

    def _release(self) -> None:
        with self._syncing, self._state:
            self._health.fail("it was closed")
            self._published.close()
            self._start.close()
            if self._active is not None:
                self._active.close()
            self._lock_file.release()

    def _recover(self) -> None:
        self._start.open()
        self._published.open()
        recovered = Recovery.of(self.path, self._identity, self._files, self._now_us()).run()
        self._start.write_both(pack_start(recovered.start_offset))
        self._adopt(recovered)

    def _adopt(self, recovered: Recovered) -> None:
        self._epoch = recovered.epoch + 1
        self._start_offset = recovered.start_offset
        self._producers = recovered.producers
        if recovered.active is None:
            self._begin_segment(recovered.place.offset, None)
        else:
            self._sealed = list_sealed(self.path, recovered.bases)
            self._place = recovered.place
            self._active = ActiveSegment.open(
                self.path, recovered.active, recovered.place, self._files
            )
            self._publish(recovered.place, sync=True)
        try:
            self._write(self._header(CONTROL, 0, 0, self._now_us()), [])
        except LogFullError as error:
            LOG.warning("%s", error)
        self.sync()
        self._handed_out = lowest_position(self.path).handed_out

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def _check_open(self) -> ActiveSegment:
        self._health.check()
        if self._active is None:
            raise self._health.closed_error()
        return self._active

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
            synced_upto=self._durable.offset,
            previous_crc=0,
        )

    def _write(self, header: FrameHeader, payload: list[BytesLike]) -> None:
        active = self._check_open()
        with self._health.poisoning("a write"):
            active.write(header, payload, self._identity.tag)
        self._place = active.place

    def _sync(self) -> None:
        """The caller holds _syncing, so that the active segment stays the same."""
        with self._state:
            active, place = self._check_open(), self._place
        if place == self._durable:
            return
        with self._health.poisoning("fsync"):
            active.sync()
        hit("buffer.after_fsync")
        with self._state:
            self._publish(place)
        hit("buffer.after_publish")

    def _publish(self, place: Place, *, sync: bool = False) -> None:
        """``place`` lies in the active segment, and all before it is durable."""
        record = PublishedEnd(
            end_offset=place.offset,
            segment=self._check_open().base_offset,
            position=place.position,
            epoch=self._epoch,
            boot_id=self._boot,
        )
        with self._health.poisoning("publishing"):
            if sync:
                self._published.write_both(record.pack())
            else:
                self._published.write(record.pack())
        self._durable = place

    def _begin_segment(self, base: int, sealed: ActiveSegment | None) -> None:
        """Makes the next segment durable with its table of producers, then the active one."""
        header = SegmentHeader(
            epoch=self._epoch,
            buffer_id=self._identity.raw,
            base_offset=base,
            created_us=self._now_us(),
            previous_base=base if sealed is None else sealed.base_offset,
        )
        chain = begin_segment(header, self._producers, self._identity.tag)
        with self._health.poisoning("creating a segment"):
            self._active = ActiveSegment.create(self.path, chain.parts, chain.place, self._files)
        if sealed is not None:
            size = sealed.place.position
            self._sealed.append(SealedSegment(sealed.base_offset, base, size, header.created_us))
            sealed.close()
        self._place = chain.place
        self._publish(chain.place, sync=True)

    def _fits(self, nbytes: int) -> bool:
        unread = unread_bytes(self._sealed, self._handed_out) + self._place.position
        return unread + nbytes <= self.options.max_buffer_bytes

    def _trim(self, count: int) -> None:
        gone = self._sealed[:count]
        hit("buffer.trim_before_start")
        self._start.write(pack_start(gone[-1].end_offset), sync=True)
        self._start_offset = gone[-1].end_offset
        hit("buffer.trim_after_start")
        unlink_segments(self.path, gone, self._files)
        del self._sealed[:count]
