"""Plain connections: any program that writes lines to a socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from spark_eoc.errors import ConfigError, RecordTooLargeError
from spark_eoc.receiver import Receiver, ReceiverOptions
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until
from tests.receiver.conftest import reset


def test_lines_of_a_plain_socket_are_stored_as_received(bench, dial):
    """What `nc` does: connect, write, close."""
    dial(bench.receive()).sendall(b"a\r\n\xff\n\nlone \r cr\n")
    bench.wait_for([b"a", b"\xff", b"", b"lone \r cr"])


@pytest.mark.parametrize("first", [b"EOC/1", b"EOC/1 consumer=x", b"E", b"ACK 1"])
def test_a_first_line_like_a_hello_is_data(bench, dial, first):
    """Only a real hello is answered."""
    sock = dial(bench.receive())
    sock.sendall(first + b"\nnext\n")
    bench.wait_for([first, b"next"])


def test_text_after_the_last_newline_is_a_line_after_a_clean_end(bench, dial):
    """B6: `a\\nb` then FIN. Only the beginning of a hello is none: it may be a producer's."""
    receiver = bench.receive()
    for number, text in enumerate((b"a\nb", b"EOC/1 pro", b"E", b"c\r", b"EOC"), 1):
        sock = dial(receiver)
        sock.sendall(text)
        sock.close()
        until(lambda: receiver.stats().accepted == number, 10, "it came")  # noqa: B023
        until(lambda: receiver.stats().connections == 0, 10, "the connection is gone")
    bench.wait_for([b"a", b"b", b"c\r"])
    assert receiver.stats().dropped_unfinished == 3


def test_text_after_the_last_newline_is_dropped_after_a_reset(bench, dial):
    """B6: `a\\nb` then RST: b may be half a line, and it is counted."""
    receiver = bench.receive()
    sock = dial(receiver)
    sock.sendall(b"a\nb")
    bench.wait_for([b"a"])
    reset(sock)
    until(lambda: receiver.stats().dropped_unfinished == 1, 10, "the half line is counted")
    receiver.stop()
    assert bench.lines() == [b"a"]


def test_text_after_the_last_newline_is_dropped_when_the_receiver_stops(bench, dial):
    """B6: the rest of that line would have come; whole lines are stored first."""
    receiver = bench.receive(flush_interval_ms=60_000)
    dial(receiver).sendall(b"a\nb")
    until(lambda: receiver.stats().unfinished_bytes == 1, 10, "both have arrived")
    receiver.stop()
    assert bench.lines() == [b"a"]
    assert receiver.stats().dropped_unfinished == 1
    assert receiver.error is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_whatever_it_listens_on_is_reached_at_127_0_0_1(bench, dial, host):
    """Also where `localhost` is ::1 first."""
    dial(bench.receive(listen=(host, 0))).sendall(b"a\n")
    bench.wait_for([b"a"])


def test_an_address_that_is_taken_is_an_error_at_once(bench):
    """OSError from start()."""
    taken = bench.receive().port
    with pytest.raises(OSError, match="in use"):
        bench.receive(listen=("127.0.0.1", taken))


def test_flushes_are_shared_by_connections(bench, dial):
    """One frame and one fsync for what came from many within the interval."""
    receiver = bench.receive(flush_interval_ms=300)
    for number in range(20):
        dial(receiver).sendall(b"%d\n" % number)
    until(lambda: receiver.stats().lines == 20, 10, "20 lines")
    assert receiver.stats().flushes <= 3
    assert sorted(bench.lines(), key=int) == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("rule", "stored"),
    [
        ("error", [b"a"]),
        ("truncate", [b"a", b"x" * 1000, b"b"]),
        ("skip", [b"a", b"b"]),
    ],
)
def test_an_endless_line_costs_bounded_memory_and_follows_the_rule(bench, dial, rule, stored):
    """B7: 100 MB without a newline; the connection lives on unless the rule is error."""
    receiver = bench.receive(max_line_bytes=1000, on_oversize_line=rule)
    sock = dial(receiver)
    highest = 0
    try:
        sock.sendall(b"a\n")
        for _ in range(100):
            sock.sendall(b"x" * 1_000_000)
            now = receiver.stats()
            highest = max(highest, now.unfinished_bytes + now.pending_bytes)
        sock.sendall(b"\nb\n")
    except ConnectionError:
        assert rule == "error"
    bench.wait_for(stored)
    assert highest < 2000
    assert receiver.stats().oversize_lines == 1
    assert receiver.error is None


def test_half_lines_of_many_connections_together_are_bounded(bench, dial):
    """The largest has to go; the others, and new ones, are served."""
    receiver = bench.receive(max_pending_bytes=100_000, max_line_bytes=50_000)
    small = dial(receiver)
    small.sendall(b"whole\nhalf")
    for _ in range(5):
        dial(receiver).sendall(b"y" * 40_000)
    until(lambda: receiver.stats().refused >= 3, 10, "the largest were let go")
    assert receiver.stats().unfinished_bytes <= 100_000
    small.sendall(b" is whole now\n")
    bench.wait_for([b"whole", b"half is whole now"])


