"""A limit of bytes a second for each connection: back-pressure, nothing dropped."""

from __future__ import annotations

import threading
import time

from spark_eoc.producer import LineProducer
from spark_eoc.receiver.throttle import SLACK_S, Throttle
from spark_eoc.testing.wait import until

LINE = b"x" * 99


def test_who_sends_more_than_its_share_rests_as_long_as_that_took():
    """Pure: each by itself; a pause saves up a quarter of a second at the most."""
    throttle = Throttle(1000)
    one, other = object(), object()
    assert throttle.read_bytes == 1024
    assert not throttle.spend(one, int(1000 * SLACK_S), 100.0)
    assert throttle.spend(one, 500, 100.0)
    assert throttle.rests(one)
    assert not throttle.rests(other)
    assert throttle.next_end() == 100.5
    assert throttle.rested(100.4) == []
    assert throttle.rested(100.5) == [one]
    assert throttle.rested(100.6) == []
    assert throttle.next_end() is None
    assert throttle.spend(one, 1000, 900.0)
    assert throttle.next_end() == 901 - SLACK_S
    throttle.forget(one)
    assert throttle.next_end() is None


def test_without_a_limit_nobody_rests():
    """The default."""
    throttle = Throttle(0)
    assert not throttle.spend(object(), 1 << 40, 1.0)
    assert throttle.next_end() is None


def test_a_fast_sender_is_slowed_and_the_others_are_not(bench, dial):
    """Every line arrives, at the rate; who has to rest isn't taken for idle."""
    receiver = bench.receive(max_bytes_per_second=200_000, idle_timeout_ms=50)
    fast = dial(receiver)
    begun = time.monotonic()
    sender = threading.Thread(target=fast.sendall, args=((LINE + b"\n") * 4000,))
    sender.start()
    until(lambda: receiver.stats().lines > 0, 10, "the first of them")
    dial(receiver).sendall(b"quick\n")
    until(lambda: b"quick" in bench.lines(), 10, "the other's line")
    assert receiver.stats().lines < 4000
    assert receiver.stats().connections >= 1
    until(lambda: receiver.stats().lines == 4001, 20, "all lines")
    assert time.monotonic() - begun > 400_000 / 200_000 - 2 * SLACK_S
    sender.join()
    assert sorted(bench.lines()) == sorted([LINE] * 4000 + [b"quick"])


def test_a_producer_of_the_protocol_is_slowed_and_acknowledged(bench):
    """Its hello counts, too; nothing is lost or doubled."""
    receiver = bench.receive(max_bytes_per_second=50_000)
    begun = time.monotonic()
    with LineProducer("127.0.0.1", receiver.port, "p") as producer:
        for number in range(1000):
            producer.send(b"%099d" % number)
        producer.flush(20)
    assert time.monotonic() - begun > 100_000 / 50_000 - 2 * SLACK_S
    assert bench.lines() == [b"%099d" % number for number in range(1000)]


def test_a_receiver_stops_at_once_while_a_connection_rests(bench, dial):
    """What it hasn't read stays with the sender."""
    receiver = bench.receive(max_bytes_per_second=1000)
    sock = dial(receiver)
    sock.sendall(b"a\n" * 2000)
    until(lambda: receiver.stats().lines > 0, 10, "the first lines")
    begun = time.monotonic()
    receiver.stop()
    assert time.monotonic() - begun < 1
    assert set(bench.lines()) == {b"a"}
