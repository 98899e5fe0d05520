"""What is large works, or is refused by the name of the setting: values of 17 MB, 9,000 fields."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import MySQLWriter, RedisWriter
from spark_eoc.errors import BadRowError, ConfigError, SinkUnavailableError
from spark_eoc.sinks.store import Column
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.local import LocalFrame, local_run
from spark_eoc.testing.modes import ATOMICITIES
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.servers import Redis
from spark_eoc.testing.steps import Run, rows_of

ROOT = Path(__file__).parents[2]
BIG = 17_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
FIELDS = 9000


def write(writer: Writer, row: Mapping[str, Any], schema: pa.Schema = SCHEMA) -> None:
    frame: Any = LocalFrame([[row]], schema)
    local_run(writer, "q", "run")(frame, 0)


@pytest.fixture
def packet(mariadb: Database) -> Iterator[Any]:
    """``packet(bytes)`` sets max_allowed_packet; it is set back."""
    ((before,),) = mariadb.query("SELECT @@GLOBAL.max_allowed_packet")
    mariadb.query("SET GLOBAL max_allowed_packet=16777216")
    yield lambda size: mariadb.query(f"SET GLOBAL max_allowed_packet={size}")
    mariadb.query(f"SET GLOBAL max_allowed_packet={before}")


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_mysql_takes_17_mb_where_the_server_does(
    mariadb: Database, packet: Any, atomicity: str
) -> None:
    """M3: with the default of 16 MiB the setting is named and nothing is written."""
    mariadb.query("CREATE TABLE t (k BIGINT, v LONGTEXT)")

    def attempt() -> None:
        write(MySQLWriter(mariadb.url(), "t", atomicity=atomicity), {"k": 1, "v": "x" * BIG})

    with pytest.raises(BadRowError, match="max_allowed_packet"):
        attempt()
    assert mariadb.query("SELECT COUNT(*) FROM t") == [(0,)]
    packet(64 * 1024 * 1024)
    attempt()
    assert mariadb.query("SELECT LENGTH(v) FROM t") == [(BIG,)]


@pytest.mark.parametrize("how", ["append", "create_table", "add_columns"])
def test_mysql_names_the_most_columns_of_a_table(mariadb: Database, how: str) -> None:
    """Before the server is asked, which needs a minute to say no."""
    columns = [Column(f"c{number}", "bigint") for number in range(FIELDS)]
    more: dict[str, Any] = {} if how == "append" else {how: True}
    with pytest.raises(ConfigError, match=r"9,000 columns .* at most 1,017"):
        MySQLWriter(mariadb.url(), "t", **more)._sink.check(columns)


COMMANDS: dict[str, dict[str, Any]] = {
    "set": {"value": "v"},
    "hset": {},
    "xadd": {},
}


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_redis_takes_17_mb(redis_server: Redis, prefix: str, atomicity: str) -> None:
    """It goes in a script of its own, whatever takes it."""
    client: Any = redis_server.client()
    for command, more in COMMANDS.items():
        key = f"{prefix}:{command}:{{k}}"
        told = {"command": command, "atomicity": atomicity, "ledger": f"{prefix}_ledger", **more}
        write(RedisWriter(redis_server.url(), key, **told), {"k": 1, "v": "x" * BIG})
        assert client.memory_usage(f"{prefix}:{command}:1", samples=0) > BIG
        client.delete(f"{prefix}:{command}:1")


@pytest.mark.parametrize("atomicity", ATOMICITIES)
def test_redis_with_a_lower_limit_names_it(own_redis: Redis, atomicity: str) -> None:
    """It cuts the connection off; nothing is written, and once it is raised the batch goes on."""
    client: Any = own_redis.client()
    client.config_set("proto-max-bulk-len", "16mb")
    told: dict[str, Any] = {"command": "set", "value": "v", "retry_minutes": 0.005}

    def attempt() -> None:
        writer = RedisWriter(own_redis.url(), "v:{k}", atomicity=atomicity, **told)
        write(writer, {"k": 1, "v": "x" * BIG})

    with pytest.raises(SinkUnavailableError, match="proto-max-bulk-len"):
        attempt()
    assert client.exists("v:1") == 0
    client.config_set("proto-max-bulk-len", "512mb")
    attempt()
    assert client.strlen("v:1") == BIG


@pytest.mark.parametrize("command", ["hset", "hincrby"])
def test_redis_publishes_rows_of_9000_fields(
    redis_server: Redis, prefix: str, command: str
) -> None:
    """R4 in batch atomicity; xadd refuses them by name."""
    names = [f"c{number}" for number in range(FIELDS)]
    columns = [Column("k", "bigint"), *(Column(name, "bigint") for name in names)]
    told = {"command": command, "ledger": f"{prefix}_ledger"}
    sink = RedisWriter(redis_server.url(), f"{prefix}:{{k}}", **told)._sink
    run = Run(sink, columns)
    sink.check_batch()
    run.open(0, atomicity="batch")
    staged, _ = run.stage(0, rows_of({"k": [1, 2], **{name: [1, 2] for name in names}}))
    run.publish(staged)
    client: Any = redis_server.client()
    assert [client.hlen(f"{prefix}:{key}") for key in (1, 2)] == [FIELDS, FIELDS]
    stream = RedisWriter(redis_server.url(), f"{prefix}:{{k}}", **{**told, "command": "xadd"})
    with pytest.raises(ConfigError, match="xadd of 9000 fields"):
        stream._sink.check(columns)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_of_a_task_with_5_million_rows() -> None:
    """In the Python worker, at its peak: 300 MB, also where rows are put in order. See the
    benchmark."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/bench/memory.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(figures) > 7
    assert [f for f in figures if f["value"] > 300] == []
