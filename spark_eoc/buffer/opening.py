"""The implementation of a buffer that its path asks for: a folder, or an object store's URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_eoc.buffer.consumers import ConsumerPosition
from spark_eoc.buffer.directory import read_identity
from spark_eoc.buffer.interface import BufferPosition, BufferReader, BufferWriter
from spark_eoc.buffer.objects.extent import read_buffer_id
from spark_eoc.buffer.objects.positions import ObjectPosition
from spark_eoc.buffer.objects.read import read_object_slice
from spark_eoc.buffer.objects.reader import ObjectReader
from spark_eoc.buffer.objects.store import ObstoreObjects, is_object_url
from spark_eoc.buffer.objects.writer import ObjectWriter
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.read import read_slice
from spark_eoc.buffer.reader import LogReader
from spark_eoc.buffer.slices import Slice
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.errors import ConfigError, LogError


def open_writer(
    path: str, options: BufferOptions | None = None, *, takeover_ms: int | None = None
) -> BufferWriter:
    """The writer of the buffer at ``path``, created or recovered.

    In a folder, LogLockedError while another process has it, and ``takeover_ms`` as
    ``LogWriter.open`` says; in an object store the newest writer has it at once.
    """
    if not is_object_url(path):
        return LogWriter.open(path, options, takeover_ms=takeover_ms)
    return ObjectWriter.open(path, options)


def open_reader(path: str) -> BufferReader:
    """A reader of the buffer at ``path``; whether there is one, the first call tells."""
    return ObjectReader(path) if is_object_url(path) else LogReader(path)


def open_position(path: str, name: str) -> BufferPosition:
    """The position of consumer ``name`` in the buffer at ``path``. Raises ConfigError where the
    name or the path can't be used."""
    if not is_object_url(path):
        return ConsumerPosition.open(path, name)
    try:
        return ObjectPosition(ObstoreObjects(path), name)
    except OSError as error:
        raise ConfigError(
            f"the position of consumer {name!r} can't be kept: {error}",
            applied="nothing",
            next_step="see that the bucket may be read, listed and written from the driver",
        ) from error


def read_piece(piece: Slice, **wanted: Any) -> Iterator[Any]:
    """The records of a slice, as ``read_slice`` yields them, from wherever they are."""
    read = read_object_slice if is_object_url(piece.path) else read_slice
    return read(piece, **wanted)


def holds_buffer(path: str) -> bool:
    """Whether there is a buffer at ``path``. Raises LogError if that can't be told."""
    if not is_object_url(path):
        return read_identity(Path(path)) is not None
    try:
        return read_buffer_id(ObstoreObjects(path)) is not None
    except OSError as error:
        raise LogError(
            f"buffer {path} can't be read: {error}",
            next_step="see that bucket, region and credentials are right",
        ) from error
