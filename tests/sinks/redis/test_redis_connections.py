"""How a RedisWriter gets to its server: TLS, sockets, users with few rights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.errors import ConfigError, SinkUnavailableError
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.redis import RedisWriter
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.rights import acl_rules
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.store import Column
from spark_eoc.testing.certificates import Authority
from spark_eoc.testing.plugin import _start
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.servers import Redis
from tests.sinks.redis.driving import Run, counters, redis_sink, stored, totals
from tests.sinks.redis.test_redis_servers import ALL_COMMANDS

README = (Path(__file__).parents[3] / "README.md").read_text()
COLUMNS = [Column("k", "bigint"), Column("n", "bigint")]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


class Secure:
    """A Redis with a TLS port, and the URL of that."""

    def __init__(self, server: Any, port: int) -> None:
        self.server, self.port = server, port

    def url(self, query: str = "", host: str = "127.0.0.1") -> str:
        return f"rediss://{host}:{self.port}/0{query and '?'}{query}"


@pytest.fixture(scope="module", params=["optional", "yes"])
def secure(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secure]:
    """One that takes client certificates, and one that wants them."""
    cert, key = authority.issue("server")
    port = free_port()
    told = {
        "tls-port": str(port),
        "tls-cert-file": cert,
        "tls-key-file": key,
        "tls-ca-cert-file": authority.file,
        "tls-auth-clients": request.param,
    }
    options = [word for name, value in told.items() for word in (f"--{name}", value)]
    folder = tmp_path_factory.mktemp("secure")
    with _start(lambda: Redis.start(folder / "redis", options)) as server:
        yield Secure(server, port)


def check(url: str) -> str:
    """What the driver does first."""
    return redis_sink(url, "c:{k}", "hincrby", budget_s=20).check(COLUMNS)


def refused(url: str) -> str:
    """The refusal, which comes at once and not after the budget."""
    began = time.monotonic()
    with pytest.raises((SinkUnavailableError, ConfigError)) as caught:
        check(url)
    assert time.monotonic() - began < 10
    return str(caught.value)


def with_client(authority: Authority) -> str:
    cert, key = authority.issue("client")
    return f"tls_ca={authority.file}&tls_cert={cert}&tls_key={key}"


def test_a_server_that_is_trusted(secure: Secure, authority: Authority) -> None:
    """Its authority and the host's name are checked; a whole batch goes over it."""
    run = Run(redis_sink(secure.url(with_client(authority)), "c:{k}", "hincrby"), "w")
    assert run.sink.check(COLUMNS) == "c:{k}"
    assert run.batch(0, counters()) == [Applied()]
    client = secure.server.client()
    assert stored(client, "c") == totals(counters())
    client.flushall()


def test_a_server_that_is_not_trusted(secure: Secure, authority: Authority, tmp_path: Path) -> None:
    """Another authority, another host's certificate, an authority that the system doesn't know."""
    known = with_client(authority)
    other = Authority(tmp_path, "other")
    for query in (f"tls_ca={other.file}", f"ssl_ca_certs={other.file}", ""):
        assert "is not trusted" in refused(secure.url(query))
    text = refused(secure.url(known, host="localhost"))
    assert "is not trusted" in text
    assert "tls_check_host=false" in text
    assert check(secure.url(f"{known}&tls_check_host=false", host="localhost"))
    # redis-py's way to check nothing, which is the user's own word.
    cert, key = authority.issue("redis-py")
    assert check(secure.url(f"ssl_cert_reqs=none&ssl_certfile={cert}&ssl_keyfile={key}"))


def test_a_client_certificate_where_one_is_wanted(secure: Secure, authority: Authority) -> None:
    """Without it the message names the options."""
    url = secure.url(f"tls_ca={authority.file}")
    if "yes" in secure.server.options:
        assert "tls_cert" in refused(url)
    else:
        assert check(url) == "c:{k}"


def test_tls_on_one_side_only(secure: Secure) -> None:
    """Such a server answers nothing that could be told from a network that is down: after the
    budget the next step names the URL's scheme."""
    plain = f"127.0.0.1:{secure.server.port}/0?socket_connect_timeout=0.3&socket_timeout=0.3"
    for url, hint in (
        (f"rediss://{plain}", "speaks TLS there"),
        (f"redis://127.0.0.1:{secure.port}/0", "rediss:// in"),
    ):
        sink = redis_sink(url, "c:{k}", "hset", budget_s=0.1)
        with pytest.raises(SinkUnavailableError, match=hint):
            sink.check(COLUMNS)


def test_files_that_are_not_there(secure: Secure) -> None:
    """ConfigError with option, path and machine."""
    assert "tls_ca=/no/such.pem is no file on" in refused(secure.url("tls_ca=/no/such.pem"))


def test_a_unix_socket(own_server: Callable[..., Any], tmp_path_factory: Any) -> None:
    """``unix://``, with user, database and a batch."""
    where = tmp_path_factory.mktemp("s") / "s"
    server = own_server("redis", ["--unixsocket", str(where), "--unixsocketperm", "700"])
    server.client().execute_command("ACL SETUSER app on >hush ~* +@all")
    url = f"unix://app:hush@{where}?db=3"
    run = Run(redis_sink(url, "c:{k}", "hincrby"), "w")
    assert run.sink.check(COLUMNS) == "c:{k}"
    assert run.batch(0, counters()) == [Applied()]
    assert stored(server.client(3), "c") == totals(counters())
    assert "hush" not in repr(run.sink)


