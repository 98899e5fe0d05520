"""Reads the rows that any query left in a database, as values that can be compared with lines.

A value is the text of a row: its one column, or all columns with tabs between them and ``\\N`` for
NULL. Nothing of the product's sinks is used: a bug in them must not hide itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pymysql
import redis

from spark_eoc.errors import ConfigError

#: What a server says of a query that no table will make right: a syntax error, an unknown column
#: or function, an empty query. Not of a table that isn't there, which a script may make itself.
_NO_QUERY = frozenset({1054, 1064, 1065, 1305})


class Rows(Protocol):
    """Where a query's rows are read."""

    def values(self) -> Counter[bytes]:
        """Every value and how often it is there; may raise while the server is down."""


class QueryRows:
    """The rows of one SELECT on MySQL or MariaDB.

    With ``count`` that column says how often the rest of its row is there (a counter).
    """

    def __init__(self, url: str, select: str, *, count: str | None = None) -> None:
        parts, port = urlsplit(url), _port(url)
        if parts.scheme != "mysql" or not parts.hostname:
            raise ConfigError(
                "the URL of a query is not mysql://user@host:port/database",
                next_step="pass such a URL",
            )
        self._options: dict[str, Any] = {
            "host": parts.hostname,
            "port": port or 3306,
            "user": unquote(parts.username or "root"),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")) or None,
            "charset": "utf8mb4",
            "connect_timeout": 5,
            "read_timeout": 60,
        }
        self._select = select
        self._count = count

    def values(self) -> Counter[bytes]:
        """See :class:`Rows`."""
        connection = pymysql.connect(**self._options)
        try:
            with connection.cursor() as cursor:
                self._ask(cursor)
                names = [column[0] for column in cursor.description or ()]
                return _counted(cursor.fetchall(), self._place(names))
        finally:
            connection.close()

    def _ask(self, cursor: Any) -> None:
        try:
            cursor.execute(self._select)
        except pymysql.MySQLError as error:
            if error.args[0] not in _NO_QUERY:
                raise
            raise ConfigError(
                f"{self._select!r} can't be asked: {error.args[1]}",
                next_step="write a SELECT that the server takes",
            ) from error

    def _place(self, names: list[str]) -> int | None:
        if self._count is None:
            return None
        if self._count not in names:
            raise ConfigError(
                f"the query has no column {self._count!r} to count by",
                next_step=f"name one of {', '.join(names)}",
            )
        return names.index(self._count)


class KeyRows:
    """What Redis holds under the keys of one pattern.

    Lists, sets, sorted sets and streams give a value for each member; hashes give ``field`` of
    each key, strings their value. With ``count``, a string or a hash's ``field`` says how often the
    key's name, without the pattern's text before ``*``, is there (a counter).
    """

    def __init__(
        self, url: str, pattern: str, *, field: str | None = None, count: bool = False
    ) -> None:
        _port(url)
        self._url, self._pattern, self._field, self._counts = url, pattern, field, count
        self._prefix = pattern.split("*", 1)[0].encode()

    def values(self) -> Counter[bytes]:
        """See :class:`Rows`."""
        client = redis.Redis.from_url(self._url, socket_timeout=30, socket_connect_timeout=5)
        try:
            found: Counter[bytes] = Counter()
            for key in set(client.scan_iter(match=self._pattern, count=1000)):
                found.update(dict(self._key(client, key)))
            return found
        finally:
            client.close()

    def _key(self, client: Any, key: bytes) -> Iterator[tuple[bytes, int]]:
        values = list(self._members(client, key))
        if self._counts:
            yield key.removeprefix(self._prefix), int(values[0])
        else:
            yield from Counter(values).items()

    def _members(self, client: Any, key: bytes) -> Iterable[bytes]:
        kind = client.type(key).decode()
        if kind == "string":
            return [client.get(key)]
        if kind == "hash":
            if self._field is None:
                raise ConfigError(
                    f"key {key.decode(errors='replace')!r} is a hash", next_step="name its field"
                )
            value = client.hget(key, self._field)
            return [value if value is not None else b"0" if self._counts else text_of(None)]
        if kind == "list":
            return list(client.lrange(key, 0, -1))
        if kind in ("set", "zset"):
            return list(client.smembers(key) if kind == "set" else client.zrange(key, 0, -1))
        fields = [entry for _, entry in client.xrange(key)]
        name = self._field.encode() if self._field else None
        return [entry[name] if name else text_of(tuple(entry.values())) for entry in fields]


class FunctionRows:
    """Whatever a function returns: values, or tuples of columns."""

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self._function = function

    def values(self) -> Counter[bytes]:
        """See :class:`Rows`."""
        found: Any = self._function()
        if isinstance(found, str | bytes) or not isinstance(found, Iterable):
            raise ConfigError(
                f"rows= returned {type(found).__name__}, not the rows",
                next_step="return a list of values: a str, a number, bytes, or a tuple of columns "
                "each",
            )
        if isinstance(found, Counter):
            return Counter({text_of(value): n for value, n in found.items()})
        return Counter(text_of(value) for value in found)


def check_rows(rows: object) -> None:
    """ConfigError for what is neither a function nor a reader."""
    if not callable(rows) and not callable(getattr(rows, "values", None)):
        raise ConfigError(
            f"rows={rows!r} can't be asked for the sink's rows",
            applied="nothing was started",
            next_step="pass a function that reads them, such as lambda: mariadb.query('SELECT …')",
        )


def _counted(rows: Iterable[tuple[Any, ...]], place: int | None) -> Counter[bytes]:
    if place is None:
        return Counter(text_of(row) for row in rows)
    found: Counter[bytes] = Counter()
    for row in rows:
        found[text_of(row[:place] + row[place + 1 :])] += int(row[place])
    return found


def _port(url: str) -> int | None:
    """Python's own error shows what it takes for the port: a part of the password."""
    try:
        return urlsplit(url).port
    except ValueError:
        raise ConfigError(
            "the URL's port is not a number",
            next_step="write / and @ in a password as %2F and %40",
        ) from None


def text_of(value: Any) -> bytes:
    """A value, or a row's columns, as what is compared."""
    if isinstance(value, Mapping):
        raise ConfigError(
            f"a row is {value!r}, whose columns have no order",
            next_step="give its one value, or a tuple of its columns",
        )
    if isinstance(value, tuple | list):
        return b"\t".join(text_of(each) for each in value)
    if value is None:
        return b"\\N"
    # Spark gives a binary column as a bytearray.
    return bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode()
