"""The acknowledged protocol between a producer and the receiver, version 1.

Text lines over one TCP connection (or TLS), all ending in ``\\n``. Any language speaks it in 30
lines::

    producer                                                     receiver
    EOC/1 producer=NAME [first=N] [session=ID.K] [token=T]   ──>
                                                             <──  OK LAST BUFFER LIMIT
    line N, line N+1, ...                                    ──>
                                                             <──  ACK S          (many times)
                                                             <──  ERR CODE TEXT  (and closes)

**Hello.** NAME is 1 to 128 of the characters ``A-Z a-z 0-9 . _ : @ / + -``; it names the
producer for as long as the buffer lives. T is the receiver's shared secret, where it has one. Of
two connections with one name the later hello wins, and the other is told ``ERR fenced``. So that
a connection given up long ago can't win by arriving late, a process that reconnects may make up
an ID (1 to 32 letters and digits) and count its connections in K: of one ID, the higher K wins. A
first line that does not begin with ``EOC/``, digits, `` producer=`` is no hello: that connection
is plain, nothing is answered, and its first line is data like the rest, unless it begins with the
bytes 16 03, as TLS does: that is answered ``ERR tls``. One that begins as a hello and is
malformed is answered ``ERR hello`` and nothing of the connection is stored. A connection that
ends within what may become a hello is dropped.

**OK.** Wait for it before sending lines. LAST is the sequence number of this producer's last
*durable* line, 0 for none. BUFFER names the buffer; if it isn't the one that answered before, or
LAST is below what was acknowledged before, stop: the receiver lost or expired what it knew. LIMIT
is the longest line in bytes, 0 where longer lines are truncated.

**Lines.** Numbers are counted, not sent: the first line after OK has number N if the hello had
``first=N``, else LAST+1; each line has one more. N ≤ LAST is a repeat: lines up to LAST are
dropped. N > LAST+1 is a gap: ``ERR gap``, or ``ERR expired`` if LAST is 0. A line holds any bytes
but ``\\n``; one ``\\r`` before it is removed. An unfinished line, when the connection ends, is
always dropped.

**ACK.** Line S and all before it are on disk (fsync has returned) or were dropped as repeats.
Cumulative; not every number is told. Keep a line until it is acknowledged; after any loss of the
connection say hello again and send from LAST+1. That makes each line stored exactly once.

**End.** Shut down the sending side; the receiver acknowledges the rest and closes.

**ERR.** CODE is one word. To be tried again later: ``busy`` (too many connections), ``memory``,
``idle``, ``stopping``, ``log`` (the buffer failed; its receiver has to be restarted). Final, until
a person has looked: ``hello``, ``version``, ``token``, ``gap``, ``expired`` (the buffer has
forgotten this producer's number, by an operator's ``buffer expire``, or ``first`` speaks of
lines that it never had; nothing is guessed, use another name), ``oversize``
(a line beyond LIMIT; it and what follows are not stored), ``fenced`` (a newer connection said
hello with the same name, and took over), ``tls`` (one side speaks TLS and the other does not; the
answer itself is not encrypted).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_eoc.errors import ConfigError, ProtocolError

#: A hello longer than this, its newline not counted, is malformed.
MAX_HELLO_BYTES = 1024

#: Codes after which a producer reconnects by itself.
TEMPORARY = frozenset({"busy", "memory", "idle", "stopping", "log"})

#: The first two bytes of every TLS connection.
TLS_HANDSHAKE = b"\x16\x03"

_LIKE_HELLO = re.compile(rb"EOC/[0-9]+ producer=")
_HELLO = re.compile(
    rb"EOC/1 producer=([A-Za-z0-9._:@/+-]{1,128})(?: first=([0-9]{1,18}))?"
    rb"(?: session=([A-Za-z0-9]{1,32})\.([0-9]{1,18}))?(?: token=([!-~]+))?\r?"
)
_NAME = re.compile(r"[A-Za-z0-9._:@/+-]{1,128}")
_TOKEN = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True)
class Hello:
    """A producer's first line; ``first`` None means: from the last durable line on.

    ``attempt`` counts the connections of one ``session``; without session it means nothing.
    """

    producer: bytes
    first: int | None = None
    token: bytes | None = field(default=None, repr=False)
    session: bytes | None = None
    attempt: int = 0

    def encode(self) -> bytes:
        """The line, with its newline."""
        line = b"EOC/1 producer=" + self.producer
        if self.first is not None:
            line += b" first=%d" % self.first
        if self.session is not None:
            line += b" session=%s.%d" % (self.session, self.attempt)
        if self.token is not None:
            line += b" token=" + self.token
        return line + b"\n"


@dataclass(frozen=True)
class Ok:
    """The answer to a hello: ``last`` durable number, the buffer's id, longest line in bytes."""

    last: int
    buffer_id: str
    max_line_bytes: int

    def encode(self) -> bytes:
        """The line, with its newline."""
        return f"OK {self.last} {self.buffer_id} {self.max_line_bytes}\n".encode()


