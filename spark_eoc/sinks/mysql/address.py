"""Where the server is and who logs in: the URL of a MySQLWriter.

| in the URL | meaning, default |
|---|---|
| ``tls`` | ``true``: TLS or nothing, with a certificate that is checked; ``false``: never. Without it what the server offers is taken, and checked by nobody |
| ``tls_ca``, ``tls_cert``, ``tls_key``, ``tls_check_host`` | the same as ``tls=true``, see :mod:`spark_eoc.sinks.tls` |
| ``unix_socket`` | path of the server's socket on this host |
| ``connect_timeout`` | seconds to wait for a connection, 10 |
| ``read_timeout``, ``write_timeout`` | seconds to wait for the network in a statement, 60 |
| ``max_statement_time`` | seconds that the server gives a statement (on MySQL a SELECT), no limit |

The names of PyMySQL, ``ssl_ca``, ``ssl_cert``, ``ssl_key`` and ``ssl_check_hostname``, do too.
"""  # noqa: E501

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.secret import Secret
from spark_eoc.sinks.tls import TLS_OPTIONS, Tls, flag

#: Environment variable with the password, read where the writer is built.
PASSWORD_ENVIRONMENT = "SPARK_EOC_MYSQL_PASSWORD"  # noqa: S105 - a name, no password
_FORM = "mysql://user@host:3306/database"
_ALSO_KNOWN_AS = {
    "ssl_ca": "tls_ca",
    "ssl_cert": "tls_cert",
    "ssl_key": "tls_key",
    "ssl_check_hostname": "tls_check_host",
}
_TIMES = ("connect_timeout", "read_timeout", "write_timeout", "max_statement_time")
_LONGEST_S = 86_400
_OPTIONS = ("tls", *TLS_OPTIONS, "unix_socket", *_TIMES)


@dataclass(frozen=True)
class Address:
    """A server, a login and a default database; the password is masked.

    ``tls`` is None where none is asked for; with ``plain`` none is used even if the server has it.
    """

    host: str
    port: int
    user: str
    database: str
    password: Secret
    unix_socket: str | None = None
    tls: Tls | None = None
    plain: bool = False
    times: Mapping[str, float] | None = None

    def __str__(self) -> str:
        return f"{self.user}@{self.unix_socket or f'{self.host}:{self.port}'}/{self.database}"

    def seconds(self, name: str, default: float) -> float:
        """A time limit of the URL, by its name there."""
        return (self.times or {}).get(name, default)


def parse_url(url: str, password: str | None) -> Address:
    """The address that ``url`` names; no message repeats the URL, which may hold a password.

    The password comes from the argument, the URL or ``SPARK_EOC_MYSQL_PASSWORD``, in this order.
    Raises ConfigError.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        raise _bad_url("it can't be parsed") from None
    if parts.scheme not in ("mysql", "mariadb"):
        raise _bad_url("it does not begin with mysql:// or mariadb://")
    database = unquote(parts.path.lstrip("/"))
    if not database or "/" in database:
        raise _bad_url("it names no database")
    options = _options(parts.query)
    tls, plain = _tls(options)
    if password is None:
        in_url = None if parts.password is None else unquote(parts.password)
        password = in_url if in_url is not None else os.environ.get(PASSWORD_ENVIRONMENT, "")
    return Address(
        parts.hostname or "localhost",
        port,
        unquote(parts.username or "root"),
        database,
        Secret(password),
        options.get("unix_socket"),
        tls,
        plain,
        _time_limits(options),
    )


def _options(query: str) -> dict[str, str]:
    given = [(_ALSO_KNOWN_AS.get(name, name), value) for name, value in parse_qsl(query)]
    unknown = sorted(name for name, _ in given if name not in _OPTIONS)
    if unknown:
        raise _bad_url(f"it has unknown options {', '.join(unknown)}; known: {', '.join(_OPTIONS)}")
    return dict(given)


def _tls(options: Mapping[str, str]) -> tuple[Tls | None, bool]:
    """The TLS that is asked for, and whether none may be used."""
    asked = flag("tls", options["tls"]) if "tls" in options else None
    wanted = [name for name in TLS_OPTIONS if name in options]
    if wanted and asked is False:
        raise _bad_url(f"{wanted[0]} makes no sense with tls=false")
    if (wanted or asked) and "unix_socket" in options:
        raise _bad_url("a unix socket never leaves this host and takes no TLS")
    tls = Tls.of(options) if wanted or asked else None
    return tls, asked is False or "unix_socket" in options


def _time_limits(options: Mapping[str, str]) -> dict[str, float]:
    found = {}
    for name in _TIMES:
        try:
            found[name] = float(options.get(name, "1"))
        except ValueError:
            found[name] = 0.0
        if not 0 < found[name] <= _LONGEST_S:
            raise _bad_url(f"{name} is not a number of seconds from 0 to {_LONGEST_S}")
    return {name: seconds for name, seconds in found.items() if name in options}


def _bad_url(why: str) -> ConfigError:
    return ConfigError(
        f"the writer's URL can't be used: {why}",
        next_step=f"write it as {_FORM}, with the password in {PASSWORD_ENVIRONMENT} or in "
        "password=; special characters percent-encoded",
    )
