"""A failure between every two requests: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

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
    create,
    read_object_slice,
)
from spark_eoc.errors import LogClosedError, SparkEocError
from tests.buffer.objects.stores import CrashError, FaultyObjects, memory

OPTIONS = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0)
LINES = 14


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Tries again at once."""
    monkeypatch.setattr(create, "_FIRST_WAIT_SECONDS", 0.0)


class Story:
    """A producer, a writer and a consumer, until something fails; then the same again."""

    def __init__(self):
        self.acknowledged = 0
        self.consumed = []

    def run(self, objects):
        """Goes on from what the log says, as each of the three does after a restart."""
        writer = ObjectWriter.open(objects.url, OPTIONS, objects=objects, poll_seconds=0)
        position = ObjectPosition(objects, "default")
        reader = ObjectReader(objects.url, objects=objects, poll_seconds=0)
        state = writer.producers.get(b"p")
        sequence = state.last_sequence if state else 0
        # What was acknowledged is what the producer never sends again.
        assert sequence >= self.acknowledged
        while sequence < LINES:
            sequence += 1
            block = LineBlock.from_lines([b"%d" % sequence * 600], [Run(b"p", 1, sequence)])
            writer.append(block, receive_time_us=sequence)
            writer.sync()
            self.acknowledged = sequence
            if sequence % 4 == 0:
                self.consume(objects, reader, position)
                writer.apply_trim()
        self.consume(objects, reader, position)
        writer.apply_trim()
        writer.close()

    def consume(self, objects, reader, position):
        """Reads to the end, then commits; what was read but not committed is read again."""
        start, end = position.committed, reader.end_offset()
        assert reader.start_offset() <= start
        read = []
        for piece in reader.split(start, end) if start < end else []:
            for batch in read_object_slice(piece, wait_seconds=0, objects=objects):
                read += batch.column(0).to_pylist()
        self.consumed[start:] = read
        position.hand_out(end)
        position.commit(end)


def requests_of_a_story():
    counting = FaultyObjects(memory(), 1 << 30, after=False, crash=False)
    Story().run(counting)
    return counting.requests


def tell(objects, at, *, after, crash):
    """The story with a failure at request ``at``, then once more without: all lines, once."""
    story = Story()
    faulty = FaultyObjects(objects, at, after=after, crash=crash)
    try:
        story.run(faulty)
    except (CrashError, SparkEocError, OSError):
        assert faulty.is_over
    acknowledged = story.acknowledged
    story.run(objects)
    assert story.consumed == [b"%d" % sequence * 600 for sequence in range(1, LINES + 1)]
    assert acknowledged <= LINES
    return faulty.is_over


@pytest.mark.parametrize("crash", [True, False], ids=["killed", "no answer once"])
@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_a_failure_at_each_request_loses_and_doubles_nothing(after, crash):
    """Before the store has seen the request, and after it was done; as a kill, and as one answer
    that never came."""
    at = 1
    while tell(memory(), at, after=after, crash=crash):
        at += 1
    assert at > 100


def test_a_kill_after_a_request_to_a_real_server(s3_server, eoc_seed):
    """The same over HTTP, at some of the requests, others in each run."""
    count = requests_of_a_story()
    for at in range(1 + eoc_seed % 20, count, 20):
        tell(ObstoreObjects(f"s3://eoc/{uuid.uuid4().hex}"), at, after=True, crash=True)


@pytest.mark.parametrize("second", [True, False], ids=["after", "before"])
def test_two_failures_in_a_row_are_survived_too(second):
    """The recovery is killed as well."""
    for first in range(5, requests_of_a_story(), 7):
        for at in range(1, 20, 3):
            objects, story = memory(), Story()
            for faulty in (
                FaultyObjects(objects, first, after=True, crash=True),
                FaultyObjects(objects, at, after=second, crash=True),
            ):
                with suppress(CrashError):
                    story.run(faulty)
            story.run(objects)
            assert story.consumed == [b"%d" % number * 600 for number in range(1, LINES + 1)]


def test_a_lost_answer_is_not_taken_for_another_writer():
    """The name is taken, by the own chunk: its nonce tells."""
    objects = memory()
    writer = ObjectWriter.open(objects.url, objects=objects)
    writer.append(LineBlock.from_lines([b"a"]), receive_time_us=1)
    writer._objects = FaultyObjects(objects, 1, after=True, crash=False)
    assert writer.sync() == 1
    assert writer.end_offset == 1
    assert ObjectReader(objects.url, objects=objects).end_offset() == 1


def test_a_sync_that_is_interrupted_leaves_no_hole():
    """What it was to store is gone from memory: nothing may be stored behind it."""
    objects = memory()
    writer = ObjectWriter.open(objects.url, objects=objects)
    writer.append(LineBlock.from_lines([b"a"]), receive_time_us=1)
    writer._objects = FaultyObjects(objects, 1, after=False, crash=True)
    with pytest.raises(CrashError):
        writer.sync()
    writer._objects = objects
    with pytest.raises(LogClosedError):
        writer.append(LineBlock.from_lines([b"b"]), receive_time_us=1)


def test_a_store_that_gives_no_answer_acknowledges_nothing(monkeypatch):
    """After some tries the writer takes nothing more; a new one finds whatever has arrived."""
    objects = memory()
    writer = ObjectWriter.open(objects.url, objects=objects)
    writer.append(LineBlock.from_lines([b"a"]), receive_time_us=1)

    def refuse(name, data):
        raise OSError("no answer")

    monkeypatch.setattr(writer._objects, "create", refuse)
    with pytest.raises(SparkEocError, match="no answer"):
        writer.sync()
    assert writer.failure
    assert writer.end_offset == 0
