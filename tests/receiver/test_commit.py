"""Group commit: nothing is acknowledged before its fsync; a full or broken log is never passed."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path

import pytest

from spark_eoc.buffer import ConsumerPosition, LogReader
from spark_eoc.errors import LogClosedError, LogFullError
from spark_eoc.producer import LineProducer
from spark_eoc.receiver.syncer import Syncer, acknowledgements
from spark_eoc.testing.wait import until
from tests.receiver.conftest import stored
from tests.receiver.test_protocol import Talker


class Wrapped:
    """A LogWriter of which a test replaces parts."""

    def __init__(self, writer):
        self._writer = writer

    def __getattr__(self, name):
        return getattr(self._writer, name)


class SlowDisk(Wrapped):
    """``sync`` does its work only when it is allowed to."""

    def __init__(self, writer):
        super().__init__(writer)
        self.allowed = threading.Event()
        self.syncing = threading.Event()

    def sync(self):
        self.syncing.set()
        assert self.allowed.wait(20)
        return self._writer.sync()


class AcknowledgesBeforeFsync(Syncer):
    """The broken variant: producers are told while the lines are only in the page cache."""

    def _sync(self, frames):
        self._deliver(acknowledgements(frames))
        self._writer.sync()


def acknowledged_before_fsync(bench) -> bool:
    """Whether a producer hears ACK while the fsync of its line has not returned."""
    disk = SlowDisk(bench.open())
    receiver = bench.receive(disk)
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n")
        assert disk.syncing.wait(10)
        assert stored(bench.path) == []
        talker.sock.settimeout(0.3)
        try:
            early = talker.hear() == b"ACK 1"
        except TimeoutError:
            early = False
    disk.allowed.set()
    receiver.stop()
    return early


def test_nothing_is_acknowledged_before_its_fsync(bench):
    """And nothing is visible to readers."""
    assert not acknowledged_before_fsync(bench)


def test_the_broken_variant_that_acknowledges_before_fsync_is_caught(bench, monkeypatch):
    """The test above goes red for it."""
    monkeypatch.setattr("spark_eoc.receiver.committer.Syncer", AcknowledgesBeforeFsync)
    assert acknowledged_before_fsync(bench)


def test_who_waits_for_an_acknowledgement_is_not_held_back(bench, dial):
    """The flush interval is for plain lines; they go along with a producer's."""
    receiver = bench.receive(flush_interval_ms=60_000)
    dial(receiver).sendall(b"plain\n")
    until(lambda: receiver.stats().pending_bytes, 10, "it waits")
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n").hear_ack(1)
    assert bench.lines() == [b"plain", b"1"]


def test_what_comes_during_an_fsync_shares_the_next_one(bench, dial):
    """A slow disk makes larger flushes, not a queue of them."""
    disk = SlowDisk(bench.open())
    receiver = bench.receive(disk, flush_interval_ms=0)
    dial(receiver).sendall(b"first\n")
    assert disk.syncing.wait(10)
    for number in range(50):
        dial(receiver).sendall(b"%d\n" % number)
    until(lambda: receiver.stats().pending_bytes > 50 * 256, 10, "50 lines wait")
    disk.allowed.set()
    until(lambda: receiver.stats().lines == 51, 10, "all lines")
    assert receiver.stats().flushes == 2


def test_a_failed_log_stops_the_receiver_visibly(bench):
    """A failed fsync poisons the log: the producer isn't told that its line is durable."""

    class BrokenDisk(Wrapped):
        def sync(self):
            raise LogClosedError("fsync failed")

    receiver = bench.receive(BrokenDisk(bench.open()))
    with Talker(receiver.port) as talker:
        talker.hello()
        assert talker.say(b"1\n").hear().startswith(b"ERR log ")
    until(lambda: not receiver.running, 10, "it stops by itself")
    assert isinstance(receiver.error, LogClosedError)
    receiver.stop()


def test_a_log_that_fails_under_load_stops_the_receiver_visibly(bench):
    """There the fsync is in another thread than the append."""

    class BreaksLater(Wrapped):
        syncs = 0

        def sync(self):
            self.syncs += 1
            if self.syncs == 5:
                raise LogClosedError("fsync failed")
            return self._writer.sync()

    receiver = bench.receive(BreaksLater(bench.open(segment_bytes=8192)))
    with Talker(receiver.port) as talker, contextlib.suppress(ConnectionError):
        talker.say(b"a line\n" * 1_000_000)
    until(lambda: not receiver.running, 10, "it stops by itself")
    assert isinstance(receiver.error, LogClosedError)
    assert 0 < receiver.stats().lines <= len(bench.lines())


def test_under_load_the_next_frame_is_appended_while_the_disk_works(bench):
    """And nothing of it is acknowledged before the second fsync."""
    disk = SlowDisk(bench.open(segment_bytes=8192))
    receiver = bench.receive(disk)
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 500)
        assert disk.syncing.wait(10)
        until(lambda: disk.next_offset > 100, 10, "more than one frame is appended")
        assert receiver.stats().lines == 0
        disk.allowed.set()
        talker.hear_ack(501)
    assert len(bench.lines()) == 501


