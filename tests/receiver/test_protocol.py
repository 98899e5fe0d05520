"""The acknowledged protocol, spoken by hand: what its specification says, line by line."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import pytest

from spark_eoc.testing.wait import until
from tests.receiver.conftest import reset


class Talker:
    """A producer by hand: says, and hears line by line."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), 10)
        self.file = self.sock.makefile("rb")

    def say(self, data: bytes) -> Talker:
        self.sock.sendall(data)
        return self

    def hear(self) -> bytes:
        return self.file.readline().rstrip(b"\n")

    def hear_ack(self, number: int) -> None:
        """Until everything up to ``number`` is acknowledged."""
        while (reply := self.hear()) != b"ACK %d" % number:
            assert reply.startswith(b"ACK "), reply

    def hello(self, name: str = "p", more: str = "") -> int:
        """Says hello; the number of the last durable line."""
        self.say(f"EOC/1 producer={name}{more}\n".encode())
        word, last, _, _ = self.hear().split()
        assert word == b"OK"
        return int(last)

    def reset(self) -> None:
        self.file.close()
        reset(self.sock)

    def __enter__(self) -> Talker:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()


def client_in_thirty_lines(port: int, name: str, lines: list[bytes]) -> None:
    """All that another language has to do: every line of the list is stored exactly once."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                answers = sock.makefile("rb")
                sock.sendall(f"EOC/1 producer={name}\n".encode())
                word, last = answers.readline().split()[:2]
                if word != b"OK":
                    raise RuntimeError(word + b" " + last)
                for line in lines[int(last) :]:
                    sock.sendall(line + b"\n")
                sock.shutdown(socket.SHUT_WR)
                done = int(last)
                for answer in answers:
                    if answer.startswith(b"ACK "):
                        done = int(answer.split()[1])
                if done == len(lines):
                    return
        except (OSError, ValueError):
            time.sleep(0.05)


def test_a_client_of_thirty_lines_is_enough(bench):
    """Twice with the same name: the second finds that all is there."""
    receiver = bench.receive()
    lines = [b"line %d" % number for number in range(1000)]
    for _ in range(2):
        client_in_thirty_lines(receiver.port, "simple", lines)
    assert bench.lines() == lines


def test_the_client_of_thirty_lines_survives_cuts(bench, proxy_to):
    """Cut after n bytes, again and again, in both directions."""
    from spark_eoc.testing.proxy import Rules  # noqa: PLC0415

    receiver = bench.receive()
    proxy = proxy_to(receiver.port)
    proxy.set(Rules(cut_to_server=700, cut_to_client=2000), times=8)
    lines = [b"line %d" % number for number in range(1000)]
    client_in_thirty_lines(proxy.port, "simple", lines)
    assert bench.lines() == lines


def test_lines_are_acknowledged_and_resumed(bench):
    """The answer to the next hello tells the last durable line, also to the next receiver."""
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        assert talker.hello() == 0
        talker.say(b"1\n2\n3\n").hear_ack(3)
        talker.say(b"4\n").hear_ack(4)
    with Talker(receiver.port) as talker:
        assert talker.hello() == 4
    receiver.stop()
    with Talker(bench.receive(bench.open()).port) as talker:
        assert talker.hello() == 4
        talker.say(b"5\n").hear_ack(5)
    assert bench.lines() == [b"1", b"2", b"3", b"4", b"5"]


def test_the_answer_names_buffer_and_limit(bench):
    """0 where longer lines are truncated instead of refused."""
    receiver = bench.receive(max_line_bytes=77)
    with Talker(receiver.port) as talker:
        assert talker.say(b"EOC/1 producer=p\n").hear() == b"OK 0 %s 77" % (
            bench.writer.buffer_id.encode()
        )
    receiver.stop()
    with Talker(bench.receive(on_oversize_line="truncate").port) as talker:
        assert talker.say(b"EOC/1 producer=p\n").hear().endswith(b" 0")


def test_repeats_are_dropped(bench):
    """A producer that begins before its last durable line; all repeated, partly, none."""
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n2\n3\n").hear_ack(3)
    with Talker(receiver.port) as talker:
        assert talker.hello(more=" first=1") == 3
        talker.say(b"1\n2\n").hear_ack(3)
        talker.say(b"3\n4\n").hear_ack(4)
    assert bench.lines() == [b"1", b"2", b"3", b"4"]
    until(lambda: receiver.stats().repeated_lines == 3, 10, "repeats are counted")


def test_a_gap_is_an_error_in_text(bench):
    """Also of a producer that the buffer doesn't know: it expired, and nothing is guessed."""
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n").hear_ack(1)
    with Talker(receiver.port) as talker:
        assert talker.say(b"EOC/1 producer=p first=3\n3\n").hear().startswith(b"ERR gap first=3 ")
        assert talker.hear() == b""
    with Talker(receiver.port) as talker:
        reply = talker.say(b"EOC/1 producer=gone first=7\n7\n").hear()
        assert reply.startswith(b"ERR expired ")
    assert bench.lines() == [b"1"]


