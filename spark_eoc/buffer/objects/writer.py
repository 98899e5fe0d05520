"""The one writer of a buffer in an object store: append, sync, trim, and how it is fenced."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

from spark_eoc.buffer.admit import check_block, states_after
from spark_eoc.buffer.block import LineBlock, ProducerState
from spark_eoc.buffer.consumers import Position
from spark_eoc.buffer.expiry import expire, warn_of_room
from spark_eoc.buffer.frame import DATA, TAG_BYTES, FrameHeader, data_parts
from spark_eoc.buffer.health import Health
from spark_eoc.buffer.objects.chunk import (
    CONTROL_CHUNK,
    ChunkHeader,
    Group,
    pack_chunk,
    parse_chunk_header,
)
from spark_eoc.buffer.objects.create import check_not_fenced, create_chunk, fenced_error
from spark_eoc.buffer.objects.draft import Draft
from spark_eoc.buffer.objects.extent import (
    FIRST_CHUNK,
    Start,
    claim_name,
    ensure_buffer_id,
    read_fence,
)
from spark_eoc.buffer.objects.positions import lowest_object_position
from spark_eoc.buffer.objects.recover import Found, recover, take_next
from spark_eoc.buffer.objects.store import Objects, ObstoreObjects
from spark_eoc.buffer.objects.trim import sweep, trim_to
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.trim import SealedSegment, count_trimmable, unread_bytes
from spark_eoc.errors import ConfigError, FencedError, LogError
from spark_eoc.failpoints import hit

#: A group is sealed at the latest with so many chunks: a writer that starts reads all of one.
GROUP_CHUNKS = 128
#: How old the consumers' positions may be that room and trim go by.
POLL_SECONDS = 0.5


class ObjectWriter:
    """Appends lines to the buffer at an object store's URL; as ``BufferWriter`` promises.

    There is no lock that a killed process would let go of: **the newest writer has the buffer**,
    and the one before learns at its next chunk that it is fenced (FencedError). It has
    acknowledged nothing that isn't there.
    """

    def __init__(
        self,
        objects: Objects,
        options: BufferOptions,
        buffer_id: bytes,
        *,
        clock: Callable[[], float],
        poll_seconds: float,
    ) -> None:
        """For :meth:`open`."""
        self.path = objects.url
        self.options = options
        self._objects = objects
        self._id = buffer_id
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._health = Health(objects.url)
        self._state = threading.RLock()  # what append and sync share; held for moments
        self._syncing = threading.Lock()  # held over the requests of a sync; taken before _state
        self._draft: Draft | None = None
        self._producers: dict[bytes, ProducerState] = {}
        self._wants_group = True  # the next draft begins a group
        self._start = Start(FIRST_CHUNK, 0)
        self._lowest = Position(0, 0)
        self._looked = float("-inf")
        self._adopt(Found(self._start))

    @classmethod
    def open(
        cls,
        url: str,
        options: BufferOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
        objects: Objects | None = None,
    ) -> ObjectWriter:
        """Creates or recovers the buffer at ``url`` and takes the next epoch; a writer that works
        on it is fenced by that.

        Raises ConfigError if the store can't be used, CorruptLogError if a chunk that is needed
        is missing or damaged. ``objects`` replaces the store, in tests.
        """
        used = objects or ObstoreObjects(url)
        try:
            buffer_id = ensure_buffer_id(used)
            sweep(used)
            writer = cls(
                used,
                options or BufferOptions(),
                buffer_id,
                clock=clock,
                poll_seconds=poll_seconds,
            )
            writer._begin()
        except OSError as error:
            raise ConfigError(
                f"the buffer {used.url} can't be opened: {error}",
                applied="nothing was acknowledged",
                next_step="see that the bucket is there, that it may be read, listed and written, "
                "and that region and credentials are in the environment",
            ) from error
        return writer

    @property
    def buffer_id(self) -> str:
        """Identity of the buffer, 32 hex digits."""
        return self._id.hex()

    @property
    def epoch(self) -> int:
        """Number of this writer; each start takes the next."""
        return self._epoch

    @property
    def start_offset(self) -> int:
        """First retained record."""
        return self._start.offset

    @property
    def end_offset(self) -> int:
        """One past the last durable record; without a request."""
        return self._durable

    @property
    def next_offset(self) -> int:
        """One past the last appended record, which may not be durable yet."""
        return self._next

    @property
    def producers(self) -> Mapping[bytes, ProducerState]:
        """Newest sequence number of every producer, appended ones included."""
        return MappingProxyType(self._producers)

    @property
    def failure(self) -> str | None:
        """Why it takes nothing more; None while it is healthy."""
        return self._health.failure

    def append(self, block: LineBlock, *, receive_time_us: int) -> int:
        """Adds the lines as one frame, in memory until :meth:`sync`; the offset of the first.

        Raises ValueError for a block that is not in form, or whose sequence numbers don't rise;
        RecordTooLargeError above the limits of a frame; LogClosedError once closed or fenced.
        """
        check_block(block)
        states = states_after(block, self._producers, receive_time_us)
        with self._state:
            self._health.check()
            base = self._next
            if block.records:
                hit("buffer.before_append")
                header = self._header(block, receive_time_us)
                self._open_draft().add(header, data_parts(block.runs, block.offsets, block.data))
                self._next += block.records
                self._producers.update(states)
                hit("buffer.after_append")
            return base

    def sync(self) -> int:
        """Creates one chunk of all that was appended, sees that no other writer has taken over,
        and returns the end offset. Raises FencedError if one has; LogClosedError if the store
        gives no answer: what wasn't acknowledged may be there or not."""
        with self._syncing, self._health.poisoning("creating a chunk"):
            with self._state:
                self._health.check()
                draft, self._draft = self._draft, None
            if draft is not None:
                winner = self._send(draft)
                if winner is not None:
                    there = parse_chunk_header(winner)
                    epoch = there.epoch if there is not None else "not to be read"
                    raise fenced_error(self._objects, f"its epoch is {epoch}")
            return self._durable

    def room(self, nbytes: int) -> bool:
        """True if ``nbytes`` more fit into ``max_buffer_bytes``. Consumers' positions are looked
        up again only if that matters, and at most each ``poll_seconds``."""
        self._health.check()
        if self._fits(nbytes):
            return True
        handed_out = self._look().handed_out
        if self._fits(nbytes):
            return True
        with self._state:
            # Wholly handed out, the active group needn't count: the next chunk begins another.
            self._wants_group = self._wants_group or handed_out >= self._next
            return handed_out >= self._next

    def apply_trim(self) -> int:
        """Deletes the oldest groups that every consumer has committed and that retention doesn't
        keep; the start offset. The new start is durable before the first is gone.

        Raises LogError if the store refuses; nothing that is needed is gone then.
        """
        self._health.check()
        now_us = self._now_us()
        with self._state:
            groups = [*self._sealed, self._group]
            sealed = [_as_segment(group) for group in self._sealed]
        # Consumers are only asked for where retention would let something go.
        count = count_trimmable(sealed, self._next, now_us, self.options)
        if count:
            count = count_trimmable(sealed, self._look().committed, now_us, self.options)
        if count:
            start = Start(groups[count].number, groups[count].base_offset)
            with _as_log_error(self.path):
                trim_to(self._objects, start)
            with self._state:
                del self._sealed[:count]
                self._start = start
        return self._start.offset

    def expire_producers(self, before_us: int) -> int:
        """Syncs, then forgets the numbers of producers that sent nothing since ``before_us``
        (microseconds since 1970), but not that there were such names; how many. That is durable
        after the next sync."""
        self.sync()
        with self._state:
            self._health.check()
            expiry = expire(self._producers, before_us)
            if expiry.expired:
                self._producers = expiry.table
                self._wants_group = True
                self._draft = self._open_draft()
            warn_of_room(expiry)
            return expiry.expired

    def close(self) -> None:
        """Syncs what was appended, and ends. Raises if that sync fails."""
        try:
            if self._health.failure is None:
                self.sync()
        finally:
            self._health.fail("it was closed")

    def _begin(self) -> None:
        """Creates the control chunk; where another writer was quicker, behind what that wrote."""
        found = recover(self._objects, self._id)
        claims = read_fence(self._objects).claims
        while True:
            found.claimed = claims[-1] if claims else 0
            self._adopt(found)
            draft, self._draft = self._open_draft(), None
            try:
                winner = self._create(draft, flags=CONTROL_CHUNK)
            except FencedError:  # trimmed while we looked, or a third writer is starting
                found = recover(self._objects, self._id)
                claims = read_fence(self._objects).claims
                continue
            if winner is None:
                break
            self._objects.create(claim_name(self._epoch), b"")
            claims = [*claims, self._epoch]
            take_next(self._id, found, winner)
        # One that a killed writer has left would do no harm: later epochs lie above it.
        self._objects.delete([claim_name(epoch) for epoch in claims if epoch < self._epoch])

    def _adopt(self, found: Found) -> None:
        self._start = found.start
        self._epoch: int = max(found.epoch, found.claimed) + 1
        self._number: int = found.next_number
        self._sealed: list[Group] = list(found.sealed)
        self._group: Group = found.group or Group(FIRST_CHUNK, 0, 0, 0, 0)
        self._group_chunks: int = 0
        self._wants_group = True
        self._producers = dict(found.producers)
        self._durable: int = found.end_offset
        self._next: int = found.end_offset
        self._bytes_before: int = found.bytes_before

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def _header(self, block: LineBlock, time_us: int) -> FrameHeader:
        return FrameHeader(
            payload_length=0,
            kind=DATA,
            flags=0,
            runs=len(block.runs),
            base_offset=self._next,
            records=block.records,
            epoch=self._epoch,
            receive_time_us=time_us,
            synced_upto=self._durable,
            previous_crc=0,
            data_length=block.data_bytes,
        )

    def _open_draft(self) -> Draft:
        if self._draft is None:
            begins = (
                self._wants_group
                or self._group.size >= self.options.segment_bytes
                or self._group_chunks >= GROUP_CHUNKS
            )
            self._wants_group = False
            table = self._producers if begins else None
            self._draft = Draft(self._next, self._epoch, self._id[:TAG_BYTES], table)
        return self._draft

    def _send(self, draft: Draft) -> memoryview | None:
        try:
            return self._create(draft, flags=0)
        except Exception:
            raise  # `poisoning` says why
        except BaseException:
            # Without this chunk there would be a hole before the next.
            self._health.fail("creating a chunk was interrupted")
            raise

    def _create(self, draft: Draft, flags: int) -> memoryview | None:
        """Makes the draft durable as the next chunk; the winner's bytes if that number is taken.
        The caller holds _syncing, or has the writer for itself."""
        header = self._chunk_header(draft, flags)
        groups = self._groups_before() if draft.begins_group else []
        data = pack_chunk(header, groups, draft.parts)
        winner = create_chunk(self._objects, header, data)
        if winner is None:
            hit("buffer.after_fsync")
            check_not_fenced(self._objects, header.number, header.epoch)
            self._account(header, groups, len(data))
            hit("buffer.after_publish")
        return winner

    def _chunk_header(self, draft: Draft, flags: int) -> ChunkHeader:
        return ChunkHeader(
            flags=flags,
            epoch=self._epoch,
            groups=0,
            last_crc=draft.last_crc,
            buffer_id=self._id,
            nonce=secrets.token_bytes(16),
            number=self._number,
            base_offset=draft.base_offset,
            records=draft.records,
            line_bytes=draft.line_bytes,
            bytes_before=self._bytes_before,
            group=self._number if draft.begins_group else self._group.number,
            created_us=self._now_us(),
            frames_length=0,
        )

    def _groups_before(self) -> list[Group]:
        """All groups once the active one is sealed."""
        with self._state:
            active = replace(self._group, sealed_us=self._now_us())
            return [*self._sealed, *([active] if active.size else [])]

    def _account(self, header: ChunkHeader, groups: list[Group], size: int) -> None:
        with self._state:
            if header.group == header.number:
                # A trim may have taken the oldest away since.
                self._sealed = [group for group in groups if group.number >= self._start.number]
                self._group = Group(header.number, header.base_offset, header.end_offset, size, 0)
                self._group_chunks = 1
            else:
                self._group = replace(
                    self._group, end_offset=header.end_offset, size=self._group.size + size
                )
                self._group_chunks += 1
            self._number += 1
            self._bytes_before += header.line_bytes
            self._durable = header.end_offset

    def _fits(self, nbytes: int) -> bool:
        with self._state:
            sealed = [_as_segment(group) for group in self._sealed]
            unread = unread_bytes(sealed, self._lowest.handed_out) + self._group.size
            unread += self._draft.length if self._draft is not None else 0
            return unread + nbytes <= self.options.max_buffer_bytes

    def _look(self) -> Position:
        """The lowest position of all consumers, at most ``poll_seconds`` old."""
        now = time.monotonic()
        if now - self._looked >= self._poll_seconds:
            with _as_log_error(self.path):
                self._lowest = lowest_object_position(self._objects)
            self._looked = now
        return self._lowest


def _as_segment(group: Group) -> SealedSegment:
    return SealedSegment(group.base_offset, group.end_offset, group.size, group.sealed_us)


@contextmanager
def _as_log_error(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogError(
            f"buffer {path} can't be trimmed now: {error}",
            applied="nothing that is needed is gone",
            next_step="see to the object store; it is tried again",
        ) from error
