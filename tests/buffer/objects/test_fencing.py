"""Two writers on one buffer: one is fenced, and has acknowledged nothing that isn't there."""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.buffer import BufferOptions, LineBlock, Run
from spark_eoc.buffer.objects import (
    ObjectPosition,
    ObjectReader,
    ObjectWriter,
    ObstoreObjects,
    read_object_slice,
)
from spark_eoc.buffer.objects import writer as writer_module
from spark_eoc.buffer.objects.extent import Start, chunk_name, claim_name, read_start
from spark_eoc.buffer.objects.trim import trim_to
from spark_eoc.errors import CorruptLogError, FencedError, LogClosedError, OffsetOutOfRangeError
from tests.buffer.objects.stores import memory

SMALL = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0)


def opened(objects):
    return ObjectWriter.open(objects.url, SMALL, objects=objects, poll_seconds=0)


def store(writer, *lines):
    writer.append(LineBlock.from_lines(lines), receive_time_us=1)
    return writer.sync()


def read_all(objects):
    reader = ObjectReader(objects.url, objects=objects, poll_seconds=0)
    lines = []
    start, end = reader.start_offset(), reader.end_offset()
    for piece in reader.split(start, end, 3) if start < end else []:
        for batch in read_object_slice(piece, objects=objects):
            lines += batch.column(0).to_pylist()
    return lines


def test_the_newest_writer_has_the_buffer_and_the_one_before_is_fenced():
    """It is told at its next chunk, for good, and nothing of that chunk is in the buffer."""
    objects = memory()
    old = opened(objects)
    store(old, b"a")
    new = opened(objects)
    old.append(LineBlock.from_lines([b"late"]), receive_time_us=1)
    with pytest.raises(FencedError, match="epoch is 2"):
        old.sync()
    with pytest.raises(LogClosedError):
        store(old, b"later")
    store(new, b"b")
    assert read_all(objects) == [b"a", b"b"]


class Slow:
    """Lets each of ``before`` run before a chunk is created."""

    def __init__(self, objects, before=()):
        self._objects, self._before = objects, list(before)

    def __getattr__(self, name):
        return getattr(self._objects, name)

    def create(self, name, data):
        if name.startswith("chunks/") and self._before:
            self._before.pop(0)()
        return self._objects.create(name, data)


def test_what_the_old_writer_stored_while_the_new_one_starts_is_kept():
    """It takes the number that the new one wanted: the new one goes on behind it."""

    objects = memory()
    old = opened(objects)
    new = opened(Slow(objects, [lambda: store(old, b"a", b"b")]))
    assert (new.epoch, new.end_offset) == (3, 2)
    with pytest.raises(FencedError):
        store(old, b"late")
    store(new, b"d")
    assert read_all(objects) == [b"a", b"b", b"d"]


def test_of_two_that_start_at_once_the_later_one_wins():
    """Both want the same number and epoch: one of them takes the next of both."""
    objects = memory()
    barrier = threading.Barrier(2)
    writers = []

    def begin():
        barrier.wait()
        writers.append(opened(objects))

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    old, new = sorted(writers, key=lambda writer: writer.epoch)
    assert old.epoch < new.epoch
    store(new, b"a")
    with pytest.raises(FencedError):
        store(old, b"b")
    assert read_all(objects) == [b"a"]


def trapped():
    """A writer that was stopped while another wrote its next number, and trimmed it."""
    objects = memory()
    stopped = opened(objects)
    store(stopped, b"early")
    healthy = opened(objects)
    for number in range(60):
        store(healthy, b"%d" % number * 300)
    ObjectPosition(objects, "default").commit(healthy.end_offset)
    healthy.apply_trim()
    assert objects.get(chunk_name(3)) is None
    return objects, stopped, healthy


def test_a_stopped_writer_whose_number_was_trimmed_acknowledges_nothing():
    """The deleted name can be created again; the start tells, before anything is acknowledged."""
    objects, stopped, healthy = trapped()
    before = read_all(objects)
    with pytest.raises(FencedError, match="trimmed"):
        store(stopped, b"late")
    assert stopped.end_offset == 1
    assert objects.get(chunk_name(3)) is None
    store(healthy, b"on")
    assert read_all(objects) == [*before, b"on"]


def test_without_that_look_at_the_start_a_line_is_acknowledged_and_lost(monkeypatch):
    """The trap is real: this is what the rule is for."""
    objects, stopped, _ = trapped()
    monkeypatch.setattr(writer_module, "check_not_fenced", lambda *_: None)
    assert store(stopped, b"late") == 2  # acknowledged
    assert b"late" not in read_all(objects)


def test_a_stopped_writer_cannot_take_the_start_back():
    """It stores an old start when it wakes up: start pointers are created, and the highest counts.
    Overwritten, it would open the trap again."""
    objects, stopped, _ = trapped()
    start = read_start(objects)
    assert start.number > 2
    trim_to(objects, Start(2, 0))
    assert read_start(objects) == start
    with pytest.raises(FencedError):
        store(stopped, b"late")