SERVERS = ["redis6", "redis", "redis8", "valkey"]


def user(server: Any, prefix: str, rules: str) -> str:
    """The URL of a user with these rights and no other, on database 1."""
    server.client().execute_command(
        "ACL", "SETUSER", prefix, "reset", "on", ">hush", *rules.split()
    )
    return str(server.url(1).replace("redis://", f"redis://{prefix}:hush@"))


@pytest.mark.parametrize("name", SERVERS)
def test_the_rights_that_are_documented_do(
    name: str, server_named: Callable[[str], Any], prefix: str
) -> None:
    """Every command, with a TTL where it takes one, from the check to a repeated batch."""
    server = server_named(name)
    for command, told in ALL_COMMANDS:
        if (name, command) == ("redis6", "incrbyfloat"):
            continue
        more: dict[str, Any] = {**told, **({} if command == "del" else {"ttl": 1000})}
        key, ledger = f"{prefix}:{command}:{{k}}", f"{prefix}_ledger"
        rules = acl_rules(Command(command, KeyTemplate.parse(key), **more), ledger)
        url = user(server, prefix, rules)
        run = Run(redis_sink(url, key, command, ledger=ledger, chunk_rows=7, **more), key)
        assert run.sink.check(COLUMNS) == key
        for batch in range(2):
            run.open(batch)
            assert run.apply(counters()) == Applied()
            assert run.apply(counters()) == AlreadyApplied()
            run.close()
    server.client().execute_command("ACL", "DELUSER", prefix)


@pytest.mark.parametrize("name", SERVERS)
def test_each_right_that_is_missing_is_told_at_the_start(
    name: str, server_named: Callable[[str], Any], prefix: str
) -> None:
    """By the command or the keys, with the line that gives it; no key is left behind."""
    server = server_named(name)
    client, ledger = server.client(1), f"{prefix}_ledger"
    key = f"{prefix}:{{k}}"
    rules = acl_rules(Command("hincrby", KeyTemplate.parse(key), ttl=5), ledger).split()
    missing = [rule for rule in rules if rule not in ("+del", "+select")]
    for rule in missing:
        url = user(server, prefix, " ".join(other for other in rules if other != rule))
        sink = redis_sink(url, key, "hincrby", ledger=ledger, ttl=5, budget_s=20)
        with pytest.raises(ConfigError) as caught:
            sink.check(COLUMNS)
        text = str(caught.value)
        assert "hush" not in text
        assert "ACL SETUSER" in text
        assert rule in text if rule.startswith("~") else rule[1:] in text.lower(), rule
        if rule.startswith("+"):
            assert rule in text, rule
    url = user(server, prefix, " ".join(rule for rule in rules if rule != "+select"))
    with pytest.raises(SinkUnavailableError, match="select"):
        redis_sink(url, key, "hincrby", ledger=ledger, budget_s=20).check(COLUMNS)
    assert list(client.scan_iter(f"*{prefix}*")) == []
    client.execute_command("ACL", "DELUSER", prefix)


def test_the_rights_of_dead_letters_and_whole_batches(redis_server: Any, prefix: str) -> None:
    """Those that the README adds for them do."""
    key, ledger = f"{prefix}:{{k}}", f"{prefix}_ledger"
    words = {
        "dead letters": "+type +xadd +xtrim",
        "whole batches": "+hlen +hexists +sadd +smembers +srem",
        "wait_replicas": "+wait",
    }
    assert all(f"`{word}`" in README.replace("\n", " ") for word in words.values())
    rules = acl_rules(Command("hincrby", KeyTemplate.parse(key)), ledger)
    url = user(redis_server, prefix, f"{rules} {' '.join(words.values())}")
    sink = redis_sink(url, key, "hincrby", ledger=ledger, budget_s=5)
    assert sink.with_dead_letters(5).check(COLUMNS) == key
    sink.check_batch()
    with pytest.raises(ConfigError, match="dead_letter"):
        redis_sink(user(redis_server, prefix, f"{rules} +type"), key, "hincrby", ledger=ledger,
                   budget_s=5).with_dead_letters(5).check(COLUMNS)  # fmt: skip
    redis_server.client().execute_command("ACL", "DELUSER", prefix)


def test_the_readme_has_the_line_of_its_example() -> None:
    """Word for word."""
    command = Command("hset", KeyTemplate.parse("user:{user_id}"), ttl=86400)
    assert f"ACL SETUSER app on >secret {acl_rules(command, 'spark_eoc')}\n" in README


BAD_URLS = [
    ("redis://h/0?tls_ca=/x", "tls_ca in a redis:// URL"),
    ("unix:///s?tls_ca=/x", "tls_ca in a unix:// URL"),
    ("rediss://h/0?tls_cert=/x", "tls_cert and tls_key work together"),
    ("rediss://h/0?tls_check_host=maybe", "tls_check_host='maybe' is not known"),
    ("rediss://h/0?tls_cs=/x", "options that this writer does not take: tls_cs"),
]


@pytest.mark.parametrize(("url", "message"), BAD_URLS)
def test_options_that_cannot_work_are_refused_when_the_writer_is_built(
    url: str, message: str
) -> None:
    """By name; nothing is connected."""
    with pytest.raises(ConfigError, match=message):
        RedisWriter(url, key="u:{k}", command="hset")
