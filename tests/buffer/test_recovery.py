"""Recovery as a table: what the log held, how it is damaged, what must be left; then append again
and read all. And the naive rules, which the same table catches."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from spark_eoc.buffer import ConsumerPosition, LogReader, LogWriter
from spark_eoc.buffer.directory import list_segments, segment_path
from spark_eoc.buffer.recover import Recovery
from spark_eoc.errors import CorruptLogError
from tests.buffer.buffer_logs import (
    active,
    append,
    appends_on,
    cut,
    data_frames,
    die,
    fill,
    flip,
    overwrite,
    read_all,
)


def prepare(path: Path) -> None:
    """Records 0 to 5 durable and published in two groups of three; then, unsynced, frames with
    records 6, 7 and 8."""
    writer = LogWriter.open(path)
    append(writer, b"0", b"1", b"2")
    writer.sync()
    append(writer, b"3", b"4", b"5")
    writer.sync()
    for number in (6, 7, 8):
        append(writer, b"%d" % number)
    die(writer)


def forget_published(path: Path) -> None:
    (path / "published").unlink()


def damage_frame(number: int) -> Callable[[Path], None]:
    """Flips a bit in the lines of the frame that begins with this record."""

    def damage(path: Path) -> None:
        position, length, *_ = next(f for f in data_frames(active(path)) if f[2] == number)
        flip(active(path), position + 64 + 16)
        assert length >= 128

    return damage


def cut_at_frame(number: int, keep: int = 0) -> Callable[[Path], None]:
    """Cuts the file ``keep`` bytes into the frame that begins with this record."""

    def damage(path: Path) -> None:
        position, *_ = next(f for f in data_frames(active(path)) if f[2] == number)
        cut(active(path), position + keep)

    return damage


def zeros_behind(path: Path) -> None:
    with active(path).open("ab") as file:
        file.write(bytes(10_000))


def garbage_behind(path: Path) -> None:
    with active(path).open("ab") as file:
        file.write(b"EOC1" * 100)


def zero_frame(number: int) -> Callable[[Path], None]:
    """A hole, as a file system leaves it that wrote a later block first."""

    def damage(path: Path) -> None:
        position, length, *_ = next(f for f in data_frames(active(path)) if f[2] == number)
        overwrite(active(path), position, bytes(length))

    return damage


def both(*damages: Callable[[Path], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        for one in damages:
            one(path)

    return damage


def nothing(path: Path) -> None:
    pass


TABLE = {
    "nothing: unsynced frames that are whole are kept": (nothing, 9),
    "the last unsynced frame is cut inside": (cut_at_frame(8, 70), 8),
    "only the header of an unsynced frame is there": (cut_at_frame(7, 64), 7),
    "the file ends with the durable records": (cut_at_frame(6), 6),
    "a bit of an unsynced frame is flipped": (damage_frame(7), 7),
    "a hole before an unsynced frame": (zero_frame(6), 6),
    "zeros behind the last frame": (zeros_behind, 9),
    "garbage behind the last frame": (garbage_behind, 9),
    "a bit of a published frame is flipped": (damage_frame(3), None),
    "a bit of the first frame is flipped": (damage_frame(0), None),
    "a hole in what is published": (zero_frame(3), None),
    "the file is cut inside a published frame": (cut_at_frame(3, 80), None),
    "the file is cut to published records, at a frame's start": (cut_at_frame(3), None),
    "the published end is lost, frames are whole": (forget_published, 9),
    "the published end is lost, a tail is torn": (
        both(forget_published, cut_at_frame(8, 70)),
        8,
    ),
    "the published end is lost, a later frame proves that a bad one was durable": (
        both(forget_published, damage_frame(3)),
        None,
    ),
    "the published end is lost, the unsynced frames prove the last durable one": (
        both(forget_published, zero_frame(0)),
        None,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_recovery_keeps_what_was_acknowledged_and_cuts_only_what_was_not(
    tmp_path: Path, name: str
) -> None:
    """Each row: entries before, damage, and how many records must be left; None for an error."""
    prepare(tmp_path)
    damage, left = TABLE[name]
    damage(tmp_path)
    before = active(tmp_path).read_bytes()
    if left is None:
        with pytest.raises(CorruptLogError) as caught:
            LogWriter.open(tmp_path)
        assert active(tmp_path).read_bytes() == before, "a refused log stays as it is"
        assert caught.value.facts["file"] == str(active(tmp_path))
        assert caught.value.facts["command"] == f"spark-eoc buffer repair {tmp_path}"
        assert str(caught.value.facts["position"]) in str(caught.value)
    else:
        appends_on(tmp_path, [b"%d" % number for number in range(left)])


def test_torn_bytes_are_kept_aside(tmp_path: Path) -> None:
    """What recovery cuts can still be looked at."""
    prepare(tmp_path)
    cut_at_frame(8, 70)(tmp_path)
    tail = active(tmp_path).read_bytes()[data_frames(active(tmp_path))[-1][0] :]
    LogWriter.open(tmp_path).close()
    (kept,) = (tmp_path / "torn").iterdir()
    assert kept.read_bytes() == tail


def test_a_flipped_bit_never_loses_an_acknowledged_line(tmp_path: Path) -> None:
    """A rule that cuts at the first bad frame loses some for every flip: see the next test."""
    lines = fill(tmp_path)
    position = data_frames(active(tmp_path))[2][0]
    for place in range(position, position + 128, 5):
        flip(active(tmp_path), place)
        with pytest.raises(CorruptLogError):
            LogWriter.open(tmp_path)
        flip(active(tmp_path), place)
    appends_on(tmp_path, lines)


def test_the_naive_rule_cut_at_the_first_bad_frame_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant loses acknowledged lines in silence, which shows that the rows bite."""

    def cut_at_first_bad(self, base, scan, end):  # type: ignore[no-untyped-def]
        self.files.cut(segment_path(self.directory, base), scan.end.position)

    lines = fill(tmp_path)
    damage_frame(6)(tmp_path)
    monkeypatch.setattr(Recovery, "_check_tail", cut_at_first_bad)
    LogWriter.open(tmp_path).close()
    assert read_all(tmp_path) != lines


