"""The power goes after each file operation of the log, in whatever state that leaves the disk:
recovery gives every acknowledged line and invents none. SIGKILL can't test that, since the page
cache survives it. Broken variants of the log go red on the same states."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eoc.buffer import (
    BufferOptions,
    ConsumerPosition,
    LineBlock,
    LogReader,
    LogWriter,
    Run,
    read_positions,
)
from spark_eoc.buffer.files import Disk, Files
from spark_eoc.buffer.trim import unlink_segments
from spark_eoc.errors import LogError
from tests.buffer.buffer_logs import read_range
from tests.buffer.file_system import CHOICES, Operation, RecordingDisk, crash

OPTIONS = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0)
BOOTS = [bytes([number]) * 16 for number in range(1, 4)]


def line(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number * 97 % 700)


class PublishesFirst(LogWriter):
    """Broken: acknowledges before the fsync."""

    def sync(self) -> int:
        self._publish(self._place)
        return self._durable.offset


class UnlinksFirst(LogWriter):
    """Broken: deletes segments before the start pointer is durable."""

    def _trim(self, count: int) -> None:
        gone = self._sealed[:count]
        unlink_segments(self.path, gone, self._files)
        super()._trim(count)


class StartNotSynced(LogWriter):
    """Broken: the start pointer is written, but not synced, before segments are deleted."""

    def _trim(self, count: int) -> None:
        write = self._start.write
        self._start.write = lambda content, sync: write(content)  # type: ignore[method-assign]
        super()._trim(count)
        self._start.write = write  # type: ignore[method-assign]


class NamesNotSynced(Files):
    """Broken: a new file doesn't sync its directory."""

    def create(self, path, parts, **steps):  # type: ignore[no-untyped-def]
        disk, self._disk = self._disk, NoDirectorySync(self._disk)
        try:
            return super().create(path, parts, **steps)
        finally:
            self._disk = disk


class NoDirectorySync(Disk):
    def __init__(self, disk: Disk) -> None:
        for name in ("open", "pwritev", "fsync", "fdatasync", "close"):
            setattr(self, name, getattr(disk, name))

    def sync_directory(self, path: Path) -> None:
        pass


def record(
    root: Path, writer_type: type[LogWriter] = LogWriter, files_type: type[Files] = Files
) -> list[Operation]:
    """The file operations of two writers, with what they sent, acknowledged and committed."""
    disk = RecordingDisk(root)
    files = files_type(disk)
    log = root / "log"
    number = 0
    for _ in range(2):
        writer = writer_type.open(log, OPTIONS, files=files, boot=BOOTS[0])
        position = ConsumerPosition.open(log, files=files)
        for group in range(6):
            disk.note("sent", number + 4)
            for _ in range(2):
                runs = [Run(b"p", 2, number + 1)]
                block = LineBlock.from_lines([line(number), line(number + 1)], runs)
                writer.append(block, receive_time_us=number)
                number += 2
            disk.note("acknowledged", writer.sync())
            if group % 2:
                disk.note("committed", number - 6)
                position.commit(max(number - 6, 0))
                writer.apply_trim()
        writer.close()
        position.close()
    return disk.operations


def highest(operations: list[Operation], word: str) -> int:
    numbers = [entry[2] for entry in operations if entry[:2] == ("note", word)]
    return max([0, *numbers])


def check(log: Path, operations: list[Operation], boot: bytes) -> None:
    """Recovers, compares with the notes, appends and reads again."""
    sent, acknowledged = highest(operations, "sent"), highest(operations, "acknowledged")
    committed = highest(operations, "committed")
    before = LogReader(log, boot=boot)
    seen = before.end_offset() if (log / "identity").exists() else 0
    writer = LogWriter.open(log, OPTIONS, boot=boot, files=Files(Quick()))
    reader = LogReader(log, boot=boot)
    start, end = reader.start_offset(), reader.end_offset()
    assert acknowledged <= end <= sent
    assert acknowledged <= seen <= end, "a reader of the new boot sees what was acknowledged"
    assert start <= committed
    assert read_range(reader, start, end) == [line(number) for number in range(start, end)]
    state = writer.producers.get(b"p")
    assert (state.last_sequence if state else 0) == end
    writer.append(LineBlock.from_lines([b"after"]), receive_time_us=0)
    writer.close()
    assert read_range(reader, end, end + 1) == [b"after"]


