"""Verify changes nothing and finds everything; repair gives up only what can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_eoc.buffer import LogReader, LogWriter, read_slice
from spark_eoc.buffer.directory import list_segments, segment_path
from spark_eoc.buffer.repair import repair
from spark_eoc.buffer.verify import verify
from spark_eoc.errors import CorruptLogError, LogError, LogLockedError, OffsetOutOfRangeError
from tests.buffer.buffer_logs import (
    SMALL,
    active,
    append,
    cut,
    data_frames,
    die,
    flip,
    overwrite,
    read_all,
    read_range,
    send,
)


def prepare(path: Path) -> list[bytes]:
    """Three segments of two frames with two records each, twelve records in all."""
    writer = LogWriter.open(path, SMALL)
    lines = [b"%d " % number + b"x" * 1000 for number in range(12)]
    for number in range(0, 12, 2):
        send(writer, b"p", number + 1, *lines[number : number + 2])
        if number in (2, 6):
            writer.roll()
    writer.close()
    assert list_segments(path) == [0, 4, 8]
    return lines


def flip_in(path: Path, record: int) -> None:
    """Damages the frame that holds a record."""
    for base in list_segments(path):
        for position, _, first, records in data_frames(segment_path(path, base)):
            if first <= record < first + records:
                flip(segment_path(path, base), position + 500)


def left_of(path: Path) -> list[tuple[int, bytes]]:
    """Every record that can be read, with its number."""
    reader = LogReader(path)
    found = []
    for piece in reader.split(reader.start_offset(), reader.end_offset(), 3, skip_gaps=True):
        for batch in read_slice(piece, offset=True, wait_seconds=0):
            found += zip(
                batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
            )
    return found


def test_a_sound_log_is_verified_and_left_alone(tmp_path: Path) -> None:
    """No damage, the facts of each segment; a repair changes no byte."""
    lines = prepare(tmp_path)
    report = verify(tmp_path)
    assert report.damages == ()
    assert (report.start_offset, report.end_offset, report.torn_bytes) == (0, 12, 0)
    assert [(s.base_offset, s.end_offset) for s in report.segments] == [(0, 4), (4, 8), (8, 12)]
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"}
    assert repair(tmp_path).lost == ()
    after = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "lock"}
    assert before == after
    assert read_all(tmp_path) == lines


def test_verify_runs_beside_a_writer_and_passes_over_what_is_not_published(tmp_path: Path) -> None:
    """Frames behind the published end are nobody's damage."""
    prepare(tmp_path)
    writer = LogWriter.open(tmp_path, SMALL)
    append(writer, b"unsynced")
    report = verify(tmp_path)
    assert report.damages == ()
    assert report.torn_bytes > 0
    with pytest.raises(LogLockedError):
        repair(tmp_path)
    writer.close()
    with pytest.raises(LogError, match="no buffer"):
        verify(tmp_path / "nothing")


LOST = {
    "first frame": ([0], [(0, 2)]),
    "last frame of a sealed segment": ([3], [(2, 4)]),
    "first frame of a sealed segment": ([4], [(4, 6)]),
    "first frame of the active segment": ([8], [(8, 10)]),
    "last frame of the log": ([11], [(10, 12)]),
    "a whole segment": ([4, 6], [(4, 8)]),
    "one in each segment": ([0, 5, 11], [(0, 2), (4, 6), (10, 12)]),
    "everything": ([0, 2, 4, 6, 8, 10], [(0, 12)]),
}


@pytest.mark.parametrize("name", LOST)
def test_a_repair_gives_up_what_cannot_be_read_and_nothing_else(tmp_path: Path, name: str) -> None:
    """Each row: damaged records, and the ranges that are lost; all others keep their numbers,
    no number is used again, and the log goes on."""
    damaged, lost = LOST[name]
    lines = prepare(tmp_path)
    for record in damaged:
        flip_in(tmp_path, record)
    assert len(verify(tmp_path).damages) >= 1
    report = repair(tmp_path)
    gone = {number for low, high in lost for number in range(low, high)}
    assert {n for low, high in report.lost for n in range(low, high)} == gone
    assert verify(tmp_path).damages == ()
    assert repair(tmp_path).rewritten == (), "a second repair finds nothing to do"
    writer = LogWriter.open(tmp_path, SMALL)
    assert writer.next_offset == 12
    assert writer.producers[b"p"].last_sequence in (10, 12, 8, 2, 4, 6) or name == "everything"
    append(writer, b"after")
    writer.close()
    kept = [(number, lines[number]) for number in range(12) if number not in gone]
    assert left_of(tmp_path) == [*kept, (12, b"after")]
    LogWriter.open(tmp_path, SMALL).close()
    assert all((tmp_path / "damaged").iterdir())


def test_readers_are_told_of_a_gap_and_may_pass_it(tmp_path: Path) -> None:
    """A range over a gap is refused, with the option that goes on; beside it all is as before."""
    lines = prepare(tmp_path)
    flip_in(tmp_path, 4)
    repair(tmp_path)
    reader = LogReader(tmp_path)
    assert reader.gaps(0, 12) == [(4, 6)]
    assert reader.gaps(5, 12) == [(5, 6)]
    assert reader.gaps(6, 12) == []
    with pytest.raises(OffsetOutOfRangeError, match="failOnDataLoss=false"):
        reader.split(0, 12)
    assert read_range(reader, 0, 4) == lines[:4]
    assert read_range(reader, 6, 12) == lines[6:]
    pieces = reader.split(3, 8, 2, skip_gaps=True)
    assert [(piece.first_offset, piece.count) for piece in pieces] == [(3, 1), (6, 2)]
    assert reader.epoch_of(5) == reader.epoch_of(6) == 1
    assert reader.bound(2, max_bytes=3 * len(lines[5])) == 7
    assert reader.epoch_end(1) == 12


def test_missing_files_are_given_up_too(tmp_path: Path) -> None:
    """A segment that is gone, and the tail of the log."""
    prepare(tmp_path)
    segment_path(tmp_path, 4).unlink()
    cut(active(tmp_path), data_frames(active(tmp_path))[-1][0])
    with pytest.raises(CorruptLogError):
        LogWriter.open(tmp_path)
    assert repair(tmp_path).lost == ((4, 8), (10, 12))
    writer = LogWriter.open(tmp_path, SMALL)
    assert writer.next_offset == 12
    writer.close()
    assert [number for number, _ in left_of(tmp_path)] == [0, 1, 2, 3, 8, 9]


@pytest.mark.parametrize("base", [0, 4, 8])
def test_a_damaged_header_costs_no_record(tmp_path: Path, base: int) -> None:
    """The frames behind it are whole, and are kept."""
    lines = prepare(tmp_path)
    overwrite(segment_path(tmp_path, base), 8, bytes(56))
    with pytest.raises(CorruptLogError):
        LogWriter.open(tmp_path, SMALL)
    assert repair(tmp_path).lost == ()
    LogWriter.open(tmp_path, SMALL).close()
    assert read_all(tmp_path) == lines


def test_a_torn_tail_needs_no_repair_but_stands_one(tmp_path: Path) -> None:
    """What recovery would cut, a repair cuts too, and no record is called lost."""
    lines = prepare(tmp_path)
    writer = LogWriter.open(tmp_path, SMALL)
    append(writer, b"torn")
    die(writer)
    cut(active(tmp_path), active(tmp_path).stat().st_size - 30)
    assert verify(tmp_path).damages == ()
    assert repair(tmp_path).lost == ()
    LogWriter.open(tmp_path, SMALL).close()
    assert read_all(tmp_path) == lines
