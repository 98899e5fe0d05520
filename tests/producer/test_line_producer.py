"""LineProducer: what it keeps, what it says, and when it gives up."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_eoc.errors import (
    ConfigError,
    FencedError,
    ProtocolError,
    RecordTooLargeError,
    UnacknowledgedError,
)
from spark_eoc.producer import LineProducer
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.proxy import Rules
from spark_eoc.testing.wait import until
from tests.receiver.conftest import Bench
from tests.receiver.test_commit import SlowDisk


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(tmp_path / "buffer", stack)


def producer_of(receiver, name: str = "p", **options) -> LineProducer:
    return LineProducer("127.0.0.1", receiver.port, name, **options)


def test_lines_are_numbered_and_durable_after_flush(bench):
    """bytes, str and bytes-like; every byte but the newline comes through unchanged."""
    with producer_of(bench.receive()) as producer:
        assert producer.resume_from == producer.sent == producer.acknowledged == 0
        lines = [b"a", "ü", b"", b"ends in \r", b"\r", bytearray(b"\xff\0"), memoryview(b"m")]
        assert [producer.send(line) for line in lines] == [1, 2, 3, 4, 5, 6, 7]
        assert producer.flush() == producer.acknowledged == producer.sent == 7
        expected = [b"a", "ü".encode(), b"", b"ends in \r", b"\r", b"\xff\0", b"m"]
        assert bench.lines() == expected


def test_a_restarted_process_goes_on_after_resume_from(bench):
    """The replay of a file: no line is lost, none is doubled."""
    receiver = bench.receive()
    lines = [b"%d" % number for number in range(100)]
    with producer_of(receiver) as producer:
        for line in lines[:40]:
            producer.send(line)
    with producer_of(receiver, last_acknowledged=40) as producer:
        assert producer.resume_from == 40
        numbers = [producer.send(line) for line in lines[producer.resume_from :]]
        assert numbers == list(range(41, 101))
    assert bench.lines() == lines


@pytest.mark.parametrize("line", [b"a\nb", "a\n", b"\n", 5, None])
def test_what_is_no_line_is_refused(bench, line):
    """A newline would make two lines of it, and shift every number after it."""
    with producer_of(bench.receive()) as producer:
        with pytest.raises(ConfigError):
            producer.send(line)
        assert producer.sent == 0


def test_flush_that_takes_too_long_says_how_many_are_open(bench):
    """They are kept, and durable when the disk has done its work."""
    disk = SlowDisk(bench.open())
    with producer_of(bench.receive(disk)) as producer:
        for _ in range(5):
            producer.send(b"x")
        with pytest.raises(UnacknowledgedError) as caught:
            producer.flush(0.2)
        assert caught.value.facts == {"acknowledged": 0, "unacknowledged": 5}
        disk.allowed.set()
        assert producer.flush(20) == 5
    assert bench.lines() == [b"x"] * 5


def test_send_waits_while_the_window_is_full(bench):
    """Memory is bounded; a line that was not taken has no number."""
    disk = SlowDisk(bench.open())
    with producer_of(bench.receive(disk), window_bytes=100) as producer:
        for _ in range(10):
            producer.send(b"123456789")
        with pytest.raises(UnacknowledgedError, match="not taken"):
            producer.send(b"one more", timeout_s=0.2)
        assert producer.sent == 10
        disk.allowed.set()
        producer.send(b"one more", timeout_s=20)
    assert bench.lines() == [b"123456789"] * 10 + [b"one more"]


def test_it_waits_for_a_receiver_that_comes_later(bench):
    """Started first, before anybody listens."""
    port = free_port()
    with LineProducer("127.0.0.1", port, "p") as producer:
        with pytest.raises(UnacknowledgedError, match="not connected"):
            producer.send(b"a", timeout_s=0.1)
        bench.receive(listen=("127.0.0.1", port))
        assert producer.send(b"a", timeout_s=20) == 1
    assert bench.lines() == [b"a"]


def test_it_gives_up_where_nobody_ever_answers():
    """With ``connect_timeout_s``; for ever without."""
    producer = LineProducer("127.0.0.1", free_port(), "p", connect_timeout_s=0.2)
    with pytest.raises(UnacknowledgedError, match="no receiver answered"):
        producer.send(b"a")
    producer.abandon()


def test_a_newer_producer_of_the_name_fences_the_older(bench):
    """The older gets FencedError from every call, and does not fight back."""
    receiver = bench.receive()
    older = producer_of(receiver)
    older.send(b"1")
    older.flush(20)
    with producer_of(receiver) as newer:
        assert newer.resume_from == 1
        until(lambda: older._window.failure, 20, "the older is told")
        for call in (lambda: older.send(b"x"), older.flush, older.close):
            with pytest.raises(FencedError):
                call()
        newer.send(b"2")
    assert bench.lines() == [b"1", b"2"]


def test_another_buffer_behind_the_port_is_not_written_to(bench):
    """A wiped buffer would number from 1 again: nothing is sent, the error says what to do."""
    receiver = bench.receive()
    producer = producer_of(receiver)
    producer.send(b"1")
    producer.flush(20)
    receiver.stop()
    bench.writer.close()
    bench.writer = None
    shutil.rmtree(bench.path)
    bench.receive(listen=("127.0.0.1", receiver.port))
    until(lambda: producer._window.failure, 20, "it is told")
    with pytest.raises(ProtocolError, match="another buffer"):
        producer.flush(20)
    producer.abandon()
    assert bench.lines() == []


def test_an_expired_number_is_never_guessed(bench):
    """Whether or not the caller knows of an earlier life."""
    receiver = bench.receive()
    with producer_of(receiver) as producer:
        producer.send(b"1")
    receiver.stop()
    bench.writer.expire_producers(2**60)
    receiver = bench.receive()
    for known in (1, None):
        with pytest.raises(ProtocolError, match=r"expired.*another producer name"):
            producer_of(receiver, last_acknowledged=known).send(b"2")
    assert bench.lines() == [b"1"]


def test_a_number_that_expires_while_the_producer_lives_is_never_guessed(bench):
    """The receiver comes back knowing less than it has acknowledged."""
    receiver = bench.receive()
    producer = producer_of(receiver)
    producer.send(b"1")
    producer.flush(20)
    receiver.stop()
    bench.writer.expire_producers(2**60)
    bench.receive(listen=("127.0.0.1", receiver.port))
    until(lambda: producer._window.failure, 20, "it is told")
    with pytest.raises(ProtocolError, match="expired"):
        producer.send(b"2")
    producer.abandon()
    assert bench.lines() == [b"1"]


def test_a_wrong_token_is_final_and_not_shown(bench):
    """The right one works."""
    receiver = bench.receive(token="s3cret")
    wrong = producer_of(receiver, token="gu3ss")
    with pytest.raises(ProtocolError, match="token") as caught:
        wrong.send(b"x")
    assert "gu3ss" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    wrong.abandon()
    with producer_of(receiver, token="s3cret") as right:
        right.send(b"x")
    assert bench.lines() == [b"x"]


def test_a_line_longer_than_the_receiver_takes_is_refused_at_once(bench):
    """It has no number, and the producer goes on."""
    with producer_of(bench.receive(max_line_bytes=10)) as producer:
        with pytest.raises(RecordTooLargeError):
            producer.send(b"x" * 11)
        assert producer.send(b"x" * 10) == 1
    assert bench.lines() == [b"x" * 10]


def test_a_receiver_that_truncates_takes_long_lines(bench):
    """That is its rule."""
    with producer_of(bench.receive(max_line_bytes=4, on_oversize_line="truncate")) as producer:
        producer.send(b"123456")
    assert bench.lines() == [b"1234"]


def test_a_stranger_at_the_port_gets_no_line():
    """A web server answers something else: final, and only the hello was sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        producer = LineProducer("127.0.0.1", server.getsockname()[1], "p")
        peer, _ = server.accept()
        assert peer.recv(1000).startswith(b"EOC/1 producer=p session=")
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ProtocolError, match="not an answer of this protocol"):
            producer.send(b"secret line")
        producer.abandon()
        assert peer.recv(1000) == b""
        peer.close()