class Quick(Disk):
    """No fsync in recoveries that aren't recorded."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fdatasync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        dir=shared if os.access(shared, os.W_OK) else tmp_path
    ) as folder:
        yield Path(folder)


def states(
    operations: list[Operation], memory: Path, seeds: int, every: int = 1
) -> Iterator[tuple[Path, list[Operation], str]]:
    """(folder, calls before the cut, what it is) of each state that the power cut may leave."""
    for length in range(1, len(operations) + 1, every):
        before = operations[:length]
        for name, fate in CHOICES.items():
            for seed in range(seeds if name == "any" else 1):
                target = memory / "state"
                crash(before, fate, length * 1000 + seed, target)
                (target / "log").mkdir(parents=True, exist_ok=True)
                yield target, before, f"{length} operations, {name} unsynced, seed {seed}"
                shutil.rmtree(target)


def test_the_power_goes_after_each_file_operation(tmp_path: Path, memory: Path) -> None:
    """Every prefix of a writer's life, nothing, everything or anything of the rest on the disk."""
    operations = record(tmp_path)
    assert {entry[0] for entry in operations} >= {"create", "write", "sync", "unlink", "rename"}
    for target, before, what in states(operations, memory, seeds=1):
        try:
            check(target / "log", before, BOOTS[1])
        except (AssertionError, LogError) as error:
            raise AssertionError(what) from error


def test_the_power_goes_again_in_each_step_of_recovery(tmp_path: Path, memory: Path) -> None:
    """Recovery itself may be cut short anywhere, and the next one still finds everything."""
    operations = record(tmp_path)
    for target, before, what in states(operations, memory, seeds=1, every=53):
        again = memory / "again"
        inner = record_recovery(target, again)
        for state, calls, cut in states(inner, memory / "inner", seeds=1):
            try:
                check(state / "log", [*before, *calls], BOOTS[2])
            except (AssertionError, LogError) as error:
                raise AssertionError(f"{what}, then in recovery {cut}") from error
        shutil.rmtree(again)


def record_recovery(state: Path, root: Path) -> list[Operation]:
    """The file operations that bring a state about, synced, and then those of its recovery."""
    disk = RecordingDisk(root)
    files = Files(disk)
    for source in sorted(path for path in state.rglob("*") if path.is_file()):
        target = root / source.relative_to(state)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name != "lock":
            files.close(files.create(target, [source.read_bytes()]))
    (root / "log").mkdir(parents=True, exist_ok=True)
    built = len(disk.operations)
    LogWriter.open(root / "log", OPTIONS, files=files, boot=BOOTS[1]).close()
    # Only cuts inside of the recovery are of interest: what built the state is one operation.
    return [("all", disk.operations[:built]), *disk.operations[built:]]


BROKEN: dict[str, tuple[type[LogWriter], type[Files]]] = {
    "acknowledges before the fsync": (PublishesFirst, Files),
    "unlinks before the start pointer is durable": (UnlinksFirst, Files),
    "start pointer not synced": (StartNotSynced, Files),
    "directory not synced": (LogWriter, NamesNotSynced),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_variant_is_caught(tmp_path: Path, memory: Path, name: str) -> None:
    """The harness can fail: each of these loses something in at least one of the states."""
    operations = record(tmp_path, *BROKEN[name])
    for target, before, _ in states(operations, memory, seeds=1):
        try:
            check(target / "log", before, BOOTS[1])
        except (AssertionError, LogError):
            return
    pytest.fail(f"{name}: not caught")


def test_a_consumer_that_went_back_stays_there(tmp_path: Path, memory: Path) -> None:
    """A move forward may be forgotten, a move back may not: it would let go of what is needed."""
    disk = RecordingDisk(tmp_path)
    position = ConsumerPosition.open(tmp_path, files=Files(disk))
    position.commit(9)
    position.rewind(3)
    for seed in range(40):
        target = memory / str(seed)
        crash(disk.operations, CHOICES["any"], seed, target)
        assert read_positions(target)["default"].committed <= 3
    position.close()


def test_the_model_keeps_what_is_synced_and_nothing_else(tmp_path: Path, memory: Path) -> None:
    """The model itself: synced bytes under a synced name survive, all others may not."""
    disk = RecordingDisk(tmp_path)
    files = Files(disk)
    descriptor = files.create(tmp_path / "a", [b"synced"])
    files.write(descriptor, 6, [b" not"])
    crash(disk.operations, CHOICES["nothing"], 0, memory / "0")
    crash(disk.operations, CHOICES["everything"], 0, memory / "1")
    assert (memory / "0" / "a").read_bytes() == b"synced"
    assert (memory / "1" / "a").read_bytes() == b"synced not"
