"""Where the server is and who logs in: the URL of a MySQLWriter."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.secret import Secret

#: Environment variable with the password, read where the writer is built.
PASSWORD_ENVIRONMENT = "SPARK_EOC_MYSQL_PASSWORD"  # noqa: S105 - a name, no password
_FORM = "mysql://user@host:3306/database"
_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")


@dataclass(frozen=True)
class Address:
    """A server, a login and a default database; the password is masked."""

    host: str
    port: int
    user: str
    database: str
    password: Secret
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}/{self.database}"


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
    options = tuple(parse_qsl(parts.query))
    unknown = sorted(name for name, _ in options if name not in _OPTIONS)
    if unknown:
        raise _bad_url(f"it has unknown options {', '.join(unknown)}; known: {_OPTIONS}")
    if password is None:
        in_url = None if parts.password is None else unquote(parts.password)
        password = in_url if in_url is not None else os.environ.get(PASSWORD_ENVIRONMENT, "")
    return Address(
        parts.hostname or "localhost",
        port,
        unquote(parts.username or "root"),
        database,
        Secret(password),
        options,
    )


def _bad_url(why: str) -> ConfigError:
    return ConfigError(
        f"the writer's URL can't be used: {why}",
        next_step=f"write it as {_FORM}, with the password in {PASSWORD_ENVIRONMENT} or in "
        "password=; special characters percent-encoded",
    )