def test_many_threads_may_send(bench):
    """Each thread's lines keep their order; every number is given once."""
    numbers: list[int] = []
    with producer_of(bench.receive(), window_bytes=10_000) as producer:

        def send(name: int) -> None:
            for number in range(500):
                numbers.append(producer.send(b"%d %d" % (name, number)))

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == list(range(1, 4001))
    by_name: dict[bytes, list[int]] = {}
    for line in bench.lines():
        name, number = line.split()
        by_name.setdefault(name, []).append(int(number))
    assert list(map(len, by_name.values())) == [500] * 8
    assert all(each == sorted(each) for each in by_name.values())


def test_two_hundred_producers_at_once(bench):
    """Each is acknowledged, resumes at its number, and its lines keep their order."""
    receiver = bench.receive()

    def send(name: int) -> None:
        with producer_of(receiver, name=f"p{name}") as producer:
            for number in range(50):
                producer.send(b"%d %d" % (name, number))
            assert producer.flush(60) == 50

    threads = [threading.Thread(target=send, args=(name,)) for name in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_name: dict[bytes, list[int]] = {}
    for line in bench.lines():
        name, number = line.split()
        by_name.setdefault(name, []).append(int(number))
    assert len(by_name) == 200
    assert all(numbers == list(range(50)) for numbers in by_name.values())
    assert len(bench.writer.producers) == 200


def test_acknowledgements_are_told_in_rising_order(bench):
    """Each time, everything up to that number is durable already."""
    told: list[int] = []
    durable: list[int] = []

    def acknowledged(number: int) -> None:
        told.append(number)
        durable.append(bench.writer.end_offset)

    with producer_of(bench.receive(), on_acknowledged=acknowledged) as producer:
        for number in range(300):
            producer.send(b"%d" % number)
            if number % 100 == 0:
                producer.flush(20)
    assert told == sorted(set(told))
    assert told[-1] == 300
    assert all(number <= end for number, end in zip(told, durable, strict=True))


def test_what_on_acknowledged_raises_ends_the_producer(bench):
    """Not silently."""

    def broken(number: int) -> None:
        raise ValueError("transcript is full")

    producer = producer_of(bench.receive(), on_acknowledged=broken)
    producer.send(b"x")
    until(lambda: producer._window.failure, 20, "it fails")
    with pytest.raises(ProtocolError, match="transcript is full"):
        producer.send(b"y")
    producer.abandon()


@pytest.mark.parametrize("side", ["cut_to_server", "cut_to_client", "half_close_to_server"])
def test_a_connection_cut_after_any_byte_loses_and_doubles_nothing(bench, proxy_to, side):
    """Hello, lines and answers cut at every place, several times a producer."""
    receiver = bench.receive()
    proxy = proxy_to(receiver.port)
    expected: list[bytes] = []
    for length in range(75):
        proxy.set(Rules(**{side: length}), times=2)
        name = f"{side}-{length}"
        lines = [b"%s %d" % (name.encode(), number) for number in range(12)]
        with LineProducer("127.0.0.1", proxy.port, name, stall_timeout_s=5) as producer:
            for line in lines:
                producer.send(line, timeout_s=20)
            producer.flush(20)
        expected += lines
    assert bench.lines() == expected


def test_a_black_hole_is_left_behind(bench, proxy_to):
    """Nothing is acknowledged for ``stall_timeout_s``: a new connection, the same lines."""
    receiver = bench.receive()
    proxy = proxy_to(receiver.port)
    with LineProducer("127.0.0.1", proxy.port, "p", stall_timeout_s=0.3) as producer:
        producer.send(b"1")
        producer.flush(20)
        proxy.set(Rules(black_hole=True))
        producer.send(b"2")
        with pytest.raises(UnacknowledgedError):
            producer.flush(0.1)
        proxy.set()
        assert producer.flush(20) == 2
    assert bench.lines() == [b"1", b"2"]


def test_an_error_in_the_block_disconnects_without_waiting(bench):
    """The error comes through, not a timeout of close()."""
    disk = SlowDisk(bench.open())
    producer = producer_of(bench.receive(disk))

    def fail_inside() -> None:
        with producer:
            producer.send(b"x")
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail_inside()
    disk.allowed.set()
    with pytest.raises(ProtocolError, match="closed"):
        producer.send(b"y")


def test_a_process_ends_though_a_producer_is_open():
    """The thread is a daemon thread."""
    script = (
        "from spark_eoc.producer import LineProducer\n"
        f"LineProducer('127.0.0.1', {free_port()}, 'p')"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=30, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("options", [{"name": "a b"}, {"name": "p", "window_bytes": 0}])
def test_arguments_that_cannot_work_are_refused(options):
    """Before anything is connected."""
    with pytest.raises(ConfigError):
        LineProducer("127.0.0.1", 1, **options)
