"""The active segment: the one file that frames are appended to."""

from __future__ import annotations

from pathlib import Path

from spark_eoc.buffer.block import BytesLike
from spark_eoc.buffer.directory import segment_path
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.frame import FrameChain, FrameHeader, Place
from spark_eoc.buffer.refuse import FULL_ERRORS, full_error
from spark_eoc.failpoints import hit


class ActiveSegment:
    """An open segment and the place of its next frame.

    Methods raise OSError as the system gives it, after which the file may hold a piece of a frame;
    but for a full disk LogFullError, after which the file is as before.
    """

    def __init__(
        self, directory: Path, base_offset: int, descriptor: int, place: Place, files: Files
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.place = place
        self._descriptor = descriptor
        self._files = files

    @classmethod
    def open(cls, directory: Path, base_offset: int, place: Place, files: Files) -> ActiveSegment:
        """A segment that is there, whose next frame comes at ``place``."""
        descriptor = files.open(segment_path(directory, base_offset))
        return cls(directory, base_offset, descriptor, place, files)

    @classmethod
    def create(
        cls, directory: Path, parts: list[BytesLike], place: Place, files: Files
    ) -> ActiveSegment:
        """A new segment with these bytes, durable with its name, whose next frame comes at
        ``place``."""
        path = segment_path(directory, place.offset)
        try:
            descriptor = files.create(
                path, parts, at_empty=_hit_before_header, at_written=_hit_after_header
            )
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            files.unlink(path)
            files.sync_directory(directory)
            raise full_error(directory, error) from error
        return cls(directory, place.offset, descriptor, place, files)

    @property
    def has_records(self) -> bool:
        """True if it holds a record, so that the next segment gets another name."""
        return self.place.offset > self.base_offset

    def write(self, header: FrameHeader, payload: list[BytesLike], tag: bytes) -> None:
        """Appends a frame; not durable yet."""
        chain = FrameChain(self.place, tag)
        chain.add(header, payload)
        try:
            self._files.write(self._descriptor, self.place.position, chain.parts)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            self._files.truncate(self._descriptor, self.place.position)
            raise full_error(self.directory, error) from error
        self.place = chain.place

    def sync(self) -> None:
        """Makes all frames durable."""
        self._files.sync_data(self._descriptor)

    def close(self) -> None:
        """Closes the file; syncs nothing."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1


def _hit_before_header() -> None:
    hit("buffer.roll_before_header")


def _hit_after_header() -> None:
    hit("buffer.roll_after_header")
