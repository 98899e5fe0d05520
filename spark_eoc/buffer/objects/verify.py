"""What a buffer in an object store holds, and whether all of it is as it was written; read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_eoc.buffer.block import ProducerState
from spark_eoc.buffer.consumers import Position
from spark_eoc.buffer.expiry import count_expired, known_producers
from spark_eoc.buffer.objects.chunk import ChunkHeader, Group, check_chunk
from spark_eoc.buffer.objects.extent import Start, chunk_name, read_buffer_id, read_start
from spark_eoc.buffer.objects.positions import read_object_positions
from spark_eoc.buffer.objects.recover import producers_after, recover
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.buffer.survey import Damage
from spark_eoc.errors import CorruptLogError, LogError

_FETCHES_AT_ONCE = 8


@dataclass(frozen=True)
class ObjectReport:
    """A buffer in an object store: ``chunks`` objects in ``groups``, which are trimmed as a whole;
    the last one is still written to. ``damages`` are those that were looked for."""

    path: str
    buffer_id: str
    start_offset: int
    end_offset: int
    epoch: int
    chunks: int
    groups: tuple[Group, ...]
    consumers: dict[str, Position]
    producers: dict[str, ProducerState]
    expired_producers: int
    damages: tuple[Damage, ...] = ()


def survey_objects(objects: Objects) -> ObjectReport:
    """The extent, by reading the newest group alone. Raises LogError if there is no buffer,
    CorruptLogError if that group is damaged."""
    found = recover(objects, known_buffer_id(objects))
    last = found.last
    return ObjectReport(
        path=objects.url,
        buffer_id=known_buffer_id(objects).hex(),
        start_offset=found.start.offset,
        end_offset=found.end_offset,
        epoch=found.epoch,
        chunks=0 if last is None else last.number + 1 - found.start.number,
        groups=(*found.sealed, *([found.group] if found.group else [])),
        consumers=read_object_positions(objects),
        producers=_named(found.producers),
        expired_producers=count_expired(found.producers),
    )


def verify_objects(objects: Objects) -> ObjectReport:
    """Reads every chunk that is retained and checks every byte, beside a writer if there is one.

    Raises LogError if there is no buffer; damage is reported, not raised.
    """
    buffer_id = known_buffer_id(objects)
    walk = _Walk(objects, buffer_id, read_start(objects))
    walk.run()
    last = walk.last
    return ObjectReport(
        path=objects.url,
        buffer_id=buffer_id.hex(),
        start_offset=walk.start.offset,
        end_offset=walk.start.offset if last is None else last.end_offset,
        epoch=0 if last is None else last.epoch,
        chunks=walk.chunks,
        groups=tuple(walk.groups.values()),
        consumers=read_object_positions(objects),
        producers=_named(walk.producers),
        expired_producers=count_expired(walk.producers),
        damages=tuple(walk.damages),
    )


def known_buffer_id(objects: Objects) -> bytes:
    """The buffer's id; LogError if there is no buffer."""
    buffer_id = read_buffer_id(objects)
    if buffer_id is None:
        raise LogError(f"there is no buffer at {objects.url}", path=objects.url)
    return buffer_id


def _named(producers: dict[bytes, ProducerState]) -> dict[str, ProducerState]:
    return {
        name.decode("utf-8", "replace"): state for name, state in known_producers(producers).items()
    }


@dataclass
class _Walk:
    """Over all chunks from ``start`` on, whatever is missing between."""

    objects: Objects
    buffer_id: bytes
    start: Start
    last: ChunkHeader | None = None
    chunks: int = 0
    groups: dict[int, Group] = field(default_factory=dict)
    producers: dict[bytes, ProducerState] = field(default_factory=dict)
    damages: list[Damage] = field(default_factory=list)

    def run(self) -> None:
        found = [int(name) for name in self.objects.names("chunks")]
        numbers = range(self.start.number, max(found, default=0) + 1)
        if not numbers and self.start.offset:
            self._damage(chunk_name(self.start.number), "it is missing")
        for number, data in _fetch(self.objects, numbers):
            if data is not None:
                self._check(number, data)
            elif not self._was_trimmed(number):
                self._damage(chunk_name(number), "it is missing")

    def _check(self, number: int, data: memoryview) -> None:
        name = chunk_name(number)
        try:
            header = check_chunk(name, data, number, self.buffer_id)
            self.producers = producers_after(self.producers, name, header, data)
        except CorruptLogError as error:
            self.damages.append(Damage(name, error.facts["position"], error.facts["why"]))
            return
        self.chunks += 1
        self._compare(name, header)
        self._count(header)
        self.last = header

    def _compare(self, name: str, header: ChunkHeader) -> None:
        """With the chunk before, if that one is whole."""
        before = self.last
        if before is None:
            if header.number == self.start.number and header.base_offset != self.start.offset:
                self._damage(name, f"it begins at {header.base_offset}, not {self.start.offset}")
        elif before.number + 1 == header.number:
            if header.base_offset != before.end_offset:
                self._damage(name, f"it begins at {header.base_offset}, not {before.end_offset}")
            if header.bytes_before != before.bytes_before + before.line_bytes:
                self._damage(name, "its count of bytes is not that of the chunk before")
            if header.epoch < before.epoch:
                self._damage(name, f"its epoch is {header.epoch}, and {before.epoch} came before")

    def _count(self, header: ChunkHeader) -> None:
        sealed = header.created_us
        before = self.groups.get(header.group)
        base, size = (before.base_offset, before.size) if before else (header.base_offset, 0)
        self.groups[header.group] = Group(
            header.group, base, header.end_offset, size + header.length, sealed
        )

    def _was_trimmed(self, number: int) -> bool:
        """While we looked, then; what is trimmed isn't part of the buffer any more."""
        start = read_start(self.objects)
        if start.number <= number:
            return False
        self.start = start
        return True

    def _damage(self, name: str, why: str) -> None:
        self.damages.append(Damage(name, 0, why))


def _fetch(objects: Objects, numbers: Sequence[int]) -> Iterator[tuple[int, memoryview | None]]:
    """Each chunk in turn, some fetched ahead; None where there is none."""
    with ThreadPoolExecutor(_FETCHES_AT_ONCE) as pool:
        for at in range(0, len(numbers), _FETCHES_AT_ONCE):
            part = numbers[at : at + _FETCHES_AT_ONCE]
            yield from zip(
                part, pool.map(objects.get, [chunk_name(number) for number in part]), strict=True
            )
