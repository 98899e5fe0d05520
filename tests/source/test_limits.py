"""Admission control on every version, and Trigger.AvailableNow."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.receiver import Receiver
from spark_eoc.testing.wait import until
from tests.source.source_runs import BEFORE_4_2

pytestmark = pytest.mark.compat
NOW = {"availableNow": True}


def numbers(start, end):
    return [str(number) for number in range(start, end)]


def test_every_batch_keeps_to_maxrowspertrigger(start, buffer):
    """S2: before 4.2 Spark hands no limit over, and a first batch of all that waits kills it."""
    for part in range(10):
        buffer.count(1000, start=1000 * part)
    run = start(maxRowsPerTrigger=700).drain(10_000)
    assert run.values == numbers(0, 10_000)
    assert run.sizes == [700] * 14 + [200]


def test_a_million_waiting_lines_come_by_the_limit(start, buffer):
    """S2: the first batch comes as soon as with a thousand, and none is larger."""
    for part in range(10):
        buffer.count(100_000, start=100_000 * part)
    run = start(maxRowsPerTrigger=1000).drain(5000).stop()
    assert run.values == numbers(0, len(run.values))
    assert set(run.sizes) == {1000}


def test_a_limit_holds_over_a_restart(start, buffer):
    """S2: the first batch after a restart counts from the checkpoint's offset on 4.0 too."""
    buffer.count(100)
    start(maxRowsPerTrigger=30).drain(100).settle().stop()
    buffer.count(100, start=100)
    run = start(maxRowsPerTrigger=30).drain(100)
    assert run.values == numbers(100, 200)
    assert run.sizes == [30, 30, 30, 10]


def test_every_batch_keeps_to_maxbytespertrigger(start, buffer):
    lines = [f"{number:09d}" for number in range(1000)]
    buffer.add(lines)
    run = start(maxBytesPerTrigger=900).drain(1000)
    assert run.values == lines
    assert all(1 <= size <= 100 for size in run.sizes)


def test_the_second_limit_holds_too(start, buffer):
    """`getDefaultReadLimit` carries one limit; the other is the source's own business."""
    lines = [f"{number:09d}" for number in range(300)]
    buffer.add(lines)
    run = start(maxRowsPerTrigger=200, maxBytesPerTrigger=900).drain(300)
    assert run.values == lines
    assert max(run.sizes) <= 100


def test_a_line_longer_than_the_limit_comes_alone(start, buffer):
    """A limit that let nothing through would be a query that stands still for ever."""
    lines = ["x" * 5000, "y", "z" * 5000]
    buffer.add(lines)
    run = start(maxBytesPerTrigger=100).drain(3)
    assert run.values == lines


def test_available_now_drains_by_the_limit_and_ends(start, buffer):
    """S2: drained on 4.2 and later; one batch before, the rest stays for the next run."""
    buffer.count(100)
    run = start(maxRowsPerTrigger=30, trigger=NOW).finish()
    assert run.sizes == ([30] if BEFORE_4_2 else [30, 30, 30, 10])


def test_available_now_ends_while_a_producer_goes_on(start, buffer):
    """S2: it means what was durable when the run started."""
    buffer.count(100)
    run = start(
        maxRowsPerTrigger=20,
        trigger=NOW,
        change=lambda frame: frame.withColumn("value", frame.value),
    )
    until(lambda: run.batches or run.failed, 60, "a first batch")
    for part in range(20):
        buffer.count(10, start=100 + 10 * part)
    run.finish()
    assert run.values == numbers(0, 20 if BEFORE_4_2 else 100)
    rest = start(trigger=NOW).finish()
    assert (run.values + rest.values) == numbers(0, 300)


def test_available_now_on_an_empty_buffer_ends(start, buffer):
    assert start(trigger=NOW).finish().values == []
    buffer.count(3)
    assert start(trigger=NOW).finish().values == numbers(0, 3)


@pytest.mark.skipif(BEFORE_4_2, reason="Trigger.Once knows no admission control before 4.2")
def test_once_takes_all_there_is(start, buffer):
    """Once passes ReadAllAvailable: the options' limits are ignored then."""
    buffer.count(100)
    assert start(maxRowsPerTrigger=30, trigger={"once": True}).finish().sizes == [100]


@pytest.mark.parametrize(
    "lines",
    [25_000, pytest.param(600_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["seconds", "minutes"],
)
def test_a_full_buffer_with_a_slow_query_never_stands_still(start, buffer_of, tmp_path, lines):
    """`commit` comes only when a next batch is planned: a buffer that waited for it to make room
    would wait for ever once all it holds is handed out."""
    limit = 65_536
    small = buffer_of(
        tmp_path / "small", segment_bytes=8192, max_buffer_bytes=limit, retention_ms=0
    )
    options = ReceiverOptions(
        listen=("127.0.0.1", 0), trim_interval_ms=20, max_frame_bytes=4096, max_pending_bytes=8192
    )
    sizes = []
    with Receiver(small.writer, options) as receiver:
        run = start(path=small.path, maxRowsPerTrigger=1000)
        send_numbers(receiver.port, lines)
        until(
            lambda: sizes.append(size_of(small.path)) or len(run.values) == lines or run.failed,
            1000,
            "all lines",
        )
        run.stop()
    assert run.values == numbers(0, lines)
    # What isn't handed out, one batch that isn't committed, and the segments that they end in.
    assert max(sizes) < 2 * limit
    assert small.log().start_offset() > 0


def size_of(folder):
    total = 0
    for file in folder.glob("*.segment"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def send_numbers(port, count):
    def send():
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"".join(b"%d\n" % number for number in range(count)))

    threading.Thread(target=send, daemon=True).start()
