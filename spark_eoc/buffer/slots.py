"""Small records that are replaced in place: published end, start pointer, consumers' positions.

Two slots of 64 bytes, 4,096 bytes apart, are written in turn, each by one ``pwrite``; the valid one
with the higher sequence number counts. A torn write or a torn read spoils one slot, never both,
and since nothing is allocated, a full disk can't stop a trim that would make room::

     0  magic     4s
     4  crc32     u32 of bytes 8 .. 64
     8  sequence  u64
    16  content   48s
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from spark_eoc.buffer.files import Files
from spark_eoc.buffer.layout import Layout

SLOT_BYTES = 64
SLOT_DISTANCE = 4096
CONTENT_BYTES = 48
_SLOT = Layout("<4sIQ48s")
_TRIES = 5


@dataclass(frozen=True)
class Record:
    """What a slot file says: the number of the write, and its content."""

    sequence: int
    content: bytes


def pack_slot(magic: bytes, record: Record) -> bytes:
    """The 64 bytes of a slot."""
    body = struct.pack("<Q48s", record.sequence, record.content)
    return magic + struct.pack("<I", crc32(body)) + body


def parse_slots(magic: bytes, data: bytes) -> list[Record]:
    """The valid records among both slots, the older first."""
    found = []
    for place in (0, SLOT_DISTANCE):
        slot = data[place : place + SLOT_BYTES]
        if len(slot) == SLOT_BYTES:
            mark, crc, sequence, content = _SLOT.unpack(slot)
            if mark == magic and crc == crc32(slot[8:]):
                found.append(Record(sequence, content))
    return sorted(found, key=lambda record: record.sequence)


def read_slots(path: Path, magic: bytes) -> Record | None:
    """The newest valid record; None if the file is missing, or neither slot is whole.

    Reads without a lock: where only one slot is whole it looks again, because a writer may be
    at work, and the record may not seem to go back.
    """
    newest = None
    for _ in range(_TRIES):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            data = os.pread(descriptor, SLOT_DISTANCE + SLOT_BYTES, 0)
        finally:
            os.close(descriptor)
        found = parse_slots(magic, data)
        if found and (newest is None or found[-1].sequence > newest.sequence):
            newest = found[-1]
        if len(found) == 2 or (found and found[0].sequence <= 1):
            break
    return newest


class SlotWriter:
    """Writes a slot file; the caller holds the lock that makes it the only one."""

    def __init__(self, path: Path, magic: bytes, files: Files) -> None:
        self._path = path
        self._magic = magic
        self._files = files
        self._descriptor = -1
        self._sequence = 0

    def open(self) -> bytes | None:
        """Opens the file, creating it durably; its content, None if there is none that is whole."""
        try:
            blank = bytes(SLOT_DISTANCE + SLOT_BYTES)
            self._descriptor = self._files.create(self._path, [blank])
        except FileExistsError:
            self._descriptor = self._files.open(self._path)
        return self.refresh()

    def write_both(self, content: bytes) -> None:
        """As :meth:`write`, durable, into both slots, so that nothing older can ever win."""
        self.write(content)
        self.write(content, sync=True)

    def refresh(self) -> bytes | None:
        """The content as it is now; another process may have written since :meth:`open`."""
        record = read_slots(self._path, self._magic)
        if record is None:
            return None
        self._sequence = record.sequence
        return record.content

    def write(self, content: bytes, *, sync: bool = False) -> None:
        """Replaces the content at once for readers; durable on return only with ``sync``."""
        record = Record(self._sequence + 1, content)
        place = SLOT_DISTANCE * (record.sequence % 2)
        self._files.write(self._descriptor, place, [pack_slot(self._magic, record)])
        self._sequence = record.sequence
        if sync:
            self._files.sync_data(self._descriptor)

    def fileno(self) -> int:
        """The open descriptor."""
        return self._descriptor

    def close(self) -> None:
        """Closes the file; its content stays."""
        if self._descriptor >= 0:
            self._files.close(self._descriptor)
            self._descriptor = -1
