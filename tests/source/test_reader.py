"""The reader by the calls that each version of Spark makes, in the order in which it was seen to
make them; without Spark, and so on every version."""

from __future__ import annotations

import builtins
import io
import json
import logging
import os
import threading
from dataclasses import dataclass

import pytest
from pyspark.sql.datasource import InputPartition

from spark_eoc.buffer.consumers import ConsumerPosition, read_positions
from spark_eoc.errors import LogClosedError, LogError
from spark_eoc.source import reading
from spark_eoc.source.attachment import Attachment, attach
from spark_eoc.source.compat import SupportsTriggerAvailableNow, since_4_2
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.reader import ReplayableSocketReader
from spark_eoc.testing.ports import free_port

pytestmark = pytest.mark.compat


@dataclass
class ReadAllAvailable:
    pass


@dataclass
class ReadMaxRows:
    max_rows: int


@dataclass
class ReadMinRows:
    min_rows: int


@pytest.fixture
def reader_of(buffer):
    """Readers on the test's buffer; a new one is a restart of the query."""
    made = []

    def make(**options):
        for one in made:
            one.stop()
        made.append(ReplayableSocketReader(SourceOptions(str(buffer.path), **options)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def stored(offset):
    """As Spark keeps it: text."""
    return json.loads(json.dumps(offset))


def lines_of(reader, start, end):
    return [
        row["value"]
        for part in reader.partitions(stored(start), stored(end))
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def numbers(start, end):
    return [str(number) for number in range(start, end)]


# --- the order of calls -------------------------------------------------------------------


def test_a_fresh_start_of_4_3(reader_of, buffer):
    buffer.count(10)
    reader = reader_of()
    start = reader.initialOffset()
    end = reader.latestOffset(stored(start), ReadAllAvailable())
    reader.reportLatestOffset()
    assert lines_of(reader, reader.initialOffset(), end) == numbers(0, 10)


def test_a_fresh_start_of_4_0(reader_of, buffer):
    """No start, no limit; and the initial offset is asked for afterwards."""
    buffer.count(10)
    reader = reader_of(max_rows_per_trigger=4)
    first = reader.latestOffset()
    assert lines_of(reader, reader.initialOffset(), first) == numbers(0, 4)
    second = reader.latestOffset()
    assert lines_of(reader, first, second) == numbers(4, 8)


def test_a_restart_of_4_0_begins_with_partitions_of_nothing(reader_of, buffer):
    """It is the only thing that tells where the checkpoint stands."""
    buffer.count(10)
    before = reader_of(max_rows_per_trigger=4)
    first = before.latestOffset()
    lines_of(before, before.initialOffset(), first)
    before.latestOffset()  # planned, and killed before Spark has stored it
    again = reader_of(max_rows_per_trigger=4)
    assert again.partitions(stored(first), stored(first)) == []
    assert lines_of(again, first, again.latestOffset()) == numbers(4, 8)


@pytest.mark.parametrize("given", [{}, {"start": True}])
def test_a_restart_within_a_batch_begins_with_its_partitions(reader_of, buffer, given):
    """No offset method is called until that batch has ended, on both."""
    buffer.count(10)
    before = reader_of(max_rows_per_trigger=4)
    first = before.latestOffset(before.initialOffset(), None)
    second = before.latestOffset(stored(first), None)
    again = reader_of(max_rows_per_trigger=3)
    assert lines_of(again, first, second) == numbers(4, 8)
    start = stored(second) if given else None
    assert lines_of(again, second, again.latestOffset(start, None)) == numbers(8, 10)


def test_a_restart_with_available_now_on_4_0_never_goes_back(reader_of, buffer):
    """Spark asks for the latest offset first, and then tells the checkpoint's."""
    buffer.count(20)
    before = reader_of(max_rows_per_trigger=4)
    offsets = [before.latestOffset() for _ in range(3)]
    again = reader_of(max_rows_per_trigger=4)
    end = again.latestOffset()
    assert end["offset"] == offsets[-1]["offset"] + 4
    again.partitions(stored(offsets[-1]), stored(offsets[-1]))
    assert lines_of(again, offsets[-1], end) == numbers(12, 16)


def test_what_was_planned_is_known_before_spark_can_store_it(reader_of, buffer):
    """Else a kill between offsets/N and the planning of N would let the next run go back."""
    buffer.count(20)
    end = reader_of(max_rows_per_trigger=4).latestOffset()
    assert read_positions(buffer.path)["default"].handed_out == end["offset"]


# --- batch 0 ------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", ["latest", "earliest", 3])
def test_batch_0_again_is_the_same_batch(reader_of, buffer, wanted):
    """Spark doesn't store the initial offset and asks again: `latest` is another number then."""
    buffer.count(5)
    before = reader_of(starting_offsets=wanted)
    before.initialOffset()
    buffer.count(5, start=5)
    end = before.latestOffset(before.initialOffset(), None)
    expected = lines_of(before, before.initialOffset(), end)
    buffer.count(5, start=10)
    again = reader_of(starting_offsets=wanted)
    assert lines_of(again, again.initialOffset(), end) == expected


def test_latest_offset_never_returns_the_symbol(reader_of):
    """An empty buffer gives a first, empty batch, which fixes where the query began."""
    reader = reader_of()
    symbol = reader.initialOffset()
    end = reader.latestOffset(stored(symbol), None)
    assert end != symbol
    assert (end["offset"], end["from"]) == (0, 0)
    assert lines_of(reader, symbol, end) == []


# --- limits -------------------------------------------------------------------------------


def test_nothing_new_gives_back_what_was_given(reader_of, buffer):
    buffer.count(5)
    reader = reader_of()
    end = stored(reader.latestOffset(reader.initialOffset(), None))
    assert reader.latestOffset(end, None) is end
    assert reader.latestOffset() == end


def test_read_min_rows_waits(reader_of, buffer):
    """S3: too few rows are no batch."""
    buffer.count(5)
    reader = reader_of()
    end = stored(reader.latestOffset(reader.initialOffset(), None))
    buffer.count(3, start=5)
    assert reader.latestOffset(end, ReadMinRows(4)) == end
    buffer.count(1, start=8)
    assert reader.latestOffset(end, ReadMinRows(4))["offset"] == 9


def test_read_min_rows_does_not_wait_for_ever_with_available_now(reader_of, buffer):
    """What came by the time of its start is all there is."""
    buffer.count(5)
    reader = reader_of()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(reader.initialOffset(), ReadMinRows(100))["offset"] == 5


def test_available_now_stops_at_what_was_durable(reader_of, buffer):
    buffer.count(5)
    reader = reader_of()
    reader.prepareForTriggerAvailableNow()
    buffer.count(5, start=5)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert end["offset"] == 5
    assert reader.latestOffset(stored(end), ReadMaxRows(100)) == end


def test_available_now_with_listen_warns_by_name(buffer, caplog):
    """It comes before a receiver can have received."""
    buffer.count(5)
    buffer.close()
    address = ("127.0.0.1", free_port())
    reader = ReplayableSocketReader(SourceOptions(str(buffer.path), listen=address))
    try:
        reader.prepareForTriggerAvailableNow()
    finally:
        reader.stop()
        buffer.restart()
    assert "AvailableNow" in caplog.text
    assert "listen" in caplog.text


@pytest.mark.skipif(since_4_2("ReadLimit") is not None, reason="4.2 and later drain")
def test_before_4_2_a_limit_says_that_available_now_is_one_batch(reader_of, buffer, caplog):
    """S2: one batch, and a log line that says so."""
    buffer.count(5)
    reader_of(max_rows_per_trigger=2).latestOffset()
    assert "AvailableNow is one batch" in caplog.text


@pytest.mark.skipif(since_4_2("ReadLimit") is None, reason="4.2 and later")
def test_spark_finds_the_new_interfaces():
    """4.2 looks for a base class, and at how many parameters latestOffset has."""
    reader = ReplayableSocketReader(SourceOptions("/nowhere", max_rows_per_trigger=7))
    assert isinstance(reader, SupportsTriggerAvailableNow)
    limit = reader.getDefaultReadLimit()
    assert (type(limit).__name__, limit.max_rows) == ("ReadMaxRows", 7)


def test_options_changed_on_replay_split_the_same(reader_of, buffer):
    """How a batch is split stands in its end offset; a sink's ledger counts on it."""
    buffer.count(12)
    before = reader_of(min_partitions=3)
    start = before.initialOffset()
    end = before.latestOffset(start, None)
    counts = [part.value[-1] for part in before.partitions(start, stored(end))]
    again = reader_of(min_partitions=7, max_rows_per_partition=2)
    assert [part.value[-1] for part in again.partitions(start, stored(end))] == counts
    assert counts == [4, 4, 4]


# --- opening nothing, doing nothing -------------------------------------------------------


def test_only_offset_side_calls_open_anything(tmp_path):
    """The reader is built in several processes; only one of them plans."""
    reader = ReplayableSocketReader(SourceOptions(str(tmp_path / "b"), listen=("127.0.0.1", 1)))
    if since_4_2("ReadLimit"):
        reader.getDefaultReadLimit()
    reader.read(InputPartition((str(tmp_path / "b"), "00" * 16, 1, 0, 64, 0, 1)))
    reader.stop()
    assert list(tmp_path.iterdir()) == []


def test_an_idle_query_does_no_io(tmp_path, buffer, monkeypatch):
    """Idle queries call latestOffset about 90 times a second."""
    buffer.count(5)
    buffer.close()
    reader = ReplayableSocketReader(
        SourceOptions(str(buffer.path), listen=("127.0.0.1", free_port()))
    )
    try:
        end = stored(reader.latestOffset(reader.initialOffset(), None))
        lines_of(reader, reader.initialOffset(), end)
        reader.reportLatestOffset()
        seen = []
        for module, name in (
            (os, "open"),
            (os, "pread"),
            (os, "pwrite"),
            (io, "open"),
            (builtins, "open"),
        ):
            real = getattr(module, name)

            def counted(*args, real=real, name=name, **more):
                if threading.current_thread() is threading.main_thread():
                    seen.append((name, args[0]))
                return real(*args, **more)

            monkeypatch.setattr(module, name, counted)
        for _ in range(100):
            assert reader.latestOffset(end, ReadMaxRows(10)) == end
            assert reader.reportLatestOffset()["offset"] == 5
        monkeypatch.undo()
        assert not seen
    finally:
        monkeypatch.undo()
        reader.stop()
        buffer.restart()


def test_a_receiver_that_failed_ends_the_query(reader_of, buffer, monkeypatch):
    """It takes nothing more: a query that went on would look healthy and stand still."""
    buffer.count(5)
    reader = reader_of()
    end = stored(reader.latestOffset(reader.initialOffset(), None))

    def fail(self):
        raise LogClosedError("a write failed")

    monkeypatch.setattr(Attachment, "check", fail)
    with pytest.raises(LogClosedError, match="a write failed"):
        reader.latestOffset(end, None)


def test_a_partition_never_yields_fewer_rows(reader_of, buffer, monkeypatch):
    """A short partition in a batch that succeeds is a loss that nobody sees."""
    buffer.count(5)
    reader = reader_of()
    start = reader.initialOffset()
    (part,) = reader.partitions(start, stored(reader.latestOffset(start, None)))
    real = reading.read_slice
    monkeypatch.setattr(
        reading,
        "read_slice",
        lambda piece, **more: (batch.slice(0, 3) for batch in real(piece, **more)),
    )
    with pytest.raises(LogError, match="3 of the 5 records"):
        list(reader.read(part))


def test_a_failed_commit_is_logged_and_kills_no_query(reader_of, buffer, monkeypatch, caplog):
    """The lines are safe in the sink: an error in commit would end the query for nothing."""
    buffer.count(5)
    reader = reader_of()
    end = reader.latestOffset(reader.initialOffset(), None)

    def fail(self, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ConsumerPosition, "commit", fail)
    reader.commit(stored(end))
    assert "No space left" in caplog.text
    monkeypatch.undo()
    reader.commit(stored(end))
    assert read_positions(buffer.path)["default"].committed == 5


def test_a_reader_without_its_consumers_lock_says_so(buffer, caplog):
    caplog.set_level(logging.WARNING)
    first, second = (attach(SourceOptions(str(buffer.path))) for _ in range(2))
    try:
        assert "consumer 'default'" in caplog.text
        assert "never trims" in caplog.text
    finally:
        first.close()
        second.close()


def test_a_restored_checkpoint_holds_the_log_back(reader_of, buffer):
    """It needs again what was committed: nothing from there on may be trimmed."""
    buffer.count(20)
    before = reader_of(max_rows_per_trigger=5)
    ends = [before.latestOffset() for _ in range(3)]
    before.commit(stored(ends[-1]))
    assert read_positions(buffer.path)["default"].committed == 15
    again = reader_of()
    again.latestOffset(stored(ends[0]), None)
    assert read_positions(buffer.path)["default"].committed == 5