@pytest.mark.parametrize("first", ["", " first=1", " first=2"])
def test_a_producer_whose_number_expired_is_told_so(bench, first):
    """Whatever it says: taken for a new one it would send again what the buffer may hold. Other
    names are new as ever, and those that go on aren't touched."""
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n").hear_ack(1)
    receiver.stop()
    bench.writer.expire_producers(2**60)
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        reply = talker.say(f"EOC/1 producer=p{first}\n1\n".encode()).hear()
        assert reply.startswith(b"ERR expired ")
        assert talker.hear() == b""
    with Talker(receiver.port) as talker:
        assert talker.hello("q") == 0
        talker.say(b"2\n").hear_ack(1)
    assert bench.lines() == [b"1", b"2"]


def test_an_unfinished_line_is_always_dropped(bench):
    """Whether the connection ends cleanly or not."""
    receiver = bench.receive()
    for end in (lambda talker: talker.sock.shutdown(socket.SHUT_WR), Talker.reset):
        with Talker(receiver.port) as talker:
            last = talker.hello()
            talker.say(b"whole\nhal").hear_ack(last + 1)
            end(talker)
            until(lambda: not receiver.connected, 10, "the connection is gone")
    assert bench.lines() == [b"whole", b"whole"]
    assert receiver.stats().dropped_unfinished == 2


def test_the_newer_connection_of_a_name_wins(bench):
    """The older reads why; what it sent and nobody acknowledged is not stored twice."""
    receiver = bench.receive()
    with Talker(receiver.port) as old, Talker(receiver.port) as new:
        old.hello()
        old.say(b"1\n").hear_ack(1)
        assert new.hello() == 1
        assert old.hear().startswith(b"ERR fenced ")
        new.say(b"2\n").hear_ack(2)
    assert bench.lines() == [b"1", b"2"]


def test_a_connection_given_up_long_ago_does_not_win_by_arriving_late(bench):
    """Its process has a newer one already; or it is gone. The living one goes on."""
    receiver = bench.receive()
    with Talker(receiver.port) as live, Talker(receiver.port) as late:
        live.hello(more=" session=a.2")
        assert late.say(b"EOC/1 producer=p session=a.1\n").hear() == b""
        gone = socket.create_connection(("127.0.0.1", receiver.port), 10)
        gone.sendall(b"EOC/1 producer=p session=z.1")
        # The end of the hello and the end of the stream are read together.
        gone.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        gone.sendall(b"\n")
        gone.close()
        until(lambda: receiver.stats().connections == 1, 10, "both are dropped")
        live.say(b"1\n").hear_ack(1)
    with Talker(receiver.port) as first, Talker(receiver.port) as second:
        first.hello(more=" session=a.3")
        assert second.hello(more=" session=a.4") == 1
        second.say(b"2\n").hear_ack(2)
    assert bench.lines() == [b"1", b"2"]


def test_lines_of_a_fenced_connection_leave_neither_gap_nor_double(bench, monkeypatch):
    """They wait for room when the newer says hello, which is answered at once; then there is
    room: stored is what the newer sent, once."""
    writer = bench.open()
    full = [True]
    room = writer.room
    monkeypatch.setattr(writer, "room", lambda nbytes: not full[0] and room(nbytes))
    receiver = bench.receive(writer)
    with Talker(receiver.port) as old, Talker(receiver.port) as new:
        old.hello()
        old.say(b"1\n2\n3\n")
        until(lambda: receiver.stats().waiting_for_room, 10, "lines wait for room")
        assert new.hello() == 0
        new.say(b"1\n2\n")
        full[0] = False
        new.hear_ack(2)
        assert old.hear().startswith(b"ERR fenced ")
    assert bench.lines() == [b"1", b"2"]


