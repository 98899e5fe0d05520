"""What receiver and source rely on, for every kind of buffer alike."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.buffer import BufferOptions, ConsumerPosition, LogReader, LogWriter, read_slice
from spark_eoc.buffer.expiry import has_expired, known_producers
from spark_eoc.buffer.objects import (
    ObjectPosition,
    ObjectReader,
    ObjectWriter,
    ObstoreObjects,
    read_object_slice,
)
from spark_eoc.errors import LogClosedError, LogError, OffsetOutOfRangeError
from tests.buffer.buffer_logs import append, send
from tests.buffer.objects.conftest import azure_server, s3_server  # noqa: F401  fixtures
from tests.buffer.objects.stores import memory

SMALL = BufferOptions(segment_bytes=4096, max_buffer_bytes=4 * 4096, retention_ms=0)


class Folder:
    """A buffer on a disk."""

    def __init__(self, path):
        self.path = path

    def writer(self, options=None):
        return LogWriter.open(self.path, options)

    def reader(self):
        return LogReader(self.path)

    def position(self, name="default"):
        return ConsumerPosition.open(self.path, name)

    def lines(self, piece):
        return list(read_slice(piece, offset=True, timestamp=True, wait_seconds=0))


class InStore:
    """A buffer in an object store."""

    def __init__(self, objects):
        self.objects = objects
        self.path = objects.url

    def writer(self, options=None):
        return ObjectWriter.open(self.path, options, objects=self.objects, poll_seconds=0)

    def reader(self):
        return ObjectReader(self.path, objects=self.objects, poll_seconds=0)

    def position(self, name="default"):
        return ObjectPosition(self.objects, name)

    def lines(self, piece):
        return list(
            read_object_slice(
                piece, offset=True, timestamp=True, wait_seconds=0, objects=self.objects
            )
        )


@pytest.fixture(params=["folder", "memory", "s3", "azure"])
def kept(request, tmp_path):
    """Each kind of buffer in turn."""
    if request.param == "folder":
        return Folder(tmp_path / "buffer")
    if request.param == "memory":
        return InStore(memory())
    request.getfixturevalue(f"{request.param}_server")
    scheme = {"s3": "s3", "azure": "az"}[request.param]
    return InStore(ObstoreObjects(f"{scheme}://eoc/{uuid.uuid4().hex}"))


def read(kept, start, end, partitions=2):
    """The lines of a range, whose offsets must be dense."""
    lines, offsets = [], []
    for piece in kept.reader().split(start, end, partitions):
        for batch in kept.lines(piece):
            lines += batch.column("value").to_pylist()
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(start, end))
    return lines


def read_all(kept):
    reader = kept.reader()
    return read(kept, reader.start_offset(), reader.end_offset())


def fill(writer, frames, start=0):
    """Synced frames of three lines each; all lines."""
    lines = []
    for number in range(start, start + frames):
        lines += [b"%d %d %s" % (number, at, b"x" * 50) for at in range(3)]
        append(writer, *lines[-3:])
        writer.sync()
    return lines


def test_nobody_reads_what_is_not_synced(kept):
    """Appended is not durable; durable is readable, under the same offsets for all."""
    writer, reader = kept.writer(), kept.reader()
    assert append(writer, b"a", b"b") == 0
    assert (writer.end_offset, writer.next_offset, reader.end_offset()) == (0, 2, 0)
    with pytest.raises(OffsetOutOfRangeError):
        reader.split(0, 2)
    assert append(writer, b"") == 2
    assert writer.sync() == 3
    assert (writer.end_offset, reader.end_offset()) == (3, 3)
    assert read_all(kept) == [b"a", b"b", b""]
    writer.close()


def test_a_new_writer_goes_on_where_the_last_one_ended(kept):
    """Same buffer, higher epoch, next offset; what was closed before is kept to the last line."""
    first = kept.writer(SMALL)
    lines = fill(first, 40)
    append(first, b"closing syncs")
    first.close()
    second = kept.writer(SMALL)
    assert second.buffer_id == first.buffer_id
    assert second.epoch > first.epoch
    lines += [b"closing syncs", *fill(second, 5, 40)]
    assert read_all(kept) == lines
    second.close()


def test_a_closed_writer_takes_nothing(kept):
    """LogClosedError, and nothing is there."""
    writer = kept.writer()
    writer.close()
    assert writer.failure
    with pytest.raises(LogClosedError):
        append(writer, b"late")
    with pytest.raises(LogClosedError):
        writer.sync()
    assert read_all(kept) == []


def test_producers_numbers_survive_restarts_and_trims(kept):
    """Each writer knows what every producer has stored, from the log alone."""
    writer = kept.writer(SMALL)
    send(writer, b"early", 1, b"x", b"y")
    writer.sync()
    for number in range(1, 100):
        send(writer, b"busy", number, b"z" * 200)
        writer.sync()
    position = kept.position()
    position.commit(80)
    assert writer.apply_trim() > 2
    writer.close()
    writer = kept.writer(SMALL)
    found = {name: state.last_sequence for name, state in writer.producers.items()}
    assert found == {b"early": 2, b"busy": 99}
    with pytest.raises(ValueError, match="already"):
        send(writer, b"busy", 99, b"again")
    send(writer, b"busy", 100, b"next")
    assert writer.sync() == 102
    writer.close()


def test_names_of_expired_producers_are_remembered(kept):
    """Their numbers are gone; that there were such names lasts over restarts, rolls and trims."""
    writer = kept.writer(SMALL)
    send(writer, b"old", 1, b"x")
    send(writer, b"new", 1, b"y")
    writer.sync()
    old = writer.producers[b"old"].last_time_us
    assert writer.expire_producers(old) == 0
    assert writer.expire_producers(old + 1) == 2
    assert writer.expire_producers(old + 1) == 0
    writer.sync()
    send(writer, b"new", 7, b"z")
    kept.position().commit(fill_more(writer))
    writer.apply_trim()
    assert writer.start_offset > 3
    writer.close()
    writer = kept.writer(SMALL)
    assert list(known_producers(writer.producers)) == [b"new"]
    assert has_expired(writer.producers, b"old")
    assert not has_expired(writer.producers, b"new")
    assert not has_expired(writer.producers, b"never seen")
    writer.close()


def fill_more(writer):
    """Frames that fill three segments; the end."""
    for number in range(3):
        append(writer, b"%d" % number + b"x" * 5000)
        writer.sync()
    return writer.end_offset


def test_epochs_tell_who_wrote_a_record(kept):
    """An offset of a tail that was lost is told from its epoch: as Kafka's leader epochs."""
    ends = []
    for count in (3, 0, 4):
        writer = kept.writer()
        fill(writer, count)
        ends.append((writer.epoch, writer.end_offset))
        writer.close()
    reader = kept.reader()
    assert reader.epoch_of(0) == reader.epoch_of(8) == ends[0][0]
    assert reader.epoch_of(9) == reader.epoch_of(21) == ends[2][0]
    assert [reader.epoch_end(epoch) for epoch, _ in ends] == [9, 9, 21]


