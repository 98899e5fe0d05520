"""A disk that is filled up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_eoc.testing.disks import SmallDisk
from spark_eoc.testing.programs import UnavailableServerError


def test_a_file_with_holes_larger_than_the_disk_does_not_keep_it_from_being_full(
    tmp_path: Path,
) -> None:
    """A database has such files; filling up ended with the error that it was to bring about."""
    try:
        disk = SmallDisk(tmp_path / "disk", 1)
    except UnavailableServerError as error:
        pytest.skip(str(error))
    with disk:
        (disk.folder / "small").write_bytes(b"x")
        (disk.folder / "holes").touch()
        os.truncate(disk.folder / "holes", 4 << 20)
        disk.fill()
        assert disk.room == 0
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_bytes(b"x")
        disk.free()
        assert disk.room > 0
    assert not list(disk.folder.iterdir())
