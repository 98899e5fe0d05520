"""Deleting chunks, only after it is durable that they aren't retained any more."""

from __future__ import annotations

from spark_eoc.buffer.objects.extent import Start, chunk_name, read_starts
from spark_eoc.buffer.objects.positions import lowest_object_position
from spark_eoc.buffer.objects.recover import recover
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.failpoints import hit


def trim_to(objects: Objects, start: Start) -> None:
    """Makes ``start`` durable, then deletes the chunks before it."""
    hit("buffer.trim_before_start")
    objects.create(start.name, b"")
    hit("buffer.trim_after_start")
    sweep(objects)


def trim_committed(objects: Objects, buffer_id: bytes) -> tuple[int, int]:
    """Deletes the sealed groups that every consumer has committed, whatever the retention, beside
    a running writer too; (start offset before, and now).

    A sealed group stays sealed, and of two starts the higher counts: so it takes nothing from a
    writer, and a writer's own trim takes nothing back.
    """
    found = recover(objects, buffer_id)
    committed = lowest_object_position(objects).committed
    done = [group for group in found.sealed if group.end_offset <= committed]
    if not done or found.group is None:
        return found.start.offset, found.start.offset
    following = [*found.sealed, found.group][len(done)]
    trim_to(objects, Start(following.number, following.base_offset))
    return found.start.offset, following.base_offset


def sweep(objects: Objects) -> None:
    """Deletes what lies before the start that counts. An older start pointer stays until that is
    done, so what a crash has left is known from it."""
    *old, start = read_starts(objects)
    if old:
        objects.delete([chunk_name(number) for number in range(old[0].number, start.number)])
        hit("buffer.trim_after_unlink")
        objects.delete([pointer.name for pointer in old])
