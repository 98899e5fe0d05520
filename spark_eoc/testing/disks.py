"""A small real file system, to be filled up: a tmpfs, so root is needed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from spark_eoc.testing.programs import UnavailableServerError
from spark_eoc.testing.reaper import reaper

_PIECE = 1 << 16


class SmallDisk:
    """``mebibytes`` mounted at a folder, which is made if need be. A context manager.

    Raises UnavailableServerError where a tmpfs can't be mounted, so that a test is skipped.
    """

    def __init__(self, folder: str | os.PathLike[str], mebibytes: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ballast = self.folder / ".ballast"
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(self.folder)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            raise UnavailableServerError(
                "a small disk needs the right to mount a tmpfs", next_step="run it as root"
            )
        reaper().mount(str(self.folder))

    @property
    def room(self) -> int:
        """Free bytes."""
        return shutil.disk_usage(self.folder).free

    def fill(self, room: int = 0) -> None:
        """Leaves ``room`` bytes, or less; writes fail with ENOSPC from then on.

        Files may still be written up to the length that they have: a database that is refused
        that can only die. Only a file with holes that are larger than the room keeps them.
        """
        for path in self.folder.rglob("*"):
            # A server removes its temporary files meanwhile, and some have larger holes than this.
            with contextlib.suppress(OSError):
                if path.is_file() and (size := path.stat().st_size):
                    with open(path, "r+b") as file:
                        os.posix_fallocate(file.fileno(), 0, size)
        with open(self._ballast, "ab", buffering=0) as file:
            try:
                while (more := self.room - room) > 0:
                    file.write(b"\0" * min(more, _PIECE))
            except OSError:
                return

    def free(self) -> None:
        """Gives the room back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmounts it, and all that it held is gone."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)
        reaper().forget(str(self.folder))

    def __enter__(self) -> SmallDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
