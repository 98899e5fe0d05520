"""Checkpoint surgery: the dangerous states of a checkpoint, made directly, in seconds each.

A kill finds them by chance and costs a restart of the JVM; edited ``offsets/`` and ``commits/``
on a warm Spark are the same to the query that starts on them. Each operation is a named function
that edits the checkpoint of a stopped query.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """What an operation works on: the checkpoint, and an older copy of it."""

    checkpoint: Path
    older: Path


@dataclass(frozen=True)
class Operation:
    """``harmless``: a query that is exactly once goes on; else it, or Spark, must refuse to."""

    name: str
    what: str
    harmless: bool
    operate: Callable[[Place], None]


def batches(folder: Path) -> list[int]:
    """Ids of the entries of ``offsets/`` or ``commits/``, in order; none without a folder."""
    if not folder.is_dir():
        return []
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())


def remove(folder: Path, batch_id: int) -> None:
    """An entry with its checksum, as if it had never been written."""
    (folder / str(batch_id)).unlink()
    (folder / f".{batch_id}.crc").unlink(missing_ok=True)


def _newest(folder: Path) -> int:
    return batches(folder)[-1]


def _no_newest_commit(place: Place) -> None:
    commits = place.checkpoint / "commits"
    remove(commits, _newest(commits))


def _several_commits(place: Place) -> None:
    commits = place.checkpoint / "commits"
    for batch_id in batches(commits)[-2:]:
        remove(commits, batch_id)


def _no_commits(place: Place) -> None:
    shutil.rmtree(place.checkpoint / "commits")


def _half(file: Path) -> None:
    """As after a power cut: half of the bytes, and no checksum."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def _half_commit(place: Place) -> None:
    commits = place.checkpoint / "commits"
    _half(commits / str(_newest(commits)))


def _half_offsets(place: Place) -> None:
    _no_newest_commit(place)
    offsets = place.checkpoint / "offsets"
    _half(offsets / str(_newest(offsets)))


def _left_over(place: Place) -> None:
    """A crash before the rename leaves the temporary file of the next entry."""
    offsets = place.checkpoint / "offsets"
    newest = offsets / str(_newest(offsets))
    data = newest.read_bytes()
    (offsets / f".{int(newest.name) + 1}.0a1b2c3d.tmp").write_bytes(data[: len(data) // 2])


def _batch_forgotten(place: Place) -> None:
    for name in ("commits", "offsets"):
        folder = place.checkpoint / name
        remove(folder, _newest(folder))


def _older_copy(place: Place) -> None:
    shutil.rmtree(place.checkpoint)
    shutil.copytree(place.older, place.checkpoint)


def _wiped(place: Place) -> None:
    shutil.rmtree(place.checkpoint)


def _moved(place: Place) -> None:
    """Copied away and back, as a migration does: other inodes, other times, no checksums."""
    copy = place.checkpoint.with_name(f"{place.checkpoint.name}-copy")
    shutil.copytree(place.checkpoint, copy)
    shutil.rmtree(place.checkpoint)
    for crc in copy.rglob(".*.crc"):
        crc.unlink()
    copy.rename(place.checkpoint)


def _no_metadata(place: Place) -> None:
    (place.checkpoint / "metadata").unlink()
    (place.checkpoint / ".metadata.crc").unlink(missing_ok=True)


#: Every operation by its name.
OPERATIONS: dict[str, Operation] = {
    each.name: each
    for each in (
        Operation("no_newest_commit", "the newest file in commits/ is missing", True,
                  _no_newest_commit),
        Operation("several_commits_missing", "the two newest files in commits/ are missing", True,
                  _several_commits),
        Operation("no_commits", "commits/ is missing", True, _no_commits),
        Operation("half_commit", "the newest file in commits/ is half written", False,
                  _half_commit),
        Operation("half_offsets", "the newest file in offsets/ is half written, and has no commit",
                  False, _half_offsets),
        Operation("left_over_offsets", "a temporary file of the next batch is left", True,
                  _left_over),
        Operation("batch_forgotten", "the newest batch is missing in offsets/ and commits/", False,
                  _batch_forgotten),
        Operation("older_copy", "an older copy of the checkpoint was restored", False, _older_copy),
        Operation("wiped", "the checkpoint was deleted", False, _wiped),
        Operation("no_metadata", "the checkpoint's metadata is missing: another query id", False,
                  _no_metadata),
        Operation("moved", "the checkpoint was copied to another disk and back", True, _moved),
    )
}  # fmt: skip
