"""Several queries on one buffer: nobody takes another's lines away."""

from __future__ import annotations

import pytest

from spark_eoc.buffer.consumers import read_positions
from spark_eoc.testing.wait import until

pytestmark = pytest.mark.compat


def numbers(start, end):
    return [str(number) for number in range(start, end)]


@pytest.fixture
def small(buffer_of, tmp_path):
    """Many small segments, none kept longer than needed."""
    return buffer_of(tmp_path / "small", segment_bytes=4096, retention_ms=0)


def test_two_consumers_go_at_their_own_pace(start, small, tmp_path, checkpoints):
    """Python learns neither query id nor checkpoint: the name is all that tells two queries
    apart, and the log is trimmed to the slower."""
    small.count(2000)
    fast = start(path=small.path, to=checkpoints("fast"), consumer="fast")
    slow = start(path=small.path, to=checkpoints("slow"), consumer="slow", maxRowsPerTrigger=500,
                 trigger={"processingTime": "500 milliseconds"})  # fmt: skip
    slow.drain(500)  # a consumer that has never been there holds nothing
    fast.drain(2000)
    for part in range(5):
        small.count(200, start=2000 + 200 * part)
        fast.drain(2200 + 200 * part)
        small.writer.apply_trim()
    assert fast.drain(3000).values == numbers(0, 3000)
    assert slow.drain(3000).values == numbers(0, 3000)
    until(
        lambda: small.writer.apply_trim() or small.log().start_offset() > 0, 60, "a trim at the end"
    )


def test_commit_moves_the_position_and_the_log_is_trimmed(start, small):
    """Below the end of batch N-1 as soon as batch N is planned, not before."""
    for part in range(10):
        small.count(200, start=200 * part)
    run = start(path=small.path, maxRowsPerTrigger=500).drain(2000).settle()
    committed = read_positions(small.path)["default"].committed
    assert committed == 1500
    small.writer.apply_trim()
    assert 0 < small.log().start_offset() <= 1500
    run.stop()


def test_a_second_query_under_one_name_reads_and_never_trims(start, small, tmp_path, checkpoints):
    """The one that holds the name decides what is trimmed; the other says so and reads on."""
    small.count(1000)
    first = start(path=small.path, to=checkpoints("one"), maxRowsPerTrigger=10,
                  trigger={"processingTime": "1 hour"})  # fmt: skip
    first.drain(10)
    second = start(path=small.path, to=checkpoints("two"), maxRowsPerTrigger=300).drain(1000)
    assert second.settle().values == numbers(0, 1000)
    small.writer.apply_trim()
    assert small.log().start_offset() == 0
    assert read_positions(small.path)["default"].committed == 0


def test_a_name_that_is_let_go_is_taken_up(start, small, checkpoints):
    """A killed runner's lock is free a moment later: the next run must not stay without for
    its whole life."""
    small.count(1000)
    first = start(path=small.path, to=checkpoints("one"), maxRowsPerTrigger=10,
                  trigger={"processingTime": "1 hour"})  # fmt: skip
    first.drain(10)
    second = start(path=small.path, to=checkpoints("two"), maxRowsPerTrigger=300).drain(1000)
    first.stop()
    small.count(300, start=1000)
    second.drain(1300)
    small.count(300, start=1300)
    second.drain(1600)
    until(lambda: read_positions(small.path)["default"].committed >= 1300, 30, "the position")


def test_a_self_union_gets_every_line_twice(start, buffer):
    """It calls partitions twice on one reader."""
    buffer.count(50)
    run = start(maxRowsPerTrigger=20, change=lambda frame: frame.union(frame)).drain(100)
    assert sorted(run.values, key=int) == sorted(2 * numbers(0, 50), key=int)


def test_a_self_join_reads_both_sides(start, buffer):
    """It makes two readers of one query: the second does without the consumer's lock."""
    buffer.count(20)

    def joined(frame):
        left = frame.selectExpr("value")
        right = frame.selectExpr("value AS other")
        return left.join(right, left.value == right.other).select("value")

    run = start(change=joined).drain(20)
    assert sorted(run.values, key=int) == numbers(0, 20)


def test_reading_again_from_the_start_holds_the_log_back(start, small, checkpoints):
    """A new checkpoint under an old name needs lines that the old one had committed."""
    small.count(1000)
    first = start(path=small.path, to=checkpoints("one")).drain(1000)
    small.count(10, start=1000)
    first.drain(1010).settle().stop()
    assert read_positions(small.path)["default"].committed == 1000
    second = start(path=small.path, to=checkpoints("two"), maxRowsPerTrigger=1,
                   trigger={"processingTime": "1 hour"})  # fmt: skip
    second.drain(1)
    small.writer.apply_trim()
    assert small.log().start_offset() == 0