@dataclass(frozen=True)
class Ack:
    """Line ``sequence`` and all before it are durable."""

    sequence: int

    def encode(self) -> bytes:
        """The line, with its newline."""
        return b"ACK %d\n" % self.sequence


@dataclass(frozen=True)
class Refusal:
    """The receiver ends the connection; ``code`` is one word of the specification."""

    code: str
    text: str

    def encode(self) -> bytes:
        """The line, with its newline."""
        return f"ERR {self.code} {' '.join(self.text.split())}\n".encode("utf-8", "replace")


def is_late(hello: Hello, other: Hello) -> bool:
    """Whether ``hello`` is of a connection that its process gave up before it said ``other``."""
    return hello.session is not None and (
        hello.session == other.session and hello.attempt < other.attempt
    )


def may_become_hello(start: bytes) -> bool:
    """Whether a first line that begins with ``start`` (no newline yet) can still be a hello."""
    if means_hello(start):
        return True
    if len(start) > MAX_HELLO_BYTES:
        return False
    return re.fullmatch(rb"(?:E|EO|EOC|EOC/[0-9]*)?", start) is not None or (
        b" " in start
        and re.match(rb"EOC/[0-9]+ ", start) is not None
        and b"producer=".startswith(start.split(b" ", 1)[1])
    )


def begins_tls(start: bytes) -> bool:
    """Whether a connection that begins with ``start`` speaks TLS: a handshake record, 16 03."""
    return start.startswith(TLS_HANDSHAKE)


def means_hello(start: bytes) -> bool:
    """Whether a first line that begins with ``start`` is a hello or a malformed one, not data."""
    return _LIKE_HELLO.match(start) is not None


def parse_hello(line: bytes) -> Hello | None:
    """The hello in a connection's first line (without newline); None if it is plain data.

    Raises ProtocolError with the fact ``code`` for a line that means to be a hello and is not one.
    """
    if not means_hello(line):
        return None
    if not line.startswith(b"EOC/1 "):
        raise ProtocolError("this receiver speaks EOC/1 only", code="version")
    match = _HELLO.fullmatch(line) if len(line) <= MAX_HELLO_BYTES else None
    if match is None:
        raise ProtocolError(
            "malformed hello",
            next_step="send: EOC/1 producer=NAME [first=N] [session=ID.K] [token=T]",
            code="hello",
        )
    producer, first, session, attempt, token = match.groups()
    if first is not None and int(first) == 0:
        raise ProtocolError("first=0: numbers start at 1", code="hello")
    return Hello(producer, int(first) if first else None, token, session, int(attempt or 0))


def parse_reply(line: bytes) -> Ok | Ack | Refusal:
    """What the receiver said in one line (without newline); ProtocolError if it is none of ours."""
    words = line.decode("utf-8", "replace").split(" ", 2)
    try:
        if words[0] == "ACK" and len(words) == 2:
            return Ack(int(words[1]))
        if words[0] == "OK" and len(words) == 3:
            buffer_id, limit = words[2].split(" ")
            return Ok(int(words[1]), buffer_id, int(limit))
        if words[0] == "ERR" and len(words) == 3:
            return Refusal(words[1], words[2])
    except ValueError:
        pass
    raise ProtocolError(
        f"not an answer of this protocol: {line[:80]!r}",
        next_step="check that host and port are those of a spark_eoc receiver, and TLS on both",
    )


def check_name(name: str) -> bytes:
    """A producer's name as bytes; ConfigError for one that a hello can't carry."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"producer name {name!r} is not 1 to 128 of the characters A-Z a-z 0-9 . _ : @ / + -"
        )
    return name.encode()


def check_token(token: str | None) -> bytes | None:
    """A shared secret as bytes; ConfigError (which does not show it) for unusable characters."""
    if token is None:
        return None
    if not _TOKEN.fullmatch(token):
        raise ConfigError("a token is 1 to 512 printable ASCII characters without spaces")
    return token.encode()