def forged_frame(tag: bytes) -> bytes:
    """A frame that says that 99 records were durable."""
    body = struct.pack("<IBBHQIIqQI8sI", 64, 1, 0, 0, 0, 1, 1, 0, 99, 0, tag, 0)
    body += struct.pack("<ii", 0, 1) + b"x" + bytes(55)
    return b"EOC1" + struct.pack("<I", crc32(body)) + body


@pytest.mark.parametrize("knows_the_buffer_id", [False, True])
def test_a_line_that_holds_a_frame_passes_for_none(
    tmp_path: Path, knows_the_buffer_id: bool
) -> None:
    """Lines may be any bytes: those of a frame, inside a torn one, prove nothing. Whoever knows
    the buffer id could still have recovery refused, which is why each frame carries it."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"kept")
    writer.sync()
    tag = bytes.fromhex(writer.buffer_id)[:8] if knows_the_buffer_id else b"whatever"
    forged = forged_frame(tag)
    append(writer, bytes(48) + forged, bytes(100))
    die(writer)
    data = active(tmp_path).read_bytes()
    assert data.index(forged) % 64 == 0, "it stands where a frame may stand"
    cut(active(tmp_path), len(data) - 64)
    if knows_the_buffer_id:
        with pytest.raises(CorruptLogError):
            LogWriter.open(tmp_path)
    else:
        appends_on(tmp_path, [b"kept"])


@pytest.mark.parametrize("content", [b"", bytes(64), bytes(8192), b"EOCSEG01", None])
def test_b2_a_newest_segment_that_was_never_finished_is_dropped(
    tmp_path: Path, content: bytes | None
) -> None:
    """Case B2: zero-length, all zero, a piece of a header, or a header without its table."""
    lines = fill(tmp_path)
    writer = LogWriter.open(tmp_path)
    writer.roll()
    writer.close()
    header = active(tmp_path).read_bytes()[:64]
    newest = active(tmp_path)
    (tmp_path / "published").unlink()
    newest.write_bytes(header if content is None else content)
    appends_on(tmp_path, lines)
    assert len(list_segments(tmp_path)) >= 1


@pytest.mark.parametrize("content", [b"", bytes(8192)])
def test_b2_a_damaged_segment_that_was_in_use_is_an_error(tmp_path: Path, content: bytes) -> None:
    """The same bytes where records had been acknowledged: refused, never taken for a crash."""
    fill(tmp_path)
    writer = LogWriter.open(tmp_path)
    writer.roll()
    append(writer, b"acknowledged")
    writer.sync()
    writer.close()
    active(tmp_path).write_bytes(content)
    with pytest.raises(CorruptLogError):
        LogWriter.open(tmp_path)
    assert active(tmp_path).read_bytes() == content, "a refused log stays as it is"


def test_b2_a_damaged_header_is_an_error_also_without_the_published_end(tmp_path: Path) -> None:
    """Frames with records behind a bad header prove that the segment was in use."""
    fill(tmp_path)
    writer = LogWriter.open(tmp_path)
    writer.roll()
    append(writer, b"acknowledged")
    writer.close()
    (tmp_path / "published").unlink()
    flip(active(tmp_path), 20)
    with pytest.raises(CorruptLogError):
        LogWriter.open(tmp_path)


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    """Any segment that is gone without a trim: the first, one between, the last, all."""
    for gone in ([0], [1], [2], [0, 1, 2]):
        path = tmp_path / str(gone)
        writer = LogWriter.open(path)
        for number in range(3):
            append(writer, b"%d" % number)
            writer.roll() if number < 2 else writer.sync()
        writer.close()
        for number in gone:
            segment_path(path, number).unlink()
        with pytest.raises(CorruptLogError):
            LogWriter.open(path)


def test_b5_offsets_beyond_a_lost_tail_are_not_used_again(tmp_path: Path) -> None:
    """Case B5: the log ends before what was handed out, and even the published end is lost."""
    fill(tmp_path)
    position = ConsumerPosition.open(tmp_path)
    position.hand_out(15)
    position.close()
    (tmp_path / "published").unlink()
    cut(active(tmp_path), data_frames(active(tmp_path))[-2][0])
    with pytest.raises(CorruptLogError, match="acknowledged"):
        LogWriter.open(tmp_path)


def test_b5_an_epoch_tells_that_numbers_were_used_again(tmp_path: Path) -> None:
    """Where every trace of the end is gone, the epoch's end still lies before the old offset."""
    fill(tmp_path)
    reader = LogReader(tmp_path)
    epoch, offset = reader.epoch(), reader.end_offset()
    (tmp_path / "published").unlink()
    cut(active(tmp_path), data_frames(active(tmp_path))[-1][0])
    writer = LogWriter.open(tmp_path)
    append(writer, b"other", b"lines", b"now", b"more")
    writer.sync()
    assert LogReader(tmp_path).end_offset() > offset
    assert LogReader(tmp_path).epoch_end(epoch) < offset
    writer.close()


