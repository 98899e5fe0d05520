"""Fresh starts, restarts and replays: the same lines in the same batches, none lost, none twice.

Restarts are made by surgery on Spark's checkpoint: a deleted `commits/N` is a kill between the end
of batch N and Spark's note of it.
"""

from __future__ import annotations

import json

import pytest

from spark_eoc.source.offsets import decode_offset
from tests.source.source_runs import BEFORE_4_2

pytestmark = pytest.mark.compat


def offset_of(checkpoint, batch):
    return decode_offset(json.loads(checkpoint.offset(batch)))


def numbers(start, end):
    return [str(number) for number in range(start, end)]


def test_fresh_start_reads_from_the_first_record_in_order(start, buffer):
    buffer.count(1000)
    assert start().drain(1000).values == numbers(0, 1000)


def test_restart_goes_on_where_the_last_batch_ended(start, buffer, checkpoint):
    buffer.count(100)
    start().drain(100).settle().stop()
    buffer.count(50, start=100)
    assert start().drain(50).settle().stop().values == numbers(100, 150)
    assert offset_of(checkpoint, checkpoint.numbers("offsets")[-1]).offset == 150


def test_an_unfinished_batch_is_the_same_again(start, buffer, checkpoint):
    """4.3 calls partitions first then, and no offset method until that batch has ended."""
    buffer.count(100)
    first = start().drain(100).settle().stop()
    again = checkpoint.drop_last_commit()
    buffer.count(10, start=100)
    second = start().drain(len(first.batches[again]) + 10).stop()
    assert second.batches[again] == first.batches[again]
    assert second.values == numbers(100 - len(first.batches[again]), 110)


def test_batch_0_killed_with_latest_loses_nothing(start, buffer, checkpoint):
    """Spark doesn't store the initial offset and asks again, when `latest` is another number:
    the start of batch 0 is what its end offset says."""
    buffer.count(100)
    run = start(startingOffsets="latest").settle()
    buffer.count(10, start=100)
    run.drain(10).settle().stop()
    for _ in checkpoint.numbers("commits"):
        checkpoint.drop_last_commit()
    while len(checkpoint.numbers("offsets")) > 1:
        checkpoint.drop_last_batch()
    buffer.count(10, start=110)
    assert start(startingOffsets="latest").drain(20).values == numbers(100, 120)


def test_batch_0_with_lines_killed_with_latest_loses_nothing(start, buffer, checkpoint):
    """The same where batch 0 itself has lines: a number as start makes it so at once."""
    buffer.count(100)
    run = start(startingOffsets="40", fail_in=0)
    assert "the test kills this batch" in run.error()
    buffer.count(10, start=100)
    again = start(startingOffsets="latest").drain(70)
    assert again.values == numbers(40, 110)
    assert [row[0] for row in again.batches[0]] == numbers(40, 100)


def test_the_first_end_offset_carries_the_start_and_never_a_symbol(start, buffer, checkpoint):
    buffer.count(100)
    run = start(startingOffsets="latest").settle()
    buffer.count(5)
    run.drain(5).settle().stop()
    assert offset_of(checkpoint, 0).from_offset == 100
    assert offset_of(checkpoint, 1).from_offset is None


def test_nothing_new_gives_the_same_text_again(start, buffer, checkpoint):
    """Another text would be a batch: an idle query makes none."""
    buffer.count(10)
    run = start().drain(10).settle()
    batches = checkpoint.numbers("offsets")
    run.settle()
    run.stop()
    start().settle().settle().stop()
    assert checkpoint.numbers("offsets") == batches


def test_a_replay_splits_the_same_after_options_changed(start, buffer, checkpoint):
    """How a batch is split stands in its end offset: the ledger of a sink counts on it."""
    buffer.count(100)
    first = start(minPartitions=3).drain(100).settle().stop()
    batch = checkpoint.drop_last_commit()
    second = start(minPartitions=7, maxRowsPerPartition=10).drain(100).settle()
    assert second.partitions[batch] == first.partitions[batch]
    assert len(first.partitions[batch]) == 3
    buffer.count(40, start=100)
    second.drain(140).stop()
    assert len(second.partitions[batch + 1]) == 7


def test_a_batch_over_several_epochs_and_segments(start, tmp_path, buffer_of):
    """A writer's restart or a roll in the middle of a batch is nothing that a reader sees."""
    small = buffer_of(tmp_path / "small", segment_bytes=4096)
    for part in range(20):
        small.count(100, start=100 * part)
        if part % 5 == 0:
            small.restart()
    assert len(list(small.path.glob("*.segment"))) > 2
    run = start(path=small.path, minPartitions=6).drain(2000)
    assert run.values == numbers(0, 2000)
    assert sorted(run.partitions[0]) == [333, 333, 333, 333, 334, 334]


@pytest.mark.skipif(not BEFORE_4_2, reason="4.2 and later hand the start over")
def test_available_now_on_4_0_never_goes_backwards(start, buffer, checkpoint):
    """Its latestOffset comes before any call that tells the checkpoint's offset."""
    now = {"availableNow": True}
    buffer.count(100)
    given = {"maxRowsPerTrigger": 30, "trigger": now}
    values = []
    for _ in range(5):
        values += start(**given).finish().values
    assert values == numbers(0, 100)
    ends = [offset_of(checkpoint, batch).offset for batch in checkpoint.numbers("offsets")]
    assert ends == sorted(ends)
