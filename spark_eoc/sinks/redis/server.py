"""One connection to Redis: errors translated, waits within a budget, and the start-up checks."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha1
from typing import Any, Protocol, TypeVar

import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from spark_eoc.errors import SinkUnavailableError
from spark_eoc.sinks.redis.resp import bulk, command
from spark_eoc.sinks.tls import refusal_text, tls_refusal

LOGGER = logging.getLogger("spark_eoc.sinks.redis")
#: What a server says while it can't do it now; as text, since scripts wrap it.
_PASSING = re.compile(
    r"\b(LOADING|BUSY|TRYAGAIN|MASTERDOWN|READONLY|NOREPLICAS|MISCONF|CLUSTERDOWN|"
    r"maxmemory|max number of clients)\b"
)
_BY_UNITS = "what the ledger's unit entries say; the batch stays open"
# redis-py cuts these words off the text and gives the error a type instead.
_PASSING_ERRORS = (
    BusyLoadingError,
    RedisConnectionError,
    RedisTimeoutError,
    ReadOnlyError,
    MasterDownError,
    ClusterDownError,
    TryAgainError,
    MovedError,
    AskError,
)
_Result = TypeVar("_Result")


class Place(Protocol):
    """Where a step is done: a server, the primary that Sentinels name, or a slot's primary."""

    @property
    def url(self) -> str:
        """How it was named, without password."""

    def connect(self) -> AbstractContextManager[redis.Redis]:
        """A client with one connection, made now or kept; errors are those of redis-py."""

    def redact(self, text: str) -> str:
        """The text without any password."""


class PassingError(Exception):
    """The server said that it can't now, before it wrote anything."""


class Patience:
    """Tries again what may pass, until the budget is used up; the waits grow and are jittered."""

    def __init__(
        self, address: Place, what: str, budget_s: float, applied: str = _BY_UNITS
    ) -> None:
        self._address = address
        self._what = what
        self._applied = applied
        self._deadline = time.monotonic() + budget_s
        self._pause_s = 0.05

    def wait(self, error: Exception) -> None:
        """Returns when it is time for the next try; raises SinkUnavailableError if there is none.

        Whether it may pass is decided here: a refused password, a right that is missing, or
        anything else that a server says for good ends it at once.
        """
        text = self._address.redact(str(error))
        next_step = _next_step(text, self._address.url)
        refused = tls_refusal(error)
        if refused is not None:
            text, next_step = refusal_text(refused, "the server")
        if refused or not _may_pass(error) or time.monotonic() >= self._deadline:
            raise SinkUnavailableError(
                f"Redis at {self._address.url} could not {self._what}: {text}",
                applied=self._applied,
                next_step=next_step,
            ) from None
        LOGGER.warning("Redis could not %s and is tried again: %s", self._what, text)
        time.sleep(self._pause_s * (0.5 + random.random()))
        self._pause_s = min(2.0, self._pause_s * 2)

    def keep_trying(self, step: Callable[[redis.Redis], _Result]) -> _Result:
        """Runs ``step`` on a fresh connection until it returns; it must bear being repeated."""
        while True:
            try:
                with self._address.connect() as client:
                    return step(client)
            except (RedisError, PassingError) as error:
                self.wait(error)


def run_script(
    client: redis.Redis, script: str, keys: Sequence[str], arguments: Sequence[str | int]
) -> list[str]:
    """Runs a small script; its answer's elements as text."""
    reply: Any = client.eval(script, len(keys), *keys, *arguments)
    return [text(part) for part in reply]


def text(value: Any) -> str:
    """A reply's element as text; bytes that are not UTF-8 are replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Script:
    """A script for one connection: sent whole the first time, by its digest after that.

    A server that has forgotten it (SCRIPT FLUSH, a restart, a fail-over) answers NOSCRIPT before
    it did anything, and gets it whole again.
    """

    def __init__(self, client: redis.Redis, source: str) -> None:
        self._connection: Any = client.connection
        self._source = source.encode()
        self._digest = sha1(self._source, usedforsecurity=False).hexdigest().encode()
        self._known = False

    def run(self, count: int, parts: Sequence[bytes | memoryview]) -> list[Any]:
        """``parts`` are ``count`` encoded arguments, from the number of keys on."""
        if self._known:
            try:
                return self._send(b"EVALSHA", self._digest, count, parts)
            except NoScriptError:
                self._known = False
        reply = self._send(b"EVAL", self._source, count, parts)
        self._known = True
        return reply

    def _send(
        self, verb: bytes, script: bytes, count: int, parts: Sequence[bytes | memoryview]
    ) -> list[Any]:
        packed = command(verb, count + 1, [bulk(script), *parts])
        self._connection.send_packed_command([packed], check_health=False)
        reply = self._connection.read_response()
        if isinstance(reply, ResponseError):
            raise reply
        return list(reply)


def _may_pass(error: Exception) -> bool:
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, (PassingError, *_PASSING_ERRORS)):
        return True
    return bool(_PASSING.search(str(error)))


def may_pass(problem: str) -> bool:
    """Whether a server's refusal, as text, may pass."""
    return bool(_PASSING.search(problem))


def _next_step(problem: str, url: str) -> str:
    for word, step in (
        ("maxmemory", "raise maxmemory, or make room"),
        ("READONLY", "point the writer at the primary"),
        ("MISCONF", "mend what keeps Redis from saving to its disk (see its log)"),
        ("permissions to", "give the user the commands and the key pattern that the message names"),
        ("NOAUTH", "give the password in the URL, as password= or in the environment"),
        ("WRONGPASS", "give the right user and password"),
        ("username-password", "give the right user and password"),
        (
            "wait_replicas",
            "see that the replicas run and keep up (INFO replication), or ask for fewer",
        ),
        ("BUSY", "find the long script of another client with CLIENT LIST"),
        (
            "while writing to socket",
            "see that the server runs and that no value is longer than its proto-max-bulk-len: it "
            "cuts such a connection off",
        ),
    ):
        if word in problem:
            return f"{step}, then restart the query"
    tls = "speaks TLS there" if url.startswith("rediss") else "wants no TLS (rediss:// in the URL)"
    return f"see that the server runs, can be reached and {tls}, then restart the query"