def test_a_task_never_takes_a_chunk_that_was_created_anew_for_the_one_it_wants():
    """Between the trim and its end it would read another writer's lines: it raises instead."""
    objects = memory()
    old = opened(objects)
    store(old, b"a", b"b")
    piece = ObjectReader(objects.url, objects=objects).split(0, 2)[0]
    data = bytes(objects.get(chunk_name(2)))
    trim_to(objects, Start(3, 2))
    objects.create(chunk_name(2), data)
    with pytest.raises(OffsetOutOfRangeError):
        list(read_object_slice(piece, objects=objects))


def test_the_newest_reader_of_a_name_has_its_position():
    """The one before moves nothing any more, also where the version it wants was deleted since."""
    objects = memory()
    old = ObjectPosition(objects, "q")
    assert old.commit(10)
    new = ObjectPosition(objects, "q")
    assert new.committed == 10
    for offset in range(11, 80):
        assert new.commit(offset)
    assert not old.rewind(5)
    assert not old.held
    assert not old.commit(500)
    assert ObjectPosition(objects, "q").committed == 79


class Racer(threading.Thread):
    """Sends numbered lines as one producer through writers of its own, fenced again and again."""

    def __init__(self, objects, name, lines, per_chunk):
        super().__init__()
        self.objects, self.producer, self.lines = objects, name, lines
        self.per_chunk = per_chunk
        self.acknowledged, self.fenced, self.failure = 0, 0, None

    def run(self):
        try:
            while self.acknowledged < self.lines:
                self._until_fenced()
        except Exception as error:  # noqa: BLE001  told by the test
            self.failure = error

    def _until_fenced(self):
        try:
            writer = opened(self.objects)
            state = writer.producers.get(self.producer)
            sequence = state.last_sequence if state else 0
            assert sequence >= self.acknowledged
            self.acknowledged = sequence
            while sequence < self.lines:
                count = min(self.per_chunk, self.lines - sequence)
                numbers = range(sequence + 1, sequence + count + 1)
                block = LineBlock.from_lines(
                    [b"%s %d" % (self.producer, number) for number in numbers],
                    [Run(self.producer, count, sequence + 1)],
                )
                writer.append(block, receive_time_us=1)
                writer.sync()
                sequence += count
                self.acknowledged = sequence
        except (FencedError, LogClosedError):
            self.fenced += 1


def race(objects, lines, per_chunk=1):
    racers = [Racer(objects, name, lines, per_chunk) for name in (b"a", b"b")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(1500)
    assert [racer.failure for racer in racers] == [None, None]
    found = read_all(objects)
    for racer in racers:
        own = [line for line in found if line.startswith(racer.producer)]
        assert own == [b"%s %d" % (racer.producer, number) for number in range(1, lines + 1)]
    assert len(found) == 2 * lines
    return sum(racer.fenced for racer in racers)


def test_two_racing_writers_lose_and_double_nothing():
    """Each takes the buffer from the other as often as it can; every line is there once."""
    assert race(memory(), 400) > 0


@pytest.mark.parametrize(("scheme", "server"), [("s3", "s3_server"), ("az", "azure_server")])
def test_two_racing_writers_on_a_real_server(request, scheme, server):
    """The same over HTTP."""
    request.getfixturevalue(server)
    assert race(ObstoreObjects(f"{scheme}://eoc/{uuid.uuid4().hex}"), 40) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_lines_of_two_racing_writers_on_a_real_server(s3_server):
    """As above, and the number of take-overs is printed."""
    taken = race(ObstoreObjects(f"s3://eoc/{uuid.uuid4().hex}"), 500_000, per_chunk=1000)
    print(f"a million lines, {taken} times fenced")
    assert taken > 10


def test_a_writer_that_starts_is_not_kept_waiting_by_a_quicker_one():
    """It claims its epoch once it has found its number taken; the one at work sees that when it
    looks at the start. A claim that a killed writer has left stops nobody later."""
    objects = memory()
    old = opened(objects)

    class Overtaken(Slow):
        """The writer at work is always quicker."""

        def create(self, name, data):
            if name.startswith("chunks/") and old.failure is None:
                with suppress(FencedError):
                    store(old, b"quick")
            return self._objects.create(name, data)

    new = opened(Overtaken(objects))
    assert old.failure is not None
    assert 1 <= old.end_offset <= new.end_offset <= 3
    store(new, b"on")
    objects.create(claim_name(40), b"")
    newest = opened(objects)
    assert newest.epoch == 41
    store(newest, b"and on")
    assert not [name for name in objects.names("start") if name.startswith("claim")]
    assert read_all(objects)[-2:] == [b"on", b"and on"]


def test_a_damaged_or_missing_chunk_is_refused_with_its_name():
    """Never a guess, for a writer that starts as for a task that reads."""
    objects = memory()
    writer = opened(objects)
    store(writer, b"a" * 100)
    store(writer, b"b" * 100)
    piece = ObjectReader(objects.url, objects=objects).split(0, 2)[0]
    whole = bytes(objects.get(chunk_name(2)))
    for position in (0, 9, 20, 70, 130, 200, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        objects.delete([chunk_name(2)])
        objects.create(chunk_name(2), bytes(damaged))
        with pytest.raises(CorruptLogError, match="chunks/0"):
            list(read_object_slice(piece, objects=objects))
        with pytest.raises(CorruptLogError, match="chunks/0"):
            opened(objects)
