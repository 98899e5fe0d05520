"""A disk that is full or fails (case B9): nothing acknowledged is lost, a failed fsync is final."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_eoc.buffer import BufferOptions, ConsumerPosition, LogReader, LogWriter
from spark_eoc.buffer.active import ActiveSegment
from spark_eoc.buffer.directory import list_segments
from spark_eoc.buffer.files import Disk, Files
from spark_eoc.errors import LogClosedError, LogError, LogFullError
from tests.buffer.buffer_logs import SMALL, active, append, appends_on, die, read_all


class FaultyDisk(Disk):
    """Fails the calls that a test names, with the error that it names."""

    def __init__(self) -> None:
        self.fsync_error = 0
        self.write_error = 0
        self.write_at_most = 1 << 30
        self.unlink_error = 0
        self.fsyncs = 0

    def pwritev(self, descriptor: int, parts: Sequence[bytes], position: int) -> int:
        if self.write_error:
            piece = bytes(parts[0])[: self.write_at_most]
            if not piece or self.write_at_most == 0:
                raise OSError(self.write_error, os.strerror(self.write_error))
            self.write_at_most = 0
            return os.pwrite(descriptor, piece, position)
        return super().pwritev(descriptor, parts, position)

    def fdatasync(self, descriptor: int) -> None:
        self.fsyncs += 1
        if self.fsync_error:
            failure, self.fsync_error = self.fsync_error, 0  # a second one falsely succeeds
            raise OSError(failure, os.strerror(failure))
        super().fdatasync(descriptor)

    fsync = fdatasync

    def unlink(self, path: Path) -> None:
        if self.unlink_error:
            raise OSError(self.unlink_error, os.strerror(self.unlink_error))
        super().unlink(path)


def test_b9_a_failed_fsync_poisons_the_log(tmp_path: Path) -> None:
    """Never tried again, since a later one falsely succeeds; the published end stays."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, files=Files(disk))
    append(writer, b"durable")
    writer.sync()
    append(writer, b"doubtful")
    disk.fsync_error = errno.EIO
    with pytest.raises(LogClosedError, match="fsync failed"):
        writer.sync()
    before = disk.fsyncs
    for _ in range(2):
        with pytest.raises(LogClosedError):
            writer.sync()
        with pytest.raises(LogClosedError):
            append(writer, b"more")
    writer.close()
    assert disk.fsyncs == before
    assert (writer.end_offset, LogReader(tmp_path).end_offset()) == (1, 1)
    assert writer.failure is not None


def test_b9_what_a_failed_fsync_left_in_the_cache_is_written_again(tmp_path: Path) -> None:
    """The next writer finds the frame whole in the cache, and must not take that for durable."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, files=Files(disk))
    append(writer, b"durable")
    writer.sync()
    append(writer, b"doubtful")
    disk.fsync_error = errno.EIO
    with pytest.raises(LogClosedError):
        writer.sync()
    writer.close()
    old = active(tmp_path)
    appends_on(tmp_path, [b"durable", b"doubtful"])
    assert b"doubtful" not in old.read_bytes()


def test_the_naive_second_fsync_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken variant tries again and acknowledges; the test above goes red on it."""
    honest = ActiveSegment.sync

    def stubborn(self: ActiveSegment) -> None:
        try:
            honest(self)
        except OSError:
            honest(self)

    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, files=Files(disk))
    monkeypatch.setattr(ActiveSegment, "sync", stubborn)
    append(writer, b"doubtful")
    disk.fsync_error = errno.EIO
    assert writer.sync() == 1, "acknowledged, though the disk never took it"
    writer.close()


@pytest.mark.parametrize("at_most", [0, 1, 40])
def test_b9_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(
    tmp_path: Path, at_most: int
) -> None:
    """A write that stops half-way leaves no trace; the same block is taken later."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, files=Files(disk))
    append(writer, b"before")
    writer.sync()
    append(writer, b"unsynced")
    size = active(tmp_path).stat().st_size
    disk.write_error, disk.write_at_most = errno.ENOSPC, at_most
    with pytest.raises(LogFullError):
        append(writer, b"too much")
    assert active(tmp_path).stat().st_size == size
    disk.write_error = 0
    assert writer.failure is None
    append(writer, b"too much")
    writer.close()
    appends_on(tmp_path, [b"before", b"unsynced", b"too much"])


def test_b9_a_full_disk_at_a_roll_leaves_the_old_segment_active(tmp_path: Path) -> None:
    """The new segment is taken back, and nothing is poisoned."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, SMALL, files=Files(disk))
    append(writer, b"x" * 5000)
    writer.sync()
    disk.write_error, disk.write_at_most = errno.ENOSPC, 10
    with pytest.raises(LogFullError):
        append(writer, b"y")
    assert list_segments(tmp_path) == [0]
    disk.write_error = 0
    append(writer, b"y")
    writer.close()
    assert list_segments(tmp_path) == [0, 1]
    appends_on(tmp_path, [b"x" * 5000, b"y"])


def test_b9_any_other_failed_write_poisons_the_log(tmp_path: Path) -> None:
    """EIO in a write: nobody knows what the disk took."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, files=Files(disk))
    append(writer, b"a")
    writer.sync()
    disk.write_error, disk.write_at_most = errno.EIO, 20
    with pytest.raises(LogClosedError, match="write failed"):
        append(writer, b"b")
    disk.write_error = 0
    with pytest.raises(LogClosedError):
        writer.sync()
    writer.close()
    appends_on(tmp_path, [b"a"])


def test_a_trim_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """The start pointer is durable first, so that nothing is lost; the next trim goes on."""
    disk = FaultyDisk()
    writer = LogWriter.open(tmp_path, SMALL, files=Files(disk))
    for _ in range(8):
        append(writer, b"x" * 3000)
    writer.sync()
    position = ConsumerPosition.open(tmp_path)
    position.commit(writer.end_offset)
    disk.unlink_error = errno.EROFS
    with pytest.raises(LogError, match="could not be deleted"):
        writer.apply_trim()
    append(writer, b"still healthy")
    disk.unlink_error = 0
    start = writer.apply_trim()
    assert list_segments(tmp_path)[0] == start > 0
    writer.close()
    assert read_all(tmp_path)[-1] == b"still healthy"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def append_until_full(writer: LogWriter, lines: list[bytes], round_number: int) -> None:
    while True:
        line = b"%d of %d " % (len(lines), round_number) * 300
        append(writer, line)
        lines.append(line)
        if len(lines) % 3 == 0:
            writer.sync()


def test_b9_a_really_full_disk_is_trimmed_and_goes_on(tiny_disk: Path) -> None:
    """On a full file system readers read, the consumer's commit and the trim need no space, and
    then the writer goes on; a restart while it is full loses nothing."""
    options = BufferOptions(
        segment_bytes=65_536, max_buffer_bytes=1 << 30, retention_ms=0, retention_bytes=0
    )
    log = tiny_disk / "log"
    writer = LogWriter.open(log, options)
    position = ConsumerPosition.open(log)
    lines: list[bytes] = []
    for round_number in range(3):
        with pytest.raises(LogFullError):
            append_until_full(writer, lines, round_number)
        if round_number == 1:
            writer.sync()
            die(writer)
            writer = LogWriter.open(log, options)
        writer.sync()
        assert read_all(log) == lines[writer.start_offset :]
        position.hand_out(writer.end_offset)
        position.commit(writer.end_offset)
        assert writer.apply_trim() > 0
    writer.close()
    assert read_all(log) == lines[writer.start_offset :]
