"""Every write, fsync, rename and unlink of the buffer, and the rules of durability, in one place.

* A new file is durable with its name: it is synced, and then its parent directory is.
* A renamed or unlinked name is durable once its directory is synced.
* A failed fsync is never tried again: the kernel has dropped the pages and marked them clean, so
  that a second one falsely succeeds. The caller stops for good.

:class:`Disk` is the thin layer below, one method for one system call, so that a test can record
the calls, let them fail, or drop what was not synced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_eoc.buffer.block import BytesLike

TEMPORARY_SUFFIX = ".tmp"
_MAX_PARTS = 512  # the system takes 1,024 in one call


class Disk:
    """The system calls that change files."""

    def open(self, path: Path, flags: int) -> int:
        """Descriptor of a file, as ``open(2)``, closed on exec."""
        return os.open(path, flags | os.O_CLOEXEC, 0o644)

    def pwritev(self, descriptor: int, parts: Sequence[BytesLike], position: int) -> int:
        """Bytes written, which may be fewer than there are, as ``pwritev(2)``."""
        return os.pwritev(descriptor, parts, position)

    def truncate(self, descriptor: int, length: int) -> None:
        """As ``ftruncate(2)``."""
        os.ftruncate(descriptor, length)

    def fsync(self, descriptor: int) -> None:
        """As ``fsync(2)``."""
        os.fsync(descriptor)

    def fdatasync(self, descriptor: int) -> None:
        """As ``fdatasync(2)``."""
        os.fdatasync(descriptor)

    def close(self, descriptor: int) -> None:
        """As ``close(2)``."""
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file another name, replacing one that had it."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Removes a name."""
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        """Makes a directory."""
        os.mkdir(path, 0o755)

    def sync_directory(self, path: Path) -> None:
        """Syncs the names in a directory."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _nothing() -> None:
    return None


class Files:
    """The rules of durability; every method raises OSError as the system gives it."""

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or Disk()

    def open(self, path: Path) -> int:
        """Descriptor of an existing file, for reading and writing."""
        return self._disk.open(path, os.O_RDWR)

    def create(
        self,
        path: Path,
        parts: Sequence[BytesLike],
        *,
        at_empty: Callable[[], None] = _nothing,
        at_written: Callable[[], None] = _nothing,
    ) -> int:
        """Descriptor of a new file with this content; content and name are durable on return."""
        descriptor = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            at_empty()
            self.write(descriptor, 0, parts)
            at_written()
            self._disk.fsync(descriptor)
            self._disk.sync_directory(path.parent)
        except BaseException:
            self._disk.close(descriptor)
            raise
        return descriptor

    def replace(self, path: Path, parts: Sequence[BytesLike]) -> None:
        """Gives ``path`` this content at one blow, durable on return."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        descriptor = self._disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self.write(descriptor, 0, parts)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)
        self._disk.rename(temporary, path)
        self._disk.sync_directory(path.parent)

    def write(self, descriptor: int, position: int, parts: Sequence[BytesLike]) -> int:
        """Writes all parts, one behind the other; returns their length. Durable after a sync."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        start = position
        while left:
            written = self._disk.pwritev(descriptor, left[:_MAX_PARTS], position)
            position += written
            while left and written >= left[0].nbytes:
                written -= left.pop(0).nbytes
            if left and written:
                left[0] = left[0][written:]
        return position - start

    def sync_data(self, descriptor: int) -> None:
        """Makes what was written, and the length, durable."""
        self._disk.fdatasync(descriptor)

    def truncate(self, descriptor: int, length: int) -> None:
        """Cuts the file; durable after a sync."""
        self._disk.truncate(descriptor, length)

    def cut(self, path: Path, length: int) -> None:
        """Cuts the file, durable on return."""
        descriptor = self.open(path)
        try:
            self._disk.truncate(descriptor, length)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)

    def close(self, descriptor: int) -> None:
        """Closes a descriptor; syncs nothing."""
        self._disk.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Removes a name; durable after :meth:`sync_directory`."""
        self._disk.unlink(path)

    def sync_directory(self, path: Path) -> None:
        """Makes the names in a directory durable."""
        self._disk.sync_directory(path)

    def make_directory(self, path: Path) -> None:
        """The directory and all above it, durable on return; it may exist already."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        try:
            self._disk.mkdir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
        self._disk.sync_directory(path.parent)