def test_frames_in_doubt_are_written_anew(tmp_path: Path) -> None:
    """After a failed fsync the cache shows what the disk lacks; syncing it again proves nothing,
    so recovery writes such frames into another file."""
    prepare(tmp_path)
    old = active(tmp_path)
    size = data_frames(old)[1][0] + data_frames(old)[1][1]
    LogWriter.open(tmp_path).close()
    assert list_segments(tmp_path) == [0, 6]
    assert old.stat().st_size == size
    assert [frame[2:] for frame in data_frames(active(tmp_path))] == [(6, 1), (7, 1), (8, 1)]


def test_a_frame_of_an_earlier_life_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Same buffer, offset and length, right crc: only the chain of crcs tells that a block of the
    disk holds what was cut there before."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"a")
    writer.sync()
    append(writer, b"cut off")
    die(writer)
    position, length, *_ = data_frames(active(tmp_path))[1]
    earlier = active(tmp_path).read_bytes()[position : position + length]
    cut(active(tmp_path), position)
    writer = LogWriter.open(tmp_path)
    append(writer, b"kept up")
    append(writer, b"b")
    writer.close()
    overwrite(active(tmp_path), data_frames(active(tmp_path))[1][0], earlier)
    with pytest.raises(CorruptLogError):
        LogWriter.open(tmp_path)


@pytest.mark.parametrize("done", ["written", "renamed"])
def test_a_crash_while_frames_are_written_anew_changes_nothing(tmp_path: Path, done: str) -> None:
    """The copy is made before the original is cut, so that both may be there."""
    prepare(tmp_path)
    original = active(tmp_path).read_bytes()
    LogWriter.open(tmp_path).close()
    copied = active(tmp_path)
    segment_path(tmp_path, 0).write_bytes(original)
    (tmp_path / "published").unlink()
    if done == "written":
        copied.rename(copied.with_name(copied.name + ".tmp"))
    appends_on(tmp_path, [b"%d" % number for number in range(9)])


def test_all_records_of_a_segment_in_doubt(tmp_path: Path) -> None:
    """The copy then has the name of the original, and replaces it at one blow."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"a")
    die(writer)
    inode = active(tmp_path).stat().st_ino
    appends_on(tmp_path, [b"a"])
    assert active(tmp_path).stat().st_ino != inode
    assert list_segments(tmp_path) == [0]


def test_another_buffers_segment_is_an_error(tmp_path: Path) -> None:
    """A file that was put there from elsewhere is refused by the buffer id."""
    fill(tmp_path / "one")
    fill(tmp_path / "two")
    active(tmp_path / "one").write_bytes(active(tmp_path / "two").read_bytes())
    with pytest.raises(CorruptLogError, match="of buffer"):
        LogWriter.open(tmp_path / "one")
