"""Append, sync, roll, epochs, producers and the limit, on a sound disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_eoc.buffer import (
    BufferOptions,
    ConsumerPosition,
    LineBlock,
    LogReader,
    LogWriter,
    ProducerState,
    Run,
)
from spark_eoc.buffer.directory import list_segments
from spark_eoc.buffer.expiry import expire, has_expired, known_producers
from spark_eoc.buffer.table import table_frames
from spark_eoc.errors import ConfigError, LogClosedError, OffsetOutOfRangeError
from tests.buffer.buffer_logs import SMALL, TIME_US, active, append, die, read_all, send


def test_nobody_reads_what_is_not_synced(tmp_path: Path) -> None:
    """A complete frame isn't a durable one: readers see it once sync has published it."""
    writer = LogWriter.open(tmp_path)
    reader = LogReader(tmp_path)
    append(writer, b"a", b"b")
    assert (writer.end_offset, writer.next_offset, reader.end_offset()) == (0, 2, 0)
    with pytest.raises(OffsetOutOfRangeError):
        reader.split(0, 2)
    assert writer.sync() == 2
    assert (writer.end_offset, reader.end_offset()) == (2, 2)
    assert read_all(tmp_path) == [b"a", b"b"]
    writer.close()


def test_an_empty_block_appends_nothing(tmp_path: Path) -> None:
    """No lines, no frame."""
    writer = LogWriter.open(tmp_path)
    assert append(writer) == 0
    assert append(writer, b"x") == 0
    assert append(writer) == 1
    writer.close()


@pytest.mark.parametrize(
    ("data", "offsets"),
    [
        (b"abc", (0, 2)),
        (b"abc", (1, 3)),
        (b"abc", (0, 3, 2, 3)),
        (b"abc", (0, 4, 3)),
        (b"abc", (0, -1, 3)),
        (b"abc", ()),
    ],
)
def test_a_block_that_is_not_in_form_is_refused(
    tmp_path: Path, data: bytes, offsets: tuple[int, ...]
) -> None:
    """Offsets that don't fit the data never reach the disk."""
    writer = LogWriter.open(tmp_path)
    packed = b"".join(number.to_bytes(4, "little", signed=True) for number in offsets)
    with pytest.raises(ValueError, match="block"):
        writer.append(LineBlock(data, packed), receive_time_us=0)
    with pytest.raises(ValueError, match="add up"):
        writer.append(LineBlock.from_lines([b"a"], [Run(b"", 2)]), receive_time_us=0)
    append(writer, b"fine")
    writer.close()
    assert read_all(tmp_path) == [b"fine"]


def test_segments_roll_and_everything_stays_readable(tmp_path: Path) -> None:
    """A segment holds at most its size and one frame more; numbers go on across segments."""
    writer = LogWriter.open(tmp_path, SMALL)
    lines = [b"%d" % number * 50 for number in range(200)]
    for line in lines:
        append(writer, line)
    writer.sync()
    assert len(list_segments(tmp_path)) > 5
    assert read_all(tmp_path) == lines
    writer.close()
    writer = LogWriter.open(tmp_path, SMALL)
    assert writer.next_offset == 200
    writer.close()
    assert read_all(tmp_path) == lines


def test_each_start_takes_the_next_epoch_also_without_a_line(tmp_path: Path) -> None:
    """Epochs never repeat, whatever the writer did and however it ended."""
    epochs = []
    for number in range(6):
        writer = LogWriter.open(tmp_path)
        epochs.append(writer.epoch)
        if number % 2:
            append(writer, b"x")
            writer.sync()
        die(writer) if number % 3 else writer.close()
    assert epochs == [1, 2, 3, 4, 5, 6]


def test_epochs_are_found_by_offset_and_their_ends_by_epoch(tmp_path: Path) -> None:
    """epoch_of tells who appended a record, epoch_end where the next epoch begins."""
    for number in range(4):
        writer = LogWriter.open(tmp_path, SMALL)
        for _ in range(number):
            append(writer, b"x" * 3000)
            append(writer, b"y" * 3000)
        writer.close()
    reader = LogReader(tmp_path)
    assert [reader.epoch_of(offset) for offset in range(13)] == [2] * 2 + [3] * 4 + [4] * 7
    assert [reader.epoch_end(epoch) for epoch in range(7)] == [0, 0, 2, 6, 12, 12, 12]
    with pytest.raises(OffsetOutOfRangeError):
        reader.epoch_of(13)


