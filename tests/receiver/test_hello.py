"""The first line of a connection: a hello, a malformed one, or data."""

from __future__ import annotations

import pytest

from spark_eoc.errors import ConfigError, ProtocolError
from spark_eoc.protocol import (
    Ack,
    Hello,
    Ok,
    Refusal,
    check_name,
    check_token,
    is_late,
    may_become_hello,
    parse_hello,
    parse_reply,
)

HELLOS = [
    Hello(b"p"),
    Hello(b"host-1/app:7@x.y+z_", first=12),
    Hello(b"p", token=b"s3cret!~"),
    Hello(b"p", session=b"a1B2", attempt=3),
    Hello(b"p", first=1, session=b"x" * 32, attempt=10**17, token=b"t"),
    Hello(b"p" * 128, first=10**17, token=b"t" * 512),
]


@pytest.mark.parametrize("hello", HELLOS, ids=str)
def test_a_hello_is_read_as_it_was_written(hello):
    """At every cut it may still become one."""
    line = hello.encode()
    assert parse_hello(line[:-1]) == hello
    assert parse_hello(line[:-1] + b"\r") == hello
    assert all(may_become_hello(line[:n]) for n in range(len(line)))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"EOC",
        b"EOC/1",
        b"EOC/1 ",
        b"EOC/1 consumer=x",
        b"EOC/x producer=x",
        b"eoc/1 producer=x",
        b" EOC/1 producer=x",
        b"EOC/1  producer=x",
        b"GET / HTTP/1.1",
        b"\xff\xfe",
    ],
)
def test_a_first_line_that_merely_resembles_a_hello_is_data(line):
    """nc never sends `EOC/<digits> producer=`; nothing shorter is taken for it."""
    assert parse_hello(line) is None


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"EOC/2 producer=x", "version"),
        (b"EOC/1 producer=", "hello"),
        (b"EOC/1 producer=a b", "hello"),
        (b"EOC/1 producer=\xff", "hello"),
        (b"EOC/1 producer=x first=", "hello"),
        (b"EOC/1 producer=x first=-1", "hello"),
        (b"EOC/1 producer=x first=0", "hello"),
        (b"EOC/1 producer=x session=a", "hello"),
        (b"EOC/1 producer=x session=a.b", "hello"),
        (b"EOC/1 producer=x session=.1", "hello"),
        (b"EOC/1 producer=x first=1 first=2", "hello"),
        (b"EOC/1 producer=x token=a b", "hello"),
        (b"EOC/1 producer=" + b"x" * 129, "hello"),
        (b"EOC/1 producer=x token=" + b"x" * 2000, "hello"),
    ],
)
def test_a_malformed_hello_is_an_error_with_its_code(line, code):
    """It means to be a hello, so it must not be stored as data."""
    with pytest.raises(ProtocolError) as caught:
        parse_hello(line)
    assert caught.value.facts["code"] == code


def test_a_hello_that_was_given_up_is_known_as_late():
    """Of one session the higher attempt wins; of two sessions whoever comes later."""
    one, two = Hello(b"p", session=b"a", attempt=1), Hello(b"p", session=b"a", attempt=2)
    assert is_late(one, two)
    assert not is_late(two, one)
    assert not is_late(one, Hello(b"p", session=b"b", attempt=2))
    assert not is_late(Hello(b"p"), Hello(b"p"))


@pytest.mark.parametrize(
    "reply", [Ok(0, "b1", 16), Ack(7), Refusal("gap", "first=9 but 3")], ids=str
)
def test_a_reply_is_read_as_it_was_written(reply):
    """One line each."""
    line = reply.encode()
    assert line.count(b"\n") == 1
    assert parse_reply(line[:-1]) == reply


@pytest.mark.parametrize("line", [b"", b"OK", b"OK 1 b", b"ACK x", b"HTTP/1.1 400", b"ACK 1 2"])
def test_another_servers_answer_is_refused(line):
    """A producer pointed at a web server must not send its lines there."""
    with pytest.raises(ProtocolError):
        parse_reply(line)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ü", "x" * 129])
def test_names_that_a_hello_cannot_carry_are_refused(name):
    """At once, not by the receiver."""
    with pytest.raises(ConfigError):
        check_name(name)


def test_a_refused_token_is_not_shown():
    """Secrets stay out of messages."""
    with pytest.raises(ConfigError) as caught:
        check_token("se cret")
    assert "se cret" not in str(caught.value)
