"""Deleting chunks, only after it is durable that they aren't retained any more."""

from __future__ import annotations

from spark_eoc.buffer.objects.extent import Start, chunk_name, read_starts
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.failpoints import hit


def trim_to(objects: Objects, start: Start) -> None:
    """Makes ``start`` durable, then deletes the chunks before it."""
    hit("buffer.trim_before_start")
    objects.create(start.name, b"")
    hit("buffer.trim_after_start")
    sweep(objects)


def sweep(objects: Objects) -> None:
    """Deletes what lies before the start that counts. An older start pointer stays until that is
    done, so what a crash has left is known from it."""
    *old, start = read_starts(objects)
    if old:
        objects.delete([chunk_name(number) for number in range(old[0].number, start.number)])
        hit("buffer.trim_after_unlink")
        objects.delete([pointer.name for pointer in old])
