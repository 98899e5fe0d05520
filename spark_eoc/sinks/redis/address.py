"""Where a Redis is and how to log in, with every secret masked.

``rediss://`` takes the options of :mod:`spark_eoc.sinks.tls`, and redis-py's own names for them.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.retry import Retry

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.secret import Secret
from spark_eoc.sinks.tls import TLS_OPTIONS, Tls

#: Read on the driver when the writer is built and the URL holds no password.
PASSWORD_ENVIRONMENT = "SPARK_EOC_REDIS_PASSWORD"  # noqa: S105  a name, not a secret
SOCKET_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
_SCHEMES = ("redis", "rediss", "unix")
_QUERY = frozenset(
    [
        *TLS_OPTIONS,
        "db",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_cert_reqs",
        "ssl_check_hostname",
        "ssl_min_version",
        "socket_timeout",
        "socket_connect_timeout",
        "socket_keepalive",
        "health_check_interval",
        "client_name",
    ]
)


@dataclass(frozen=True)
class RedisAddress:
    """``url`` is without password; connections opened from here speak RESP2 and never retry.

    Not retrying is the point: what a lost answer means is decided by the unit entry.
    """

    url: str
    password: Secret | None = None

    @classmethod
    def parse(cls, url: str, password: str | None = None) -> RedisAddress:
        """From ``redis://``, ``rediss://`` or ``unix://``; raises ConfigError.

        The password comes from the argument, the URL or SPARK_EOC_REDIS_PASSWORD, in this order.
        """
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in _SCHEMES:
            raise ConfigError(
                "the Redis URL can't be read (it is not shown, since it may hold a password)",
                next_step="write it as redis://user:password@host:6379/0, rediss:// for TLS, or "
                "unix:///path/to/socket?db=0, with special characters percent-encoded",
            )
        query = parse_qsl(parts.query, keep_blank_values=True)
        found = unquote(parts.password or "") or dict(query).get("password")
        secret = password or found or os.environ.get(PASSWORD_ENVIRONMENT)
        cls._check_query([name for name, _ in query if name != "password"])
        cls._check_tls(parts.scheme, dict(query))
        rest = urlencode([(name, value) for name, value in query if name != "password"])
        user, _, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        netloc = f"{name}@{host}" if name else host
        address = f"{parts.scheme}://{netloc}{parts.path}" + (f"?{rest}" if rest else "")
        return cls(address, Secret(secret) if secret else None)

    @property
    def socket_timeout_s(self) -> float:
        """How long a connection waits for an answer."""
        given = dict(parse_qsl(urlsplit(self.url).query)).get("socket_timeout")
        return SOCKET_TIMEOUT_S if given is None else float(given)

    def within(self, seconds: float) -> RedisAddress:
        """The same server, with less patience for an answer."""
        base, _, options = self.url.partition("?")
        shorter = str(min(seconds, self.socket_timeout_s))
        query = {**dict(parse_qsl(options)), "socket_timeout": shorter}
        query.setdefault("socket_connect_timeout", shorter)
        return replace(self, url=f"{base}?{urlencode(query)}")

    def connect(self) -> redis.Redis:
        """A client with one connection, made now; errors are those of redis-py."""
        options: dict[str, Any] = {
            "single_connection_client": True,
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": CONNECT_TIMEOUT_S,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            **_unannounced(),
        }
        if self.password is not None:
            options["password"] = self.password.reveal()
        parts = urlsplit(self.url)
        query = dict(parse_qsl(parts.query))
        rest = urlencode({name: v for name, v in query.items() if name not in TLS_OPTIONS})
        if parts.scheme == "rediss":
            options.update(_tls_options(query))
        return redis.Redis.from_url(parts._replace(query=rest).geturl(), **options)

    def redact(self, text: str) -> str:
        """The text without the password, wherever it came from."""
        secret = self.password.reveal() if self.password else ""
        return text.replace(secret, "***") if secret else text

    @staticmethod
    def _check_query(names: list[str]) -> None:
        unknown = sorted(set(names) - _QUERY)
        if unknown:
            raise ConfigError(
                f"the Redis URL has options that this writer does not take: {', '.join(unknown)}",
                next_step=f"use only {', '.join(sorted(_QUERY))}",
            )

    @staticmethod
    def _check_tls(scheme: str, query: dict[str, str]) -> None:
        tls = [name for name in TLS_OPTIONS if name in query]
        if tls and scheme != "rediss":
            raise ConfigError(
                f"{tls[0]} in a {scheme}:// URL, which uses no TLS",
                next_step="write rediss:// for TLS, or leave it out",
            )
        Tls.of(query)


def _tls_options(query: dict[str, str]) -> dict[str, Any]:
    """redis-py's arguments; its own names in the URL come before these."""
    tls = Tls.of(query)
    tls.check_files()
    options = {"ssl_ca_certs": tls.ca, "ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
    # Older versions of redis-py don't check the host's name unless they are told to.
    unchecked = query.get("ssl_cert_reqs", "required") != "required"
    return {**options, "ssl_check_hostname": tls.check_host and not unchecked}


def _unannounced() -> dict[str, None]:
    """So that a connection neither looks up redis-py's version on the disk nor tells it the server,
    which takes longer than all else of connecting."""
    known = inspect.signature(AbstractConnection.__init__).parameters
    names = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    return dict.fromkeys(names)
