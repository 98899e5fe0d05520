"""What a buffer in an object store is made of, and where it starts and ends.

::

    buffer.json            format and buffer id; created once
    start/N-O              chunks below number N are trimmed, O is the first retained record
    start/claim-E          a writer that will have epoch E wants to start, and finds another at work
    chunks/N               chunk N, numbered densely from 1, 20 digits
    consumers/NAME/V       version V of a consumer's position, the highest counts

Nothing is ever overwritten. The start, too, is a new object each time, and the highest counts: a
writer that was stopped for an hour and then stores an old start would otherwise take it back.
"""

from __future__ import annotations

import json
import secrets
from typing import NamedTuple

from spark_eoc.buffer.objects.chunk import (
    CHUNK_HEADER_BYTES,
    ChunkHeader,
    corrupt_chunk,
    parse_chunk_header,
)
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.errors import CorruptLogError

IDENTITY_NAME = "buffer.json"
START_FOLDER = "start"
FORMAT = 1
_CLAIM = "claim-"
FIRST_CHUNK = 1


class Start(NamedTuple):
    """Chunk ``number`` is the first that is retained, and record ``offset``."""

    number: int
    offset: int

    @property
    def name(self) -> str:
        """Name of the object that says so."""
        return f"{START_FOLDER}/{self.number:020d}-{self.offset:020d}"


def chunk_name(number: int) -> str:
    """Name of a chunk's object."""
    return f"chunks/{number:020d}"


def read_buffer_id(objects: Objects) -> bytes | None:
    """The 16 bytes of the buffer's id; None if there is no buffer. CorruptLogError for another
    format."""
    data = objects.get(IDENTITY_NAME)
    if data is None:
        return None
    try:
        content = json.loads(bytes(data))
        if content["format"] == FORMAT and len(found := bytes.fromhex(content["buffer_id"])) == 16:
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise CorruptLogError(
        f"{objects.url}/{IDENTITY_NAME} is not of a buffer that this version reads",
        applied="nothing",
        next_step="give another prefix, or a newer spark-eoc",
        file=IDENTITY_NAME,
    )


def ensure_buffer_id(objects: Objects) -> bytes:
    """The buffer's id, created if there is none; of two that create it at once one wins."""
    found = read_buffer_id(objects)
    while found is None:
        content = {"format": FORMAT, "buffer_id": secrets.token_hex(16)}
        objects.create(IDENTITY_NAME, json.dumps(content).encode())
        found = read_buffer_id(objects)
    if not objects.names(START_FOLDER):
        objects.create(Start(FIRST_CHUNK, 0).name, b"")
    return found


class Fence(NamedTuple):
    """What one listing of ``start/`` says: start pointers, the one that counts last and at least
    one, and the epochs that are claimed."""

    starts: list[Start]
    claims: list[int]


def claim_name(epoch: int) -> str:
    """Name of the object with which a writer claims an epoch."""
    return f"{START_FOLDER}/{_CLAIM}{epoch:010d}"


def read_fence(objects: Objects) -> Fence:
    """Where the buffer starts, and who wants to take it over."""
    starts, claims = [], []
    for name in objects.names(START_FOLDER):
        if name.startswith(_CLAIM):
            claims.append(int(name[len(_CLAIM) :]))
        else:
            number, _, offset = name.partition("-")
            starts.append(Start(int(number), int(offset)))
    return Fence(sorted(starts) or [Start(FIRST_CHUNK, 0)], sorted(claims))


def read_starts(objects: Objects) -> list[Start]:
    """All start pointers, the one that counts last; at least one."""
    return read_fence(objects).starts


def read_start(objects: Objects) -> Start:
    """The start pointer that counts."""
    return read_starts(objects)[-1]


def read_header(objects: Objects, number: int, buffer_id: bytes) -> ChunkHeader | None:
    """Header of chunk ``number``, None if there is none; CorruptLogError if it is no chunk of
    this buffer."""
    data = objects.head(chunk_name(number), CHUNK_HEADER_BYTES)
    if data is None:
        return None
    header = parse_chunk_header(data)
    if header is None or header.number != number or header.buffer_id != buffer_id:
        raise corrupt_chunk(chunk_name(number), 0, "it is not this chunk of this buffer")
    return header


class Extent(NamedTuple):
    """Chunks ``start.number`` up to, and with, ``last``; without any, ``last`` is None."""

    start: Start
    last: ChunkHeader | None


def find_extent(objects: Objects, buffer_id: bytes, known: ChunkHeader | None = None) -> Extent:
    """Start and end of the buffer as they are now; ``known`` is a chunk that was seen before.

    Numbers are dense, so the end is found by doubling steps and halving them again: two requests
    if nothing is new, and about twice the logarithm of what is.
    """
    last = known
    while True:
        last = last and _gallop(objects, buffer_id, last)
        # Read after the end was found missing: a chunk that was trimmed just then is missing too,
        # but then the start lies beyond it now, and all is looked for again from there.
        start = read_start(objects)
        if last is not None and start.number <= last.number:
            return Extent(start, last)
        last = read_header(objects, start.number, buffer_id)
        if last is None and read_start(objects) == start:
            if start.number > FIRST_CHUNK:
                raise corrupt_chunk(chunk_name(start.number), 0, "it is missing")
            return Extent(start, None)


def _gallop(objects: Objects, buffer_id: bytes, known: ChunkHeader) -> ChunkHeader:
    """The last chunk, from one that exists."""
    step = 1
    while (found := read_header(objects, known.number + step, buffer_id)) is not None:
        known, step = found, step * 2
    while step > 1:
        step //= 2
        found = read_header(objects, known.number + step, buffer_id)
        known = found or known
    return known
