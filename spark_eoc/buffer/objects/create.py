"""Creating a chunk under the next number: what fences one writer from another.

Only one object of a name can be created. Whoever finds the name taken reads what is there: the own
nonce means that only the answer to an earlier try was lost; anything else is another writer's. A
name that was trimmed can be created again, so after each creation, and before anything of it is
acknowledged, the start is read: if it lies beyond the number, others have gone on long ago.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from spark_eoc.buffer.objects.chunk import ChunkHeader, parse_chunk_header
from spark_eoc.buffer.objects.extent import chunk_name, read_fence
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.errors import FencedError

LOG = logging.getLogger("spark_eoc.buffer")
T = TypeVar("T")

_TRIES = 4
_FIRST_WAIT_SECONDS = 0.1


def create_chunk(objects: Objects, header: ChunkHeader, data: bytes) -> memoryview | None:
    """None once the chunk is there and is this one; else the one in its place, whole: a writer
    that starts must not need more requests to go on behind it than the other needs to go on.

    OSError after some tries without an answer: it may be there or not, now or later.
    """
    name = chunk_name(header.number)

    def attempt() -> memoryview | None:
        while not objects.create(name, data):
            winner = objects.get(name)
            if winner is not None:
                there = parse_chunk_header(winner)
                return None if there is not None and there.nonce == header.nonce else winner
        return None

    return patiently(attempt)


def check_not_fenced(objects: Objects, number: int, epoch: int) -> None:
    """Raises FencedError if chunk ``number``, just created, lies before the start, or if a newer
    writer has claimed the buffer. Such a one may be slower than this, and would find the next
    number taken for ever; the chunk stays then, which does no harm."""
    fence = patiently(lambda: read_fence(objects))
    if fence.claims and fence.claims[-1] > epoch:
        raise fenced_error(objects, f"epoch {fence.claims[-1]} is claimed")
    start = fence.starts[-1]
    if start.number <= number:
        return
    try:
        objects.delete([chunk_name(number)])
    except OSError as error:
        LOG.warning("%s is not needed and stays: %s", chunk_name(number), error)
    raise fenced_error(objects, f"chunks before {start.number} are trimmed already")


def fenced_error(objects: Objects, why: str) -> FencedError:
    """The error of a writer that another has taken the buffer from."""
    return FencedError(
        f"another writer has taken over buffer {objects.url}: {why}",
        applied="what was acknowledged is durable, and nothing more was acknowledged",
        next_step="let one receiver alone fill a buffer; this one may be started again, and then "
        "takes over itself",
        url=objects.url,
    )


def patiently(request: Callable[[], T]) -> T:
    """What ``request`` returns, tried a few times where the store gives no answer."""
    wait = _FIRST_WAIT_SECONDS
    for _ in range(_TRIES - 1):
        try:
            return request()
        except OSError as error:
            LOG.warning("%s; trying again", error)
            time.sleep(wait)
            wait *= 2
    return request()
