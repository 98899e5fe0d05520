"""Reading the lines of a slice from an object store, where a task runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from spark_eoc.buffer.columns import values
from spark_eoc.buffer.frame import DATA, FrameHeader
from spark_eoc.buffer.joiner import Joiner
from spark_eoc.buffer.objects.chunk import ChunkHeader, check_chunk, corrupt_chunk, frames_of
from spark_eoc.buffer.objects.extent import chunk_name, read_start
from spark_eoc.buffer.objects.store import Objects, ObstoreObjects
from spark_eoc.buffer.slices import Slice
from spark_eoc.errors import LogError, OffsetOutOfRangeError

_POLL_SECONDS = 0.2
#: So many chunks are fetched at once while they are small, so that many small ones don't cost the
#: store's latency each.
_FETCHES_AT_ONCE = 8
_SMALL_BYTES = 1024 * 1024


def read_object_slice(
    piece: Slice,
    *,
    timestamp: bool = False,
    offset: bool = False,
    wait_seconds: float = 5.0,
    objects: Objects | None = None,
) -> Iterator[Any]:
    """Yields exactly the ``piece.count`` records as ``read_slice`` does, straight from the store.

    Raises OffsetOutOfRangeError if they were trimmed, LogError naming the host if the store can't
    be read for ``wait_seconds``, CorruptLogError if the bytes aren't what was written.
    """
    used = objects or ObstoreObjects(piece.path)
    joiner = Joiner(timestamp, offset, piece.first_offset)
    for header, lines in _lines(piece, used, wait_seconds):
        yield from joiner.add(header, lines)
    # A name that was trimmed can be created again by a writer that was stopped: had that happened
    # to one of these, the start would lie beyond the first of them now.
    _check_retained(piece, used)
    yield from joiner.rest()


def _lines(
    piece: Slice, objects: Objects, wait_seconds: float
) -> Iterator[tuple[FrameHeader, Any]]:
    following = piece.first_offset
    for header, data in _chunks(piece, objects, wait_seconds):
        name = chunk_name(header.number)
        if header.base_offset > following:
            raise corrupt_chunk(name, 0, f"record {following} is missing before it")
        buffer = pa.py_buffer(data)
        for frame, position in frames_of(name, header, data):
            if frame.kind == DATA and frame.end_offset > following:
                skip = following - frame.base_offset
                count = min(frame.end_offset, piece.end_offset) - following
                yield frame, values(buffer, position, frame).slice(skip, count)
                following += count
            if following == piece.end_offset:
                return


def _chunks(
    piece: Slice, objects: Objects, wait_seconds: float
) -> Iterator[tuple[ChunkHeader, memoryview]]:
    """The chunks from that of the first record on, some fetched ahead; never ends by itself."""
    buffer_id = bytes.fromhex(piece.buffer_id)
    number, ahead = piece.segment, 1
    waiting: list[Future[memoryview | None]] = []
    pool = ThreadPoolExecutor(_FETCHES_AT_ONCE)
    try:
        while True:
            while len(waiting) < ahead:
                name = chunk_name(number + len(waiting))
                waiting.append(pool.submit(objects.get, name))
            name = chunk_name(number)
            data = _patiently(piece, objects, name, waiting.pop(0), wait_seconds)
            header = check_chunk(name, data, number, buffer_id)
            if number == piece.segment and header.epoch != piece.epoch:
                raise corrupt_chunk(name, 0, f"its epoch is {header.epoch}, not {piece.epoch}")
            yield header, data
            number += 1
            ahead = _FETCHES_AT_ONCE if data.nbytes < _SMALL_BYTES else 2
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _patiently(
    piece: Slice,
    objects: Objects,
    name: str,
    first: Future[memoryview | None],
    wait_seconds: float,
) -> memoryview:
    """The chunk, asked for again for a while if the store fails or doesn't show it yet."""
    deadline = time.monotonic() + wait_seconds
    ask: Callable[[], memoryview | None] = first.result
    while True:
        data, failure = _result(ask)
        if data is not None:
            return data
        if failure is None:
            _check_retained(piece, objects)
        if time.monotonic() >= deadline:
            raise _unreadable(piece, name, failure)
        time.sleep(_POLL_SECONDS)
        ask = partial(objects.get, name)


def _result(ask: Callable[[], memoryview | None]) -> tuple[memoryview | None, OSError | None]:
    try:
        return ask(), None
    except OSError as error:
        return None, error


def _check_retained(piece: Slice, objects: Objects) -> None:
    start = read_start(objects)
    if start.number > piece.segment:
        raise OffsetOutOfRangeError(
            f"record {piece.first_offset} of buffer {piece.path} was trimmed; start is "
            f"{start.offset}",
            applied="nothing of this partition",
            next_step="let only one query read under one consumer name",
            offset=piece.first_offset,
            start_offset=start.offset,
        )


def _unreadable(piece: Slice, name: str, failure: OSError | None) -> LogError:
    host = socket.gethostname()
    return LogError(
        f"host {host} can't read {name} of {piece.path}: {failure or 'it is not there'}",
        applied="nothing of this partition",
        next_step="see that executors reach the store and have its credentials, such as by "
        "spark.executorEnv or the instance's role",
        host=host,
        path=piece.path,
    )
