"""A log cut at every byte, every bit of every header flipped: a prefix or an error, never an
invented line and never another number (cases B1 and B3)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eoc.buffer import ConsumerPosition, LogReader, LogWriter
from spark_eoc.buffer.files import Disk, Files
from spark_eoc.errors import SparkEocError
from tests.buffer.buffer_logs import (
    active,
    append,
    appends_on,
    cut,
    data_frames,
    die,
    flip,
    frames,
    overwrite,
    read_all,
)

LINES = [b"first", b"second line", b"", b"fourth"]


class Quick(Disk):
    """No fsync: these tests damage files, they don't pull the plug."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fdatasync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def prepared(path: Path, *, published: bool) -> Path:
    """Two synced groups and an unsynced line; its only segment."""
    writer = LogWriter.open(path)
    append(writer, *LINES[:2])
    writer.sync()
    append(writer, LINES[2])
    writer.sync()
    append(writer, LINES[3])
    die(writer)
    if not published:
        (path / "published").unlink()
    return active(path)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: these tests make thousands of copies."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path / "copies"
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def copies(original: Path, scratch: Path) -> Iterator[Path]:
    """Endless fresh copies of a prepared directory, one at a time."""
    number = 0
    while True:
        copy = scratch / str(number)
        shutil.copytree(original, copy)
        yield copy
        shutil.rmtree(copy)
        number += 1


def recovered(path: Path) -> list[bytes] | None:
    """All lines after recovery; None for an error."""
    try:
        LogWriter.open(path, files=Files(Quick())).close()
    except SparkEocError:
        return None
    return read_all(path)


@pytest.mark.parametrize("published", [True, False])
def test_a_log_cut_at_every_byte_gives_a_prefix_or_an_error(
    tmp_path: Path, scratch: Path, published: bool
) -> None:
    """With the published end, everything acknowledged or an error; without it, a prefix."""
    segment = prepared(tmp_path / "log", published=published)
    fresh = copies(tmp_path / "log", scratch)
    outcomes = set()
    for length in range(segment.stat().st_size + 1):
        copy = next(fresh)
        cut(copy / segment.name, length)
        left = recovered(copy)
        outcomes.add(None if left is None else len(left))
        assert left is None or left == LINES[: len(left)], length
        assert not published or left is None or len(left) >= 3, length
    assert 4 in outcomes
    assert outcomes == ({None, 3, 4} if published else {0, 2, 3, 4})


@pytest.mark.parametrize("published", [True, False])
def test_b3_every_bit_of_every_header_flipped_gives_a_prefix_or_an_error(
    tmp_path: Path, scratch: Path, published: bool
) -> None:
    """Case B3: a length read as negative, another offset, another epoch: nothing is believed."""
    segment = prepared(tmp_path / "log", published=published)
    table, _, durable, *_, unsynced = [position for position, *_ in frames(segment)]
    fresh = copies(tmp_path / "log", scratch)
    for head in (0, unsynced) if published else (table, durable):
        for bit in range(64 * 8):
            copy = next(fresh)
            flip(copy / segment.name, head + bit // 8, bit % 8)
            left = recovered(copy)
            assert left is None or left == LINES[: len(left)], (head, bit)
            assert not published or left is None or len(left) >= 3, (head, bit)


def test_b3_a_reader_never_takes_a_flipped_bit_for_a_line(tmp_path: Path) -> None:
    """Readers check each frame: the lines as they were, or an error, for each bit of a frame."""
    prepared(tmp_path, published=True)
    segment = active(tmp_path)
    LogWriter.open(tmp_path).close()
    position, length, *_ = data_frames(segment)[0]
    original = segment.read_bytes()
    for bit in range(length * 8):
        place = position + bit // 8
        overwrite(segment, place, bytes([original[place] ^ 1 << bit % 8]))
        with contextlib.suppress(SparkEocError):
            assert read_all(tmp_path) == LINES, bit
        overwrite(segment, place, original[place : place + 1])


@pytest.mark.parametrize("name", ["identity", "published", "start", "lock", "consumers"])
def test_b1_a_small_file_cut_to_each_length_blocks_nothing(
    tmp_path: Path, scratch: Path, name: str
) -> None:
    """Case B1: the log opens with every line, and trims nothing that a consumer hasn't read."""
    log = tmp_path / "log"
    prepared(log, published=True)
    LogWriter.open(log).close()
    position = ConsumerPosition.open(log)
    position.commit(1)
    position.close()
    small = Path("consumers/default.position" if name == "consumers" else name)
    buffer_id = LogReader(log).buffer_id
    size = (log / small).stat().st_size
    lengths = [*range(min(size, 150)), *range(min(size, 4090), size + 1)]
    fresh = copies(log, scratch)
    for length in sorted(set(lengths)):
        copy = next(fresh)
        cut(copy / small, length)
        assert LogReader(copy).buffer_id == buffer_id
        assert read_all(copy) == LINES, length
        writer = LogWriter.open(copy, files=Files(Quick()))
        assert writer.apply_trim() == 0
        writer.close()
        assert read_all(copy) == LINES, length
        assert writer.buffer_id == buffer_id


def test_b1_temporary_files_are_removed(tmp_path: Path) -> None:
    """Case B1: what a killed writer had not finished is in nobody's way."""
    prepared(tmp_path, published=True)
    (tmp_path / "identity.tmp").write_bytes(b"{")
    (tmp_path / "00000000000000000003.segment.tmp").write_bytes(b"EOCSEG01")
    appends_on(tmp_path, LINES)
    assert not list(tmp_path.glob("*.tmp"))
