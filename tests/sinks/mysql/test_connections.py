"""How a MySQLWriter gets to its server: TLS, sockets, kinds of passwords, time limits."""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import ConfigError, SinkError, SinkUnavailableError
from spark_eoc.sinks.entries import Applied
from spark_eoc.sinks.mysql.address import Address, parse_url
from spark_eoc.sinks.mysql.connection import connect
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.store import Column
from spark_eoc.testing.certificates import Authority
from spark_eoc.testing.plugin import _start
from spark_eoc.testing.servers import KINDS
from tests.sinks.mysql.test_harm import apply

#: What the README says that a writer needs.
RIGHTS = "SELECT, INSERT, UPDATE, DELETE, CREATE"
#: Neither ASCII nor Latin-1, and nothing that a URL takes as it is.
PASSWORD = "pä55/wörd€?@:#%"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module", params=["mariadb11", "mysql"])
def secure(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A server with a certificate for 127.0.0.1 that lets nobody in without TLS."""
    cert, key = authority.issue(request.param)
    options = [f"--ssl-ca={authority.file}", f"--ssl-cert={cert}", f"--ssl-key={key}"]
    options.append("--require-secure-transport=ON")
    folder = tmp_path_factory.mktemp("secure") / request.param
    with _start(lambda: KINDS[request.param].start(folder, options)) as server:
        connection = server.connect(unix_socket=server.socket)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.t (id BIGINT)")
            cursor.execute("CREATE USER app IDENTIFIED BY %s", (PASSWORD,))
            cursor.execute(f"GRANT {RIGHTS} ON shop.* TO app")
            cursor.execute("CREATE USER known IDENTIFIED BY 'x' REQUIRE X509")
            cursor.execute("GRANT ALL ON shop.* TO known")
        connection.close()
        yield server


def url(server: Any, query: str = "", user: str = "app", host: str = "127.0.0.1") -> str:
    password = quote(PASSWORD, safe="") if user == "app" else "x"
    return f"mysql://{user}:{password}@{host}:{server.port}/shop{query and '?'}{query}"


def check(url: str) -> str:
    """What the driver does first."""
    return MySQLWriter(url, "t", retry_minutes=0.2)._sink.check([Column("id", "bigint")])


def refused(url: str) -> str:
    """The refusal, which comes at once, not after the budget, and shows no password."""
    began = time.monotonic()
    with pytest.raises((SinkError, ConfigError)) as caught:
        check(url)
    assert time.monotonic() - began < 10
    assert not isinstance(caught.value, SinkUnavailableError)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__
    return str(caught.value)


def cipher(address: Address) -> str:
    connection = connect(address)
    with connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        ((_, name),) = cursor.fetchall()
    connection.close()
    return str(name)


def test_a_server_that_is_trusted(secure: Any, authority: Authority) -> None:
    """By its authority and the host's name, which both are checked; by any spelling. The account
    has the rights that the README lists, and they do for a unit."""
    for query in (f"tls_ca={authority.file}", f"ssl_ca={authority.file}"):
        assert check(url(secure, query)) == "shop.t"
        assert cipher(parse_url(url(secure, query), None))
    trusted = SimpleNamespace(url=lambda: url(secure, f"tls_ca={authority.file}"))
    assert apply(trusted, Column("id", "bigint"), pa.array([1, 2])) == Applied()  # type: ignore[arg-type]
    # Without options the client takes the TLS that it is offered, as this server wants.
    assert check(url(secure)) == "shop.t"


def test_a_server_that_is_not_trusted(secure: Any, authority: Authority, tmp_path: Path) -> None:
    """Another authority, another host's certificate, an authority that the system doesn't know."""
    other = Authority(tmp_path, "other")
    assert "is not trusted" in refused(url(secure, f"tls_ca={other.file}"))
    assert "is not trusted" in refused(url(secure, "tls=true"))
    text = refused(url(secure, f"tls_ca={authority.file}", host="localhost"))
    assert "is not trusted" in text
    assert "tls_check_host=false" in text
    loose = f"tls_ca={authority.file}&tls_check_host=false"
    assert check(url(secure, loose, host="localhost")) == "shop.t"
    assert "is not trusted" in refused(url(secure, f"tls_ca={other.file}&tls_check_host=false"))


def test_an_account_that_needs_a_client_certificate(secure: Any, authority: Authority) -> None:
    """REQUIRE X509: with one of the authority; without, the message says what is missing."""
    ca = f"tls_ca={authority.file}"
    cert, key = authority.issue("client")
    assert check(url(secure, f"{ca}&tls_cert={cert}&tls_key={key}", "known")) == "shop.t"
    assert "tls_cert and tls_key" in refused(url(secure, ca, "known"))


def test_a_connection_without_tls_where_it_is_required(secure: Any) -> None:
    """The message names the option."""
    assert "add tls=true to the URL" in refused(url(secure, "tls=false"))


def test_files_that_cannot_be_used(secure: Any, authority: Authority, tmp_path: Path) -> None:
    """ConfigError with the option, the path and the machine, or what is wrong with them."""
    assert "tls_ca=/no/such.pem is no file on" in refused(url(secure, "tls_ca=/no/such.pem"))
    (tmp_path / "x.pem").write_text("nothing")
    assert "can't be used" in refused(url(secure, f"tls_ca={tmp_path}/x.pem"))
    cert, _ = authority.issue("one")
    _, key = authority.issue("two")
    query = f"tls_ca={authority.file}&tls_cert={cert}&tls_key={key}"
    assert "can't be used" in refused(url(secure, query))


def test_tls_is_never_left_out_silently(mariadb: Any, authority: Authority) -> None:
    """A server without TLS gets neither user nor password from who asks for it."""
    text = refused(f"{mariadb.url()}?tls_ca={authority.file}")
    assert "offers no TLS" in text or "doesn't support it" in text


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_a_unix_socket(name: str, database_on: Callable[..., Any]) -> None:
    """``unix_socket`` in the URL; messages name it in place of the host."""
    database = database_on(name)
    database.query("CREATE TABLE t (id BIGINT)")
    where = database.server.socket
    at = f"mysql://root@localhost/{database.name}?unix_socket={quote(where)}"
    assert check(at) == f"{database.name}.t"
    assert where in str(parse_url(at, None))


def accounts(server: Any, name: str, how: str) -> None:
    """An account with all rights, and nothing cached of its password."""
    for host in ("localhost", "%"):
        server.query(f"DROP USER IF EXISTS '{name}'@'{host}'")
        server.query(f"CREATE USER '{name}'@'{host}' {how}".replace("%", "%%"), ())
        server.query(f"GRANT ALL ON *.* TO '{name}'@'{host}'".replace("%", "%%"), ())


def without_package(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """As if ``package`` were not installed."""
    auth = sys.modules["pymysql._auth"]
    monkeypatch.setattr(auth, "_have_cryptography", package != "cryptography")
    monkeypatch.setattr(auth, "_nacl_bindings", False)
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)


def test_caching_sha2_password_without_tls(
    mysql: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's public key encrypts the password, which takes a package; then the cache
    answers, which takes none."""
    accounts(mysql.server, prefix, f"IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'")
    mysql.query("CREATE TABLE t (id BIGINT)")
    at = mysql.url().replace("root@", f"{prefix}:{quote(PASSWORD, safe='')}@")
    with monkeypatch.context() as patch:
        without_package(patch, "cryptography")
        text = refused(f"{at}?tls=false")
        assert "pip install 'pymysql[rsa]'" in text
        assert check(at) == f"{mysql.name}.t", "with TLS it is not needed"
    mysql.query("FLUSH PRIVILEGES")
    assert check(f"{at}?tls=false") == f"{mysql.name}.t"
    mysql.query(f"DROP USER '{prefix}'@'localhost', '{prefix}'@'%%'", ())


def test_ed25519(
    database_on: Callable[..., Any], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB's other kind of password; without its package it is refused by that name."""
    database = database_on("mariadb11")
    database.query("INSTALL SONAME 'auth_ed25519'")
    accounts(database.server, prefix, f"IDENTIFIED VIA ed25519 USING PASSWORD('{PASSWORD}')")
    database.query("CREATE TABLE t (id BIGINT)")
    at = database.url().replace("root@", f"{prefix}:{quote(PASSWORD, safe='')}@")
    assert check(at) == f"{database.name}.t"
    with monkeypatch.context() as patch:
        without_package(patch, "nacl")
        assert "pip install 'pymysql[ed25519]'" in refused(at)
    database.query(f"DROP USER '{prefix}'@'localhost', '{prefix}'@'%%'", ())
    database.query("UNINSTALL SONAME 'auth_ed25519'")


def test_a_kind_of_password_that_the_client_does_not_know(
    database_on: Callable[..., Any], prefix: str
) -> None:
    """MariaDB's parsec: refused at once, with what can be done."""
    database = database_on("mariadb11")
    database.query("INSTALL SONAME 'auth_parsec'")
    accounts(database.server, prefix, "IDENTIFIED VIA parsec USING PASSWORD('x')")
    text = refused(database.url().replace("root@", f"{prefix}:x@"))
    assert "password of the server's default kind" in text
    database.query(f"DROP USER '{prefix}'@'localhost', '{prefix}'@'%%'", ())
    database.query("UNINSTALL SONAME 'auth_parsec'")


@pytest.mark.parametrize("name", ["mariadb", "mysql"])
def test_time_limits(name: str, database_on: Callable[..., Any]) -> None:
    """The server's for a statement, and ours for its answer."""
    database = database_on(name)
    statement = connect(parse_url(f"{database.url()}?max_statement_time=0.2", None))
    slow = "SELECT SUM(SLEEP(0.05)) FROM information_schema.columns a, (SELECT 1) b"
    with pytest.raises(pymysql.MySQLError) as caught:
        statement.query(slow)
    assert caught.value.args[0] in (1969, 3024, 1317)
    statement.close()
    network = connect(parse_url(f"{database.url()}?read_timeout=0.2", None))
    began = time.monotonic()
    with pytest.raises(pymysql.MySQLError, match="timed out"):
        network.query("SELECT SLEEP(5)")
    assert time.monotonic() - began < 3
    network.close()


BAD_URLS = [
    ("tls=maybe", "tls='maybe' is not known"),
    ("tls=false&tls_ca=/x", "tls_ca makes no sense with tls=false"),
    ("tls_cert=/x", "tls_cert and tls_key work together"),
    ("tls_ca=/x&unix_socket=/y", "a unix socket never leaves this host"),
    ("tls_cs=/x", "unknown options tls_cs; known: tls, tls_ca"),
    ("read_timeout=soon", "read_timeout is not a number of seconds"),
    ("connect_timeout=-1", "connect_timeout is not a number of seconds"),
]


@pytest.mark.parametrize(("query", "message"), BAD_URLS)
def test_options_that_cannot_work_are_refused_when_the_writer_is_built(
    query: str, message: str
) -> None:
    """By name; nothing is connected."""
    with pytest.raises(ConfigError, match=message):
        MySQLWriter(f"mysql://app:hush@db/shop?{query}", "t")
