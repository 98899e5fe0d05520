"""The sealed segments: how much of them is unread, and which may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from spark_eoc.buffer.directory import read_segment_header, segment_path
from spark_eoc.buffer.files import Files
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.failpoints import hit


@dataclass(frozen=True)
class SealedSegment:
    """A segment that is never appended to again: records ``[base_offset, end_offset)``, ``size``
    in bytes, sealed at ``sealed_us``, microseconds since 1970."""

    base_offset: int
    end_offset: int
    size: int
    sealed_us: int


def list_sealed(directory: Path, bases: Sequence[int]) -> list[SealedSegment]:
    """All but the last of the segments with these base offsets. One was sealed when the next
    was created."""
    sealed = []
    for base, following in pairwise(bases):
        header = read_segment_header(segment_path(directory, following))
        size = segment_path(directory, base).stat().st_size
        sealed.append(SealedSegment(base, following, size, header.created_us if header else 0))
    return sealed


def unread_bytes(sealed: Sequence[SealedSegment], handed_out: int) -> int:
    """Size of the segments that aren't wholly handed out."""
    return sum(segment.size for segment in sealed if segment.end_offset > handed_out)


def count_trimmable(
    sealed: Sequence[SealedSegment], committed: int, now_us: int, options: BufferOptions
) -> int:
    """Number of leading segments that may be deleted.

    Those that every consumer has committed, and that are older than the retention or beyond its
    bytes. Time that runs backwards only keeps more. The active segment isn't among them.
    """
    done = [segment for segment in sealed if segment.end_offset <= committed]
    kept = 0
    for count in range(len(done), 0, -1):
        segment = done[count - 1]
        kept += segment.size
        old = now_us - segment.sealed_us >= options.retention_ms * 1000
        if old or kept > options.retention_bytes:
            return count
    return 0


def unlink_segments(directory: Path, sealed: Sequence[SealedSegment], files: Files) -> None:
    """Deletes these, the oldest first, durable on return. The start pointer lies beyond them, and
    is durable, before this is called."""
    for segment in sealed:
        path = segment_path(directory, segment.base_offset)
        if path.exists():
            files.unlink(path)
        hit("buffer.trim_after_unlink")
    files.sync_directory(directory)
