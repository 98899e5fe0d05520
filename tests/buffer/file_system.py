"""A model of what a disk may hold after the power went: every write that was not synced may be
there, be missing, be torn, or be there without an earlier one; so may every name.

:class:`RecordingDisk` runs the real calls and records them; :func:`crash` replays a prefix of them
into a model and chooses, by a seed, what of the unsynced part reached the disk.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_eoc.buffer.files import Disk

SECTOR = 512

#: What happened: a word, and what it needs to be done again.
Operation = tuple[Any, ...]


class RecordingDisk(Disk):
    """Real calls, recorded; ``note`` adds what the test wants to find between them."""

    def __init__(self, root: Path) -> None:
        self.operations: list[Operation] = []
        self._root = root
        self._inodes: dict[int, int] = {}

    def note(self, word: str, number: int) -> None:
        self.operations.append(("note", word, number))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    def open(self, path: Path, flags: int) -> int:
        is_new = not path.exists()
        descriptor = super().open(path, flags)
        inode = os.fstat(descriptor).st_ino
        self._inodes[descriptor] = inode
        if is_new:
            self.operations.append(("create", self._name(path), inode))
        return descriptor

    def pwritev(self, descriptor: int, parts: Sequence[Any], position: int) -> int:
        data = b"".join(parts)
        self.operations.append(("write", self._inodes[descriptor], position, data))
        return super().pwritev(descriptor, parts, position)

    def truncate(self, descriptor: int, length: int) -> None:
        self.operations.append(("truncate", self._inodes[descriptor], length))
        super().truncate(descriptor, length)

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        self.operations.append(("sync", self._inodes[descriptor]))

    def fdatasync(self, descriptor: int) -> None:
        self.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.operations.append(("rename", self._name(source), self._name(target)))

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.operations.append(("unlink", self._name(path)))

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.operations.append(("sync directory", self._name(path)))


@dataclass
class Inode:
    """What is durable of a file, and what has been asked for since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)


@dataclass
class Model:
    """Names and files, each with what isn't durable yet. Directories themselves are durable."""

    names: dict[str, int] = field(default_factory=dict)
    inodes: dict[int, Inode] = field(default_factory=dict)
    pending: list[Operation] = field(default_factory=list)

    def run(self, operation: Operation) -> None:
        """Takes in a call."""
        word, *rest = operation
        if word == "all":
            for inner in rest[0]:
                self.run(inner)
        elif word == "create":
            self.inodes[rest[1]] = Inode()
            self.pending.append(operation)
        elif word in ("rename", "unlink"):
            self.pending.append(operation)
        elif word in ("write", "truncate"):
            self.inodes[rest[0]].pending.append(operation)
        elif word == "sync":
            inode = self.inodes[rest[0]]
            for pending in inode.pending:
                apply_data(inode.durable, pending)
            inode.pending.clear()
        elif word == "sync directory":
            self._sync_directory(rest[0])

    def _sync_directory(self, directory: str) -> None:
        left = []
        for operation in self.pending:
            if str(Path(operation[1]).parent) == directory:
                apply_name(self.names, operation)
            else:
                left.append(operation)
        self.pending = left


def apply_data(content: bytearray, operation: Operation) -> None:
    """A write or a truncation."""
    if operation[0] == "truncate":
        del content[operation[2] :]
        content.extend(bytes(operation[2] - len(content)))
        return
    _, _, position, data = operation
    content.extend(bytes(max(position - len(content), 0)))
    content[position : position + len(data)] = data


def apply_name(names: dict[str, int], operation: Operation) -> None:
    """A create, rename or unlink."""
    if operation[0] == "create":
        names[operation[1]] = operation[2]
    elif operation[0] == "unlink":
        names.pop(operation[1], None)
    elif operation[1] in names:
        names[operation[2]] = names.pop(operation[1])


def torn(operation: Operation, choose: random.Random) -> Operation:
    """Some of the sectors of a write."""
    word, inode, position, data = operation
    keep = choose.randrange(len(data) + 1)
    keep -= (position + keep) % SECTOR if choose.random() < 0.5 else 0
    return word, inode, position, data[: max(keep, 0)]


def choose_nothing(_: Operation, __: random.Random) -> Operation | None:
    return None


def choose_everything(operation: Operation, _: random.Random) -> Operation | None:
    return operation


def choose_any(operation: Operation, choose: random.Random) -> Operation | None:
    """There, missing or torn, each for itself, which reorders them too."""
    fate = choose.randrange(3)
    if fate == 0 or (fate == 1 and operation[0] != "write"):
        return None
    return torn(operation, choose) if fate == 1 else operation


Choice = Callable[[Operation, random.Random], "Operation | None"]
CHOICES: dict[str, Choice] = {
    "nothing": choose_nothing,
    "everything": choose_everything,
    "any": choose_any,
}


def crash(operations: Sequence[Operation], fate: Choice, seed: int, target: Path) -> None:
    """Writes into ``target`` what the disk may hold after these calls and a power cut."""
    choose = random.Random(seed)
    model = Model()
    for operation in operations:
        model.run(operation)
    names = dict(model.names)
    for operation in model.pending:
        if fate(("name",), choose) is not None:
            apply_name(names, operation)
    for name, number in names.items():
        inode = model.inodes[number]
        content = bytearray(inode.durable)
        for operation in inode.pending:
            kept = fate(operation, choose)
            if kept is not None:
                apply_data(content, kept)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
