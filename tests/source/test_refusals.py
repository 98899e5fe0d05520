"""A checkpoint and a log that don't belong together are refused, or jumped over with a warning."""

from __future__ import annotations

import json
import shutil

import pytest

from spark_eoc.errors import OffsetOutOfRangeError
from spark_eoc.source.continuity import Continuity
from spark_eoc.source.offsets import SourceOffset, decode_offset, encode_offset
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.reader import ReplayableSocketReader
from tests.source.source_runs import Buffer

pytestmark = pytest.mark.compat


@pytest.fixture
def lose_tail(buffer):
    """Copies the buffer as it is; later put back, as if what came since was never there."""

    def keep():
        shutil.copytree(buffer.path, str(buffer.path) + ".old")

    def put_back():
        buffer.close()
        shutil.rmtree(buffer.path)
        shutil.copytree(str(buffer.path) + ".old", buffer.path)
        buffer.writer = Buffer(buffer.path).writer

    return keep, put_back


def test_a_buffer_lost_with_its_disk_is_refused_naming_both(start, buffer, buffer_of, tmp_path):
    """S8: a checkpoint on a shared disk, a buffer on the driver's, and the driver has moved."""
    buffer.count(10)
    start().drain(10).settle().stop()
    other = buffer_of(tmp_path / "other")
    other.count(10)
    error = start(path=other.path).error()
    assert buffer.writer.buffer_id in error
    assert other.writer.buffer_id in error
    assert "Next step" in error


def test_a_tail_cut_below_the_checkpoint_is_refused(start, buffer, lose_tail):
    """B5: the log ends before the checkpoint's offset: never an empty batch, never silence."""
    keep, put_back = lose_tail
    buffer.count(10)
    keep()
    buffer.count(10, start=10)
    start().drain(20).settle().stop()
    put_back()
    error = start().error()
    assert "20" in error
    assert "durable up to 10" in error


def test_numbers_used_again_after_a_lost_tail_are_refused(start, buffer, lose_tail):
    """B5: 10 lines were lost and their numbers given to others, so that the offset exists again.
    Only the epoch tells."""
    keep, put_back = lose_tail
    buffer.count(10)
    keep()
    buffer.count(10, start=10)
    start().drain(20).settle().stop()
    put_back()
    buffer.count(30, start=1000)
    error = start().error()
    assert "epoch" in error
    assert "ends at 10" in error


def test_with_failondataloss_false_it_goes_on_with_the_lines_that_were_never_read(
    start, buffer, lose_tail
):
    """The jump goes to the end of the lost epoch: what has the old numbers now is new."""
    keep, put_back = lose_tail
    buffer.count(10)
    keep()
    buffer.count(10, start=10)
    start().drain(20).settle().stop()
    put_back()
    buffer.count(30, start=1000)
    run = start(failOnDataLoss="false").drain(30)
    assert run.values == [str(number) for number in range(1000, 1030)]


def test_with_failondataloss_false_another_buffer_is_read_from_its_start(
    start, buffer, buffer_of, tmp_path
):
    buffer.count(10)
    start().drain(10).settle().stop()
    other = buffer_of(tmp_path / "other")
    other.count(5, start=500)
    run = start(path=other.path, failOnDataLoss="false").drain(5)
    assert run.values == [str(number) for number in range(500, 505)]


def test_an_offset_of_another_source_is_refused(start, buffer, checkpoint):
    buffer.count(10)
    start().drain(10).settle().stop()
    checkpoint.write_offset(checkpoint.numbers("offsets")[-1], {"port": 9999})
    assert "did not write" in start().error()


def test_a_batch_that_ends_before_it_starts_is_refused(start, buffer, checkpoint):
    """Spark accepts offsets that go backwards, and would read the lines between twice."""
    buffer.count(10)
    run = start().drain(10)
    buffer.count(10, start=10)
    run.drain(20).settle().stop()
    batch = checkpoint.drop_last_commit()
    stored = decode_offset(json.loads(checkpoint.offset(batch)))
    back = SourceOffset(stored.buffer_id, stored.epoch, 5, 1)
    checkpoint.write_offset(batch, encode_offset(back))
    assert "beyond its end 5" in start().error()


# --- the rules themselves, without Spark ------------------------------------------------------


@pytest.fixture
def rules(buffer):
    def make(**options):
        return Continuity(SourceOptions(str(buffer.path), **options), buffer.log())

    return make


def offset(buffer, number, epoch=None):
    return SourceOffset(buffer.writer.buffer_id, epoch or buffer.writer.epoch, number, 1)


def test_what_is_retained_and_what_comes_next_is_fine(buffer, rules):
    buffer.count(10)
    for number in (1, 5, 10):
        assert rules().locate(offset(buffer, number), "it") == number


def test_another_buffers_offset_is_refused_whatever_its_number(buffer, rules):
    """S8: the number may well exist here."""
    buffer.count(10)
    with pytest.raises(OffsetOutOfRangeError, match="belongs to buffer"):
        rules().locate(SourceOffset("0" * 32, buffer.writer.epoch, 5, 1), "it")


@pytest.mark.parametrize("number", [11, 10_000])
def test_beyond_the_durable_end(buffer, rules, caplog, number):
    buffer.count(10)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        rules().locate(offset(buffer, number), "it")
    assert caught.value.facts == {"wanted": number, "available": 10}
    assert rules(fail_on_data_loss=False).locate(offset(buffer, number), "it") == 10
    assert str(number) in caplog.text
    assert "record 10" in caplog.text


def test_before_the_first_retained(buffer_of, tmp_path, caplog):
    small = buffer_of(tmp_path / "small", segment_bytes=4096, retention_ms=0)
    for part in range(10):
        small.count(200, start=200 * part)
    small.trim_to(1000)
    first = small.log().start_offset()
    assert first > 0
    strict = Continuity(SourceOptions(str(small.path)), small.log())
    with pytest.raises(OffsetOutOfRangeError, match=f"first retained record is {first}"):
        strict.locate(offset(small, 1), "it")
    lenient = Continuity(SourceOptions(str(small.path), fail_on_data_loss=False), small.log())
    assert lenient.locate(offset(small, 1), "it") == first
    assert strict.locate(offset(small, first), "it") == first
    assert f"record {first}" in caplog.text


@pytest.mark.parametrize("wanted", ["11", "earliest", "latest", "3"])
def test_startingoffsets(buffer, rules, wanted):
    buffer.count(10)
    expected = {"earliest": 0, "latest": 10, "3": 3}
    options = {"starting_offsets": int(wanted) if wanted.isdigit() else wanted}
    if wanted in expected:
        assert rules(**options).first_record() == expected[wanted]
    else:
        with pytest.raises(OffsetOutOfRangeError, match="startingOffsets is 11"):
            rules(**options).first_record()


def test_an_epoch_that_this_log_never_had_is_refused(buffer, rules):
    """A log put back from an older copy: its numbers are in range, its epochs are behind."""
    buffer.count(10)
    with pytest.raises(OffsetOutOfRangeError, match="epoch"):
        rules().locate(offset(buffer, 5, epoch=buffer.writer.epoch + 1), "it")


def test_the_reader_asks_the_log_once_for_the_same_offset(buffer):
    """Idle queries call latestOffset about 90 times a second."""
    buffer.count(10)
    reader = ReplayableSocketReader(SourceOptions(str(buffer.path)))
    end = reader.latestOffset(reader.initialOffset(), None)
    assert reader.latestOffset(end, None) is end
    located = reader._located
    assert reader.latestOffset(end, None) is end
    assert reader._located is located
    reader.stop()