@pytest.mark.parametrize("frames", [1, 7])
def test_bounds_by_rows_and_bytes_hold_and_give_one_record_at_least(kept, frames):
    """Checked against the lines themselves, from every start."""
    writer = kept.writer()
    lines = []
    for number in range(frames):
        group = [b"y" * (number * 3 + at) for at in range(4)]
        lines += group
        append(writer, *group)
        if number % 2:
            writer.sync()
    writer.close()
    reader = kept.reader()
    for start in range(0, len(lines), 3):
        assert reader.bound(start, max_rows=2) == min(start + 2, len(lines))
        for most in (0, 1, 10, 60, 10_000):
            end = start
            while end < len(lines) and sum(map(len, lines[start : end + 1])) <= most:
                end += 1
            assert reader.bound(start, max_bytes=most) == max(end, start + 1)


def test_slices_are_even_dense_and_complete(kept):
    """Each record is in one slice, however many there are, with its time of receipt."""
    writer = kept.writer(SMALL)
    lines = fill(writer, 30)
    writer.close()
    reader = kept.reader()
    for partitions in (1, 4, 30):
        pieces = reader.split(0, 90, partitions)
        assert len(pieces) == partitions
        assert {piece.count for piece in pieces} <= {90 // partitions, 90 // partitions + 1}
        assert read(kept, 0, 90, partitions) == lines
    assert read(kept, 17, 19) == lines[17:19]
    batch = kept.lines(reader.split(5, 6)[0])[0]
    assert batch.column("timestamp").to_pylist()[0].year == 2023


def test_ranges_that_are_not_there_are_refused(kept):
    """Before the start, beyond the end, backwards."""
    writer = kept.writer(SMALL)
    fill(writer, 60)
    kept.position().commit(150)
    start = writer.apply_trim()
    assert 0 < start <= 150
    reader = kept.reader()
    assert reader.start_offset() == start
    for low, high in ((start - 1, start + 1), (170, 181), (160, 155)):
        with pytest.raises(OffsetOutOfRangeError):
            reader.split(low, high)
    writer.close()


def test_a_slice_that_was_trimmed_meanwhile_raises(kept):
    """A late task never yields fewer rows."""
    writer = kept.writer(SMALL)
    fill(writer, 60)
    piece = kept.reader().split(0, 10)[0]
    kept.position().commit(180)
    writer.apply_trim()
    with pytest.raises(OffsetOutOfRangeError):
        kept.lines(piece)
    writer.close()


def test_the_slowest_consumer_holds_the_log(kept):
    """Trimmed is what all have committed; a rewound position holds it too."""
    writer = kept.writer(SMALL)
    lines = fill(writer, 60)
    one, two = kept.position("one"), kept.position("two")
    assert one.held
    assert two.held
    assert one.commit(180)
    assert writer.apply_trim() == 0
    assert two.commit(120)
    assert two.rewind(60)
    assert (two.committed, two.handed_out) == (60, 120)
    assert 0 < writer.apply_trim() <= 60
    assert read_all(kept) == lines[writer.start_offset :]
    assert kept.position("one").committed == 180
    writer.close()


def test_a_full_buffer_has_room_again_when_all_is_handed_out(kept):
    """Commits come only when a next batch is planned, so a full buffer without anything new to
    plan would wait for ever."""
    writer = kept.writer(SMALL)
    position = kept.position()
    lines = []
    while writer.room(500):
        lines.append(b"%d" % len(lines) * 100)
        append(writer, lines[-1])
        writer.sync()
    assert not writer.room(500)
    position.hand_out(writer.end_offset)
    assert writer.room(500)
    lines += fill(writer, 3)
    position.commit(writer.end_offset)
    assert writer.apply_trim() > 0
    assert read_all(kept) == lines[writer.start_offset :]
    writer.close()


def test_appends_go_on_while_a_sync_is_on_its_way(kept):
    """One thread appends, another syncs: no line is lost, none moves."""
    writer = kept.writer(SMALL)
    stop = threading.Event()

    def sync():
        while not stop.is_set():
            writer.sync()

    thread = threading.Thread(target=sync)
    thread.start()
    lines = [b"line %d" % number for number in range(400)]
    for number, line in enumerate(lines):
        assert append(writer, line) == number
    stop.set()
    thread.join()
    writer.close()
    assert read_all(kept) == lines


def test_no_buffer_is_an_error_that_says_so(kept):
    """A reader never makes one."""
    with pytest.raises(LogError, match="no buffer"):
        kept.reader().end_offset()


def test_a_second_process_reads_what_the_first_has_stored(kept):
    """Planner and task are other processes than the writer."""
    if kept.path.__class__ is str and kept.path.startswith("memory"):
        pytest.skip("memory is of one process")
    writer = kept.writer()
    lines = fill(writer, 4)
    code = """
import sys
from spark_eoc.buffer.opening import open_reader, read_piece
reader = open_reader(sys.argv[1])
for piece in reader.split(0, reader.end_offset(), 3):
    for batch in read_piece(piece):
        for line in batch.column(0).to_pylist():
            print(line.decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(kept.path)], capture_output=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == lines
    writer.close()
