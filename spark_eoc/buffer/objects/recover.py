"""What a writer that starts finds out: where the buffer ends, and what its producers sent."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_eoc.buffer.block import ProducerState
from spark_eoc.buffer.frame import (
    DATA,
    HEADER_BYTES,
    PRODUCERS,
    TABLE_FIRST,
    parse_runs,
    parse_table,
)
from spark_eoc.buffer.objects.chunk import (
    ChunkHeader,
    Group,
    check_chunk,
    corrupt_chunk,
    frames_of,
    groups_of,
)
from spark_eoc.buffer.objects.extent import (
    FIRST_CHUNK,
    Extent,
    Start,
    chunk_name,
    find_extent,
    read_start,
)
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.errors import CorruptLogError

_FETCHES_AT_ONCE = 8


@dataclass
class Found:
    """The state of a buffer behind chunk ``last``, or of an empty one."""

    start: Start
    last: ChunkHeader | None = None
    producers: dict[bytes, ProducerState] = field(default_factory=dict)
    sealed: list[Group] = field(default_factory=list)
    group: Group | None = None
    claimed: int = 0

    @property
    def next_number(self) -> int:
        """Number of the chunk to create next."""
        return FIRST_CHUNK if self.last is None else self.last.number + 1

    @property
    def end_offset(self) -> int:
        """One past the last record."""
        return 0 if self.last is None else self.last.end_offset

    @property
    def bytes_before(self) -> int:
        """Line bytes of all chunks so far."""
        return 0 if self.last is None else self.last.bytes_before + self.last.line_bytes

    @property
    def epoch(self) -> int:
        """The newest epoch."""
        return 0 if self.last is None else self.last.epoch

    def take_in(self, header: ChunkHeader, data: memoryview) -> None:
        """The next chunk, checked. Raises CorruptLogError if its frames aren't whole."""
        name = chunk_name(header.number)
        self.producers = producers_after(self.producers, name, header, data)
        if header.group == header.number:
            self.sealed = groups_of(header, data)
            self.group = Group(
                header.number, header.base_offset, header.base_offset, 0, header.created_us
            )
        if self.group is None or header.group != self.group.number:
            raise corrupt_chunk(name, 0, "it belongs to a group that is not there")
        began = self.group
        self.group = Group(
            began.number,
            began.base_offset,
            header.end_offset,
            began.size + header.length,
            header.created_us,
        )
        self.last = header


def producers_after(
    known: dict[bytes, ProducerState], name: str, header: ChunkHeader, data: memoryview
) -> dict[bytes, ProducerState]:
    """The table of producers behind a checked chunk; ``known`` may be changed. Raises
    CorruptLogError if the chunk's frames aren't whole."""
    for frame, position in frames_of(name, header, data):
        payload = data[position + HEADER_BYTES : position + frame.length]
        if frame.kind == PRODUCERS:
            if frame.flags & TABLE_FIRST:
                known = {}
            known.update(parse_table(payload, frame.runs))
        elif frame.kind == DATA:
            for run in parse_runs(payload, frame.runs)[0]:
                if run.producer:
                    newest = run.first_sequence + run.records - 1
                    known[run.producer] = ProducerState(newest, frame.receive_time_us)
    return known


def recover(objects: Objects, buffer_id: bytes) -> Found:
    """Reads the newest group, whatever is retained. Raises CorruptLogError where a chunk of it is
    missing or damaged: nothing of it is guessed."""
    while True:
        extent = find_extent(objects, buffer_id)
        try:
            return _read_group(objects, buffer_id, extent)
        except CorruptLogError:
            # Trimmed while it was read, then; a writer must have been at work.
            if extent.last is None or read_start(objects).number <= extent.last.group:
                raise


def _read_group(objects: Objects, buffer_id: bytes, extent: Extent) -> Found:
    found = Found(extent.start)
    if extent.last is None:
        return found
    numbers = range(extent.last.group, extent.last.number + 1)
    offset = None
    for header, data in _chunks(objects, buffer_id, numbers):
        if offset is not None and header.base_offset != offset:
            raise corrupt_chunk(chunk_name(header.number), 0, f"record {offset} is missing before")
        found.take_in(header, data)
        offset = header.end_offset
    found.sealed = [group for group in found.sealed if group.number >= extent.start.number]
    return found


def take_next(buffer_id: bytes, found: Found, data: memoryview) -> None:
    """Takes in the chunk behind ``found``, which another writer was quicker to create."""
    number = found.next_number
    found.take_in(check_chunk(chunk_name(number), data, number, buffer_id), data)


def _chunks(
    objects: Objects, buffer_id: bytes, numbers: range
) -> Iterator[tuple[ChunkHeader, memoryview]]:
    names = [chunk_name(number) for number in numbers]
    with ThreadPoolExecutor(_FETCHES_AT_ONCE) as pool:
        for at in range(0, len(names), _FETCHES_AT_ONCE):
            part = names[at : at + _FETCHES_AT_ONCE]
            for place, data in enumerate(pool.map(objects.get, part), at):
                if data is None:
                    raise corrupt_chunk(names[place], 0, "it is missing")
                yield check_chunk(names[place], data, numbers[place], buffer_id), data
