"""Peak memory of the Python worker whose task writes one partition of 5 million rows.

    python tests/bench/memory.py [--rows 5000000] [--only WORDS]

Resident memory as the kernel counts it, pages of mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pyspark import cloudpickle  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

import spark_eoc  # noqa: E402
from spark_eoc import MySQLWriter, RedisWriter  # noqa: E402
from spark_eoc.testing.servers import MariaDB, Redis  # noqa: E402
from tests.sinks.calls import Query  # noqa: E402

cloudpickle.register_pickle_by_value(spark_eoc)

MOST_MB = 300
Cases = dict[str, Callable[[], Any]]


def main() -> None:
    """Prints a JSON line for each way to write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mariadb = stack.enter_context(MariaDB.start(folder / "mysql"))
        redis = stack.enter_context(Redis.start(folder / "redis"))
        spark = session()
        stack.callback(spark.stop)
        frame = spark.range(0, args.rows, 1, 1).selectExpr("id", "concat('name-', id) AS name")
        for name, make in {**mysql(mariadb), **in_redis(redis)}.items():
            if args.only in name:
                measure(f"{name}, memory of a task, {args.rows:,} rows", frame, make())
        redis.client().flushdb()


def session() -> SparkSession:
    # Each task has a worker of its own, so that a peak is that of one case.
    builder: Any = SparkSession.builder.master("local[1]")
    for key, value in (
        ("spark.ui.enabled", "false"),
        ("spark.python.worker.reuse", "false"),
        ("spark.driver.memory", "1g"),
    ):
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def mysql(server: MariaDB) -> Cases:
    server.query("CREATE DATABASE bench")
    url = server.url("bench")

    def table(name: str, **more: Any) -> Any:
        server.query(f"CREATE OR REPLACE TABLE bench.{name} (id BIGINT PRIMARY KEY, name TEXT)")
        return MySQLWriter(url, name, **more)

    upsert: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
    changes = {**upsert, "delete_when": "id % 4 = 0", "order_by": ["name"]}
    return {
        "MySQL append": lambda: table("a"),
        "MySQL upsert": lambda: table("u", **upsert),
        "MySQL upsert, delete_when and order_by": lambda: table("c", **changes),
        "MySQL append, batch atomicity": lambda: table("b", atomicity="batch"),
    }


def in_redis(server: Redis) -> Cases:
    def keys(**more: Any) -> Any:
        server.client().flushdb()
        return RedisWriter(server.url(), "u:{id}", **more)

    return {
        "Redis hset": lambda: keys(command="hset"),
        "Redis set": lambda: keys(command="set", value="name"),
        "Redis hincrby": lambda: keys(command="hincrby", fields=["id"]),
        "Redis zadd": lambda: keys(command="zadd", member="name", score="id"),
    }


def measure(what: str, frame: DataFrame, writer: Any) -> None:
    with peak() as found:
        Query(frame.sparkSession).call(writer, frame, 0)
    figure = {"what": what, "value": found[0] // 1024, "unit": "MB", "at_most": MOST_MB}
    print(json.dumps(figure), flush=True)


@contextmanager
def peak() -> Iterator[list[int]]:
    """Kilobytes at the peak of any Python worker inside."""
    found, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            found[0] = max([found[0], *map(peak_of, workers())])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield found
    done.set()
    thread.join()


def workers() -> Iterator[Path]:
    """Processes that a worker daemon of Spark forked."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            daemon = (Path("/proc") / parent / "cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command and b"pyspark.daemon" in daemon and mine(int(parent)):
            yield path


def mine(pid: int) -> bool:
    """Whether the process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def peak_of(process: Path) -> int:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
