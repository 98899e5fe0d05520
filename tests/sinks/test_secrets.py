"""No password shows: both writers, on servers that want one, in a session that tells all."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.testing.plugin import Database
from tests.sinks.redis.driving import content

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("secrets_job.py")
#: Around the part that is searched: what URLs, SQL and format strings quote.
PASSWORD = "p%40@:/{core}'\"\\é?#"


def forms(secret: str) -> list[bytes]:
    """The text in the encodings in which it might be kept; base64 at each of its three places."""
    plain = secret.encode()
    found = [plain, plain.hex().encode(), plain[::-1], secret.encode("utf-16-le")]
    for shift in range(3):
        text = base64.b64encode(b"x" * shift + plain)
        found.append(text[4 if shift else 0 : -4])
    return found


@pytest.fixture
def servers(mariadb: Database, own_redis: Any) -> Iterator[tuple[str, str, str, str]]:
    """URLs of a MariaDB and a Redis with the user ``app``, that user's password, and the part of
    it to search."""
    core = "Zq" + secrets.token_hex(12)
    password = PASSWORD.replace("{core}", core)
    mariadb.query("CREATE OR REPLACE USER app IDENTIFIED BY %s", (password,))
    mariadb.query("GRANT ALL ON *.* TO app")
    mariadb.query("CREATE TABLE narrow (id BIGINT, v VARCHAR(9) CHECK (v <> '3'))")
    own_redis.client().set("bad:3", "text")
    own_redis.client().execute_command("ACL", "SETUSER", "app", "on", f">{password}", "~*", "+@all")
    mysql = mariadb.url().replace("root@", "app@")
    yield mysql, own_redis.url().replace("//", "//app@"), password, core
    mariadb.query("DROP USER app")


def where(folder: Path, text: str) -> set[str]:
    """The files, by name, in which the text is found in any form."""
    wanted = forms(text)
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(form in path.read_bytes() for form in wanted)
    }


def test_a_password_shows_in_nothing_that_is_kept_or_shown(
    servers: tuple[str, str, str, str], mariadb: Database, own_redis: Any, tmp_path: Path
) -> None:
    """Representations, both kinds of pickle, logs at DEBUG (Spark's too), exceptions with their
    chains, plans, the UI's pages and REST answers, event log, checkpoints, ledgers. A text that is
    no secret is found there, so that a password would be."""
    mysql, redis, password, core = servers
    folder = tmp_path / "kept"
    folder.mkdir()
    canary = "Cn" + secrets.token_hex(12)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        done = subprocess.run(
            [sys.executable, str(JOB), str(folder), mysql, redis],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPARK_EOC_MYSQL_PASSWORD": password,
                "SPARK_EOC_REDIS_PASSWORD": password,
                "CANARY": canary,
            },
            stdout=out,
            stderr=err,
            timeout=300,
            check=False,
        )
    told = (folder / "stdout").read_text(errors="replace")
    assert done.returncode == 0, told[-2000:] + (folder / "stderr").read_text()[-2000:]
    ended = {line.partition(" ")[0] for line in told.splitlines() if " ended {" in line}
    assert ended == {"partition", "batch"}
    for failed in ("wrong-mysql", "wrong-redis", "bad-mysql", "bad-redis"):
        assert f"{failed} failed" in told
    assert "1045" in told
    assert "username-password" in told
    keep_ledgers(folder, mariadb, own_redis.client())
    assert where(folder, core) == set()
    seen = where(folder, canary)
    assert " DEBUG Analyzer" in (folder / "stderr").read_text(errors="replace")
    events = {name for name in seen if name.startswith("events")}
    assert {"stdout", "stderr", "rest-environment.json", "page-environment.html"} <= seen
    assert events
    assert where(folder, "MapInArrow") >= {"rest-sql.json", "stdout", *events}


def keep_ledgers(folder: Path, mariadb: Database, client: Any) -> None:
    """All that the writers have stored, as files."""
    tables = [name for (name,) in mariadb.query("SHOW TABLES")]
    rows = {name: mariadb.query(f"SELECT * FROM `{name}`") for name in tables}
    (folder / "mysql-content").write_text(repr(rows))
    keys = content(client, "")
    (folder / "redis-content").write_text(repr(keys))
    assert len(rows) > 4
    assert len(keys) > 8