def test_more_connections_than_allowed_are_turned_away(bench, dial):
    """They read why; a place that gets free is given again."""
    receiver = bench.receive(max_connections=2)
    first, second = dial(receiver), dial(receiver)
    until(lambda: receiver.stats().connections == 2, 10, "two connections")
    assert dial(receiver).makefile("rb").read().startswith(b"ERR busy ")
    first.close()
    until(lambda: receiver.stats().connections == 1, 10, "one is gone")
    dial(receiver).sendall(b"again\n")
    bench.wait_for([b"again"])
    second.close()


def test_idle_connections_are_let_go_where_asked(bench, dial):
    """Off by default: a plain sender that waits loses nothing."""
    receiver = bench.receive(idle_timeout_ms=150)
    idle = dial(receiver)
    idle.sendall(b"a\n")
    assert idle.makefile("rb").read() == b""
    bench.wait_for([b"a"])


def test_a_hundred_and_fifty_senders_at_once(bench):
    """Each sender's lines keep their order; none is lost."""
    receiver = bench.receive()

    def send(name: int) -> None:
        with socket.create_connection(("127.0.0.1", receiver.port), 30) as sock:
            for number in range(50):
                sock.sendall(b"%d %d\n" % (name, number))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: receiver.stats().lines == 7500, 20, "all lines")
    by_name: dict[bytes, list[int]] = {}
    for line in bench.lines():
        name, number = line.split()
        by_name.setdefault(name, []).append(int(number))
    assert len(by_name) == 150
    assert all(numbers == list(range(50)) for numbers in by_name.values())


class TestAsClient:
    """`connect`: the receiver reads from a server, as Spark's socket source does."""

    def test_it_connects_once_and_reads(self, bench):
        """S5: a server that takes one connection only; building a receiver doesn't connect."""
        with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
            options = ReceiverOptions(connect=server.getsockname())
            receiver = Receiver(bench.open(), options)
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()
            receiver.start()
            server.settimeout(10)
            peer, _ = server.accept()
            peer.sendall(b"a\nb\n")
            bench.wait_for([b"a", b"b"])
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()
            peer.close()
            receiver.stop()

    def test_it_connects_again_whenever_the_server_comes_back(self, bench):
        """First nobody is there; then the server ends its stream three times."""
        port = free_port()
        bench.receive(connect=("127.0.0.1", port), reconnect_max_ms=100)
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(10)
            for number in range(3):
                peer, _ = server.accept()
                peer.sendall(b"%d\nrest" % number)
                peer.close()
        bench.wait_for([b"0", b"rest", b"1", b"rest", b"2", b"rest"])

    def test_a_hello_from_a_server_is_data(self, bench):
        """The protocol is for those who come to us."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            bench.receive(connect=server.getsockname())
            peer, _ = server.accept()
            peer.sendall(b"EOC/1 producer=x\n")
            bench.wait_for([b"EOC/1 producer=x"])
            peer.close()

    def test_an_oversize_line_under_rule_error_stops_it_visibly(self, bench):
        """Its one stream can't be read on: reconnecting would lose what the server sends."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            receiver = bench.receive(connect=server.getsockname(), max_line_bytes=5)
            peer, _ = server.accept()
            peer.sendall(b"good\ntoo long\nx\n")
            until(lambda: not receiver.running, 10, "it stops by itself")
            assert isinstance(receiver.error, RecordTooLargeError)
            bench.wait_for([b"good"])
            peer.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"connect": ("h", 1), "listen": ("h", 1)},
        {"connect": ("h", 0)},
        {"listen": ("h", 70000)},
        {"listen": ("", 1)},
        {"listen": ("h", 1), "on_oversize_line": "drop"},
        {"listen": ("h", 1), "max_line_bytes": 0},
        {"listen": ("h", 1), "token": "a b"},
        {"connect": ("h", 1), "token": "x"},
        {"listen": ("h", 1), "tls_key": "x"},
        {"listen": ("h", 1), "tls_cert": "/none", "tls_key": "/none"},
    ],
)
def test_options_that_cannot_work_are_refused(options):
    """When they are built, not when the first line comes."""
    with pytest.raises(ConfigError):
        ReceiverOptions(**options)


def test_a_process_ends_though_a_receiver_runs(tmp_path):
    """All threads are daemon threads; nothing depends on stop()."""
    script = (
        "import sys; from spark_eoc.buffer import LogWriter\n"
        "from spark_eoc.receiver import Receiver, ReceiverOptions\n"
        "Receiver(LogWriter.open(sys.argv[1]), ReceiverOptions(listen=('127.0.0.1', 0))).start()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "b")], timeout=30, check=False
    )
    assert done.returncode == 0


def test_listening_beyond_loopback_without_protection_is_warned_about(bench, caplog):
    """With a token it is silent."""
    bench.receive(listen=("0.0.0.0", 0))
    assert "without TLS or token" in caplog.text
    caplog.clear()
    bench.receive(listen=("0.0.0.0", 0), token="x")
    assert "without TLS or token" not in caplog.text