def test_sequence_numbers_come_back_from_the_log_alone(tmp_path: Path) -> None:
    """Every start finds the newest number of each producer, unsynced frames that survived too."""
    writer = LogWriter.open(tmp_path)
    send(writer, b"a", 1, b"1", b"2")
    send(writer, b"b", 10, b"1")
    writer.sync()
    send(writer, b"a", 3, b"3")
    assert writer.producers[b"a"].last_sequence == 3
    die(writer)
    writer = LogWriter.open(tmp_path)
    assert dict(writer.producers) == {
        b"a": ProducerState(3, TIME_US),
        b"b": ProducerState(10, TIME_US),
    }
    with pytest.raises(ValueError, match="in the log already"):
        send(writer, b"a", 3, b"again")
    writer.close()


def test_sequence_numbers_survive_the_trim_of_their_lines(tmp_path: Path) -> None:
    """Each segment begins with the table of all producers."""
    writer = LogWriter.open(tmp_path, SMALL)
    send(writer, b"quiet", 5, b"only line")
    for number in range(100):
        send(writer, b"busy", number + 1, b"x" * 200)
    writer.sync()
    position = ConsumerPosition.open(tmp_path)
    position.commit(writer.end_offset)
    assert writer.apply_trim() > 1
    for _ in range(2):
        die(writer)
        writer = LogWriter.open(tmp_path, SMALL)
        assert {name: state.last_sequence for name, state in writer.producers.items()} == {
            b"quiet": 5,
            b"busy": 100,
        }
    writer.close()


def test_idle_producers_are_forgotten_only_when_asked(tmp_path: Path) -> None:
    """Expiry is explicit, and lasts over a restart."""
    writer = LogWriter.open(tmp_path)
    block = LineBlock.from_lines([b"x"], [Run(b"old", 1, 9)])
    writer.append(block, receive_time_us=TIME_US - 1)
    send(writer, b"new", 1, b"y")
    writer.sync()
    assert writer.expire_producers(TIME_US) == 1
    writer.sync()
    writer.close()
    writer = LogWriter.open(tmp_path)
    assert list(known_producers(writer.producers)) == [b"new"]
    assert has_expired(writer.producers, b"old")
    writer.close()


def test_expired_names_have_a_bound_beyond_which_nothing_expires() -> None:
    """The most silent go first; what is remembered is never dropped for what is new."""
    table = {b"%d" % time: ProducerState(5, time) for time in range(10)}
    expiry = expire(table, 8, most=3)
    assert (expiry.expired, expiry.not_expired) == (3, 5)
    assert sorted(known_producers(expiry.table)) == [b"%d" % time for time in range(3, 10)]
    assert all(has_expired(expiry.table, b"%d" % time) for time in range(3))
    again = expire(expiry.table, 8, most=3)
    assert (again.table, again.expired) == (expiry.table, 0)


