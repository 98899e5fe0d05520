"""A server that is filled up: the query waits, or ends and says so; nothing lost, nothing twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_eoc
from spark_eoc.testing.servers import MariaDB, Redis, Server
from spark_eoc.testing.wait import until

pytestmark = pytest.mark.usefixtures("stop_queries")

#: Rows of a size that a server has to make room for.
_PAD = "x" * 1500


class Full:
    """One query into a server of its own, and what a full one says."""

    def __init__(self, spark: SparkSession, folder: Path, server: Server, atomicity: str) -> None:
        self.spark, self.folder, self.server, self.atomicity = spark, folder, server, atomicity
        self.files = 0
        (folder / "input").mkdir()

    def feed(self, lines: int = 200) -> None:
        """One file of lines that no other has."""
        self.files += 1
        hidden = self.folder / f".{self.files}"
        hidden.write_text("".join(f"{self.files}-{n}\n" for n in range(lines)))
        hidden.rename(self.folder / "input" / f"{self.files}.txt")

    def start(self, retry_minutes: float) -> Any:
        """The query, from its checkpoint."""
        how = {"retry_minutes": retry_minutes, "atomicity": self.atomicity}
        writer = self.writer(**how)
        lines = self.spark.readStream.text(str(self.folder / "input"))
        padded = lines.withColumn("pad", F.lit(_PAD))
        stream = padded.writeStream.foreachBatch(writer)
        return stream.option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def writer(self, **how: Any) -> Any:
        raise NotImplementedError

    def refusals(self) -> int:
        """How often the server has refused for want of room, or died of it."""
        raise NotImplementedError

    def rows(self) -> Counter[str]:
        raise NotImplementedError

    def require_once(self) -> None:
        due = [f"{file}-{n}" for file in range(1, self.files + 1) for n in range(200)]
        assert self.rows() == Counter(due)


class FullMariaDB(Full):
    server: MariaDB

    def writer(self, **how: Any) -> Any:
        self.server.query("CREATE DATABASE IF NOT EXISTS d")
        self.server.query("CREATE TABLE IF NOT EXISTS d.t (value VARCHAR(50), pad VARCHAR(2000))")
        return spark_eoc.MySQLWriter(self.server.url("d"), "t", **how)

    def refusals(self) -> int:
        log = (self.server.folder / "server.log").read_text(errors="replace")
        return log.count("is full") + log.count("Out of disk space")

    def rows(self) -> Counter[str]:
        return Counter(str(value) for (value,) in self.server.query("SELECT value FROM d.t"))


class FullRedis(Full):
    server: Redis

    def writer(self, **how: Any) -> Any:
        return spark_eoc.RedisWriter(
            self.server.url(), "list:{value}", command="rpush", value="pad", **how
        )

    def refusals(self) -> int:
        stats: dict[str, Any] = self.server.client().info("errorstats")
        return int(stats.get("errorstat_OOM", {"count": 0})["count"])

    def rows(self) -> Counter[str]:
        client = self.server.client()
        return Counter(
            {key[5:].decode(): client.llen(key) for key in client.scan_iter("list:*", count=1000)}
        )


@pytest.mark.parametrize("atomicity", ["partition", pytest.param("batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "kind"), [("mariadb", FullMariaDB), ("redis", FullRedis)])
def test_a_query_goes_on_exactly_once_when_its_server_has_room_again(
    spark: SparkSession,
    tmp_path: Path,
    own_server: Callable[..., Any],
    *,
    name: str,
    kind: type[Full],
    atomicity: str,
) -> None:
    """Where there is little patience the query ends with an error that says what to do; started
    again while the server is still full it waits, and goes on."""
    server = own_server(name, disk_mib=200 if name == "mariadb" else None)
    full = kind(spark, tmp_path, server, atomicity)
    full.feed()
    query = full.start(retry_minutes=0.01)
    query.processAllAvailable()
    server.fill(room=50_000)
    full.feed()
    until(lambda: not query.isActive, 60, "the query's end")
    assert "SinkUnavailableError" in str(query.exception())
    assert full.refusals() > 0
    if server.ended:
        server.restart()
    server.fill()
    before = full.refusals()
    query = full.start(retry_minutes=5)
    until(lambda: full.refusals() > before, 60, "it is refused again")
    assert query.isActive
    full.feed()
    server.free()
    query.processAllAvailable()
    full.require_once()