def test_a_hello_is_not_answered_with_lines_that_are_not_durable(bench):
    """The disk works on the first frame while the rest waits for room: LAST would acknowledge
    the first one too early."""
    disk = SlowDisk(bench.open(segment_bytes=8192))
    disk.room = lambda nbytes: disk.next_offset == 0
    receiver = bench.receive(disk)
    with Talker(receiver.port) as old, Talker(receiver.port) as new:
        old.hello()
        old.say(b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 90)
        assert disk.syncing.wait(10)
        until(lambda: receiver.stats().waiting_for_room, 10, "the rest waits")
        assert disk.next_offset > 0
        new.say(b"EOC/1 producer=p\n")
        assert old.hear().startswith(b"ERR fenced ")
        new.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            new.hear()
        disk.allowed.set()
    assert receiver.error is None


def test_a_full_disk_is_waited_for(bench, dial):
    """B9: ENOSPC: reading stops, hellos are answered, and it goes on when there is space."""

    class FullDisk(Wrapped):
        full = True
        begins_segment = False

        def room(self, nbytes):
            if self.full and self.begins_segment:
                raise LogFullError("no space is left for a new segment")
            self.begins_segment = True
            return True

        def append(self, block, *, receive_time_us):
            if self.full:
                raise LogFullError("no space is left")
            return self._writer.append(block, receive_time_us=receive_time_us)

    disk = FullDisk(bench.open())
    receiver = bench.receive(disk)
    dial(receiver).sendall(b"plain\n")
    with Talker(receiver.port) as talker, Talker(receiver.port) as other:
        talker.hello()
        talker.say(b"1\n2\n")
        until(lambda: receiver.stats().waiting_for_room, 10, "there is no space")
        assert other.hello("other") == 0
        disk.full = False
        talker.hear_ack(2)
    assert receiver.error is None
    assert sorted(bench.lines()) == [b"1", b"2", b"plain"]


def test_a_hello_while_the_disk_is_full_makes_no_double(bench):
    """The older connection's lines go back into the queue after the newer has said hello."""
    tried, go_on = threading.Event(), threading.Event()

    class FullOnce(Wrapped):
        def append(self, block, *, receive_time_us):
            if not go_on.is_set():
                tried.set()
                assert go_on.wait(10)
                raise LogFullError("no space is left")
            return self._writer.append(block, receive_time_us=receive_time_us)

    receiver = bench.receive(FullOnce(bench.open()))
    with Talker(receiver.port) as old, Talker(receiver.port) as new:
        old.hello()
        old.say(b"1\n2\n")
        assert tried.wait(10)
        new.say(b"EOC/1 producer=p\n")
        assert old.hear().startswith(b"ERR fenced ")
        go_on.set()
        assert new.hear().startswith(b"OK 0 ")
        new.say(b"1\n2\n3\n").hear_ack(3)
    assert bench.lines() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("plain", [False, True], ids=["producer", "plain"])
def test_a_full_buffer_with_a_slow_consumer_never_stands_still(bench, dial, plain):
    """20 times the limit goes through; nothing is dropped; disk and memory stay within bounds.

    The consumer commits a batch only when it plans the next one, as Spark does."""
    segment, limit, pending = 16_384, 65_536, 65_536
    writer = bench.open(
        segment_bytes=segment, max_buffer_bytes=limit, retention_ms=0, retention_bytes=0
    )
    receiver = bench.receive(
        writer, max_pending_bytes=pending, max_line_bytes=1000, trim_interval_ms=0
    )
    lines = [b"%06d %s" % (number, b"x" * 93) for number in range(13_000)]
    sender = threading.Thread(target=_send, args=(receiver.port, lines, plain), daemon=True)
    position = ConsumerPosition.open(bench.path, "slow")
    reader = LogReader(bench.path)
    sender.start()
    until(lambda: receiver.stats().waiting_for_room, 20, "the buffer is full")
    seen: list[bytes] = []
    largest = most_pending = planned = 0
    while len(seen) < len(lines):
        more = partial(more_lines, reader, len(seen))
        end = min(until(more, 20, "the next lines"), len(seen) + 500)
        position.commit(planned)
        position.hand_out(end)
        seen += stored(bench.path, len(seen), end)
        planned = end
        largest = max(largest, bytes_on_disk(bench.path))
        most_pending = max(most_pending, receiver.stats().pending_bytes)
    sender.join(20)
    assert not sender.is_alive()
    assert seen == lines
    # A read of 256 KiB may be on its way when memory gets full, and a segment be over by a frame.
    assert most_pending <= pending + 300_000
    assert largest < limit + 3 * segment + 20_000
    position.close()


def test_what_consumers_have_done_with_is_trimmed_though_no_line_comes(bench, dial):
    """The buffer of a source that has fallen silent gets small."""
    bench.open(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0, retention_bytes=0)
    receiver = bench.receive(trim_interval_ms=100)
    dial(receiver).sendall(b"0123456789\n" * 2000)
    until(lambda: receiver.stats().lines == 2000, 10, "all lines")
    position = ConsumerPosition.open(bench.path, "c")
    position.hand_out(2000)
    position.commit(2000)
    until(lambda: LogReader(bench.path).start_offset() > 1500, 10, "it is trimmed")
    position.close()


def bytes_on_disk(path: Path) -> int:
    """Of a folder whose files come and go."""
    total = 0
    for each in path.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += each.stat().st_size
    return total


def more_lines(reader: LogReader, start: int) -> int | None:
    """The durable end, if it lies beyond ``start``."""
    end = reader.end_offset()
    return end if end > start else None


def _send(port: int, lines: list[bytes], plain: bool) -> None:
    if plain:
        with Talker(port) as talker:
            talker.sock.settimeout(60)
            talker.say(b"".join(line + b"\n" for line in lines))
    else:
        with LineProducer("127.0.0.1", port, "p", window_bytes=200_000) as producer:
            for line in lines:
                producer.send(line)