def test_many_producers_fill_several_frames_of_a_table(tmp_path: Path) -> None:
    """A table of 25,000 producers survives a roll and an expiry that is cut in between."""
    writer = LogWriter.open(tmp_path)
    runs = [Run(b"producer %d" % number, 1, number + 1) for number in range(25_000)]
    writer.append(LineBlock.from_lines([b"x"] * 25_000, runs), receive_time_us=TIME_US)
    writer.roll()
    assert len(list(table_frames(writer.producers, 0, 1))) == 3
    size = active(tmp_path).stat().st_size
    writer.append(LineBlock.from_lines([b"y"], [Run(b"late", 1, 1)]), receive_time_us=TIME_US + 9)
    writer.sync()
    durable = active(tmp_path).stat().st_size
    assert writer.expire_producers(TIME_US - 1) == 0
    writer._producers[b"one more"] = ProducerState(1, 0)
    assert writer.expire_producers(TIME_US - 1) == 1
    die(writer)
    whole = active(tmp_path).read_bytes()
    active(tmp_path).write_bytes(whole[: (durable + len(whole)) // 2])
    writer = LogWriter.open(tmp_path)
    assert len(writer.producers) == 25_001
    assert writer.producers[b"producer 24999"].last_sequence == 25_000
    writer.close()
    assert size < durable < len(whole)


def test_two_threads_append_and_sync_beside_each_other(tmp_path: Path) -> None:
    """A sync in one thread while another appends and rolls loses nothing."""
    writer = LogWriter.open(tmp_path, SMALL)
    stop = threading.Event()
    ends = []

    def keep_syncing() -> None:
        while not stop.is_set():
            ends.append(writer.sync())

    thread = threading.Thread(target=keep_syncing, daemon=True)
    thread.start()
    lines = [b"%d" % number for number in range(2_000)]
    for line in lines:
        append(writer, line)
    stop.set()
    thread.join(30)
    writer.close()
    assert read_all(tmp_path) == lines
    assert ends == sorted(ends)


def test_the_limit_counts_what_is_not_handed_out(tmp_path: Path) -> None:
    """A full buffer has no room until a batch is planned; it never counts what was planned."""
    writer = LogWriter.open(tmp_path, SMALL)
    position = ConsumerPosition.open(tmp_path)
    while writer.room(1000):
        append(writer, b"x" * 900)
    writer.sync()
    assert writer.next_offset >= 4 * 4096 // 1100
    assert not writer.room(1000)
    position.hand_out(writer.end_offset // 2)
    assert writer.room(1000)
    writer.close()


def test_a_full_buffer_that_is_handed_out_never_stands_still(tmp_path: Path) -> None:
    """Commits come only when a next batch is planned: when all is handed out and nothing is
    committed, the active segment is rolled, and there is room again, for ever."""
    writer = LogWriter.open(tmp_path, SMALL)
    position = ConsumerPosition.open(tmp_path)
    planned = 0
    for _ in range(20):
        while writer.room(3000):
            append(writer, b"x" * 2900)
        writer.sync()
        assert writer.end_offset > planned, "a next batch can always be planned"
        position.commit(planned)
        planned = writer.end_offset
        position.hand_out(planned)
        writer.apply_trim()
        assert sum(file.stat().st_size for file in tmp_path.glob("*.segment")) < 12 * 4096
    writer.close()


def test_a_block_as_big_as_the_limit_gets_room_once_all_is_handed_out(tmp_path: Path) -> None:
    """The active segment counts until it is rolled: without that, a block that doesn't fit beside
    it would wait for a commit, which waits for a next batch, which waits for the block."""
    writer = LogWriter.open(tmp_path, SMALL)
    position = ConsumerPosition.open(tmp_path)
    append(writer, b"x" * 3000)
    writer.sync()
    assert not writer.room(15_000)
    position.hand_out(1)
    assert writer.room(15_000)
    append(writer, b"y" * 14_000)
    writer.sync()
    position.hand_out(2)
    assert writer.room(100_000), "one that can never fit beside anything is taken alone"
    writer.close()


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    """After close every call that writes raises LogClosedError; close may be called twice."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"synced by close")
    writer.close()
    writer.close()
    with pytest.raises(LogClosedError, match="closed"):
        append(writer, b"x")
    with pytest.raises(LogClosedError):
        writer.sync()
    assert read_all(tmp_path) == [b"synced by close"]


def test_a_path_that_cannot_be_used_is_refused_in_plain_words(tmp_path: Path) -> None:
    """A file in the way, or a parent that is one."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="bufferPath"):
            LogWriter.open(path)


def test_sizes_that_can_not_work_are_refused() -> None:
    """The limit is at least four segments, so that a slow reader always has a next batch."""
    with pytest.raises(ConfigError, match="four segments"):
        BufferOptions(segment_bytes=4096, max_buffer_bytes=4 * 4096 - 1)
    with pytest.raises(ConfigError):
        BufferOptions(segment_bytes=100)
    with pytest.raises(ConfigError):
        BufferOptions(retention_ms=-1)