def test_a_producer_may_end_before_it_hears(bench):
    """Hello, lines and FIN at once: everything is stored and acknowledged, then closed."""
    with Talker(bench.receive().port) as talker:
        talker.say(b"EOC/1 producer=p\n1\n2\n").sock.shutdown(socket.SHUT_WR)
        heard = talker.file.read().split(b"\n")
    assert heard[0].startswith(b"OK 0 ")
    assert heard[-2:] == [b"ACK 2", b""]
    assert bench.lines() == [b"1", b"2"]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"EOC/9 producer=p\n", b"version"),
        (b"EOC/1 producer=\n", b"hello"),
        (b"EOC/1 producer=" + b"x" * 5000, b"hello"),
        (b"EOC/1 producer=p token=no\n", b"token"),
        (b"EOC/1 producer=p\n", b"token"),
        (b"plain line\n", b"token"),
    ],
)
def test_a_refused_connection_is_told_and_costs_nothing_else(bench, dial, first, code):
    """Nothing of it is stored, and the others go on."""
    receiver = bench.receive(token="secret")
    with Talker(receiver.port) as good, Talker(receiver.port) as bad:
        good.hello(more=" token=secret")
        assert bad.say(first + b"x\n" * 10).hear().startswith(b"ERR " + code + b" ")
        assert bad.hear() == b""
        good.say(b"1\n").hear_ack(1)
    assert bench.lines() == [b"1"]


def test_peers_that_send_rubbish_half_a_hello_or_nothing_cost_only_themselves(
    bench, dial, eoc_seed
):
    """Bounded memory, whatever comes; a producer beside 90 of them is served all the time."""
    rubbish = random.Random(eoc_seed)
    receiver = bench.receive(
        max_line_bytes=1000, max_pending_bytes=20_000, hello_timeout_ms=300, token="secret"
    )
    with Talker(receiver.port) as good:
        good.hello(more=" token=secret")
        silent = [dial(receiver) for _ in range(30)]
        for _ in range(30):
            dial(receiver).sendall(b"EOC/1 producer=x"[: rubbish.randint(1, 16)])
        for number in range(1, 31):
            with contextlib.suppress(ConnectionError):
                dial(receiver).sendall(rubbish.randbytes(50_000))
            good.say(b"%d\n" % number).hear_ack(number)
            now = receiver.stats()
            assert now.unfinished_bytes + now.pending_bytes < 60_000
        until(lambda: receiver.stats().connections == 1 + len(silent), 10, "the bad ones are gone")
        good.say(b"31\n").hear_ack(31)
    assert bench.lines() == [b"%d" % number for number in range(1, 32)]


def test_half_a_hello_ends_with_its_time(bench):
    """It costs its own connection only."""
    receiver = bench.receive(hello_timeout_ms=200)
    with Talker(receiver.port) as half, Talker(receiver.port) as good:
        half.say(b"EOC/1 produ")
        good.hello()
        assert half.hear().startswith(b"ERR hello ")
        good.say(b"1\n").hear_ack(1)


@pytest.mark.parametrize("rule", ["error", "skip"])
def test_a_producers_oversize_line_is_told(bench, rule):
    """What came before it is stored; skipping would lose a line that has a number."""
    receiver = bench.receive(max_line_bytes=5, on_oversize_line=rule)
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"good\nmuch too long\nx\n")
        heard = talker.file.read()
        assert b"ERR oversize line 2: " in heard
    until(lambda: receiver.stats().lines == 1, 10, "the line before it")
    assert bench.lines() == [b"good"]


def test_a_stopping_receiver_says_so(bench):
    """After it has acknowledged what it has."""
    receiver = bench.receive()
    with Talker(receiver.port) as talker:
        talker.hello()
        talker.say(b"1\n").hear_ack(1)
        receiver.stop()
        assert talker.hear().startswith(b"ERR stopping ")
