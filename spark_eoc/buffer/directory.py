"""What lies in a buffer's directory: the identity and the segments; and the error for damage.

::

    identity                       buffer id and format version, JSON
    lock                           see lock.py
    published, start               see published.py and slots.py
    consumers/NAME.position        see consumers.py
    00000000000000000000.segment   see segment.py and frame.py
    torn/                          bytes that recovery cut off, for a look by a person
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from spark_eoc.buffer.files import TEMPORARY_SUFFIX, Files
from spark_eoc.buffer.segment import (
    SEGMENT_HEADER_BYTES,
    VERSION,
    SegmentHeader,
    base_of,
    parse_segment_header,
    segment_name,
)
from spark_eoc.errors import CorruptLogError, LogError

IDENTITY_NAME = "identity"
TORN_NAME = "torn"


def corrupt(path: Path, position: int, why: str) -> CorruptLogError:
    """The error for bytes that are not what was written; names file, position and command."""
    directory = path if path.is_dir() else path.parent
    return CorruptLogError(
        f"{path} is damaged at byte {position}: {why}",
        applied="nothing was changed",
        next_step=f"look at `spark-eoc buffer verify {directory}`, restore the file, or give up "
        f"what can't be read with `spark-eoc buffer repair {directory}`",
        file=str(path),
        position=position,
        command=f"spark-eoc buffer repair {directory}",
    )


@dataclass(frozen=True)
class Identity:
    """Who a buffer is. ``buffer_id`` is 32 hex digits, its first 8 bytes tag each frame."""

    buffer_id: str

    @property
    def raw(self) -> bytes:
        """The 16 bytes of the id."""
        return bytes.fromhex(self.buffer_id)

    @property
    def tag(self) -> bytes:
        """What each frame of this buffer carries."""
        return self.raw[:8]


def segment_path(directory: Path, base_offset: int) -> Path:
    """File of a segment."""
    return directory / segment_name(base_offset)


def list_segments(directory: Path) -> list[int]:
    """Base offsets of the segments, rising."""
    return sorted(base for base in map(base_of, os.listdir(directory)) if base is not None)


def read_segment_header(path: Path) -> SegmentHeader | None:
    """The header of a segment file; None if it is cut, zero or damaged."""
    with path.open("rb", buffering=0) as file:
        return parse_segment_header(file.read(SEGMENT_HEADER_BYTES) or b"")


def parse_identity(text: bytes) -> Identity | None:
    """The content of the identity file; None if it is cut or damaged. Raises LogError if it was
    written by a newer version."""
    try:
        content = json.loads(text)
        version, buffer_id = content["format"], content["buffer_id"]
        raw = bytes.fromhex(buffer_id)
    except (ValueError, KeyError, TypeError):
        return None
    if version != VERSION:
        raise LogError(
            f"the buffer has format {version}, this version reads {VERSION}",
            next_step="use the spark-eoc version that wrote it",
        )
    return Identity(buffer_id) if len(raw) == 16 else None


def read_identity(directory: Path) -> Identity | None:
    """Who this buffer is, from its file or, if that is damaged, from its segments; None for a
    directory that is no buffer yet. Raises CorruptLogError if segments disagree."""
    try:
        found = parse_identity((directory / IDENTITY_NAME).read_bytes())
    except FileNotFoundError:
        found = None
    if found is None and directory.is_dir():
        ids = {
            header.buffer_id.hex()
            for base in list_segments(directory)
            if (header := read_segment_header(segment_path(directory, base)))
        }
        if len(ids) > 1:
            raise corrupt(directory, 0, f"segments of several buffers: {', '.join(sorted(ids))}")
        found = Identity(ids.pop()) if ids else None
    return found


def ensure_identity(directory: Path, files: Files) -> Identity:
    """Who this buffer is; a new one for a directory that is none. The caller holds the lock."""
    found = read_identity(directory)
    if found is None and list_segments(directory):
        raise corrupt(directory / IDENTITY_NAME, 0, "no file says which buffer this is")
    identity = found or Identity(uuid.uuid4().hex)
    text = json.dumps({"format": VERSION, "buffer_id": identity.buffer_id}) + "\n"
    path = directory / IDENTITY_NAME
    if not path.exists() or parse_identity(path.read_bytes()) is None:
        files.replace(path, [text.encode()])
    return identity


def remove_temporary(directory: Path, files: Files) -> None:
    """Removes files that a killed writer had not finished."""
    for path in directory.glob(f"*{TEMPORARY_SUFFIX}"):
        files.unlink(path)
