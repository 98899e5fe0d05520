"""MySQL append side by side with Spark's JDBC sink, executemany, and itself without a ledger.

python tests/bench/mysql.py [--rows 600000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import pyarrow as pa  # noqa: E402
from pyspark import cloudpickle  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

import spark_eoc  # noqa: E402
from spark_eoc.sinks.entries import HISTORY, Applied, Call, Fingerprint, Unit  # noqa: E402
from spark_eoc.sinks.frame import describe_columns  # noqa: E402
from spark_eoc.sinks.ledger import Open, decide_close, decide_open  # noqa: E402
from spark_eoc.sinks.mysql import MySQLWriter  # noqa: E402
from spark_eoc.sinks.mysql.connection import transaction  # noqa: E402
from spark_eoc.sinks.mysql.sink import MySQLSink  # noqa: E402
from spark_eoc.sinks.rows import Rows  # noqa: E402
from spark_eoc.testing.servers import MariaDB  # noqa: E402
from tests.sinks.calls import Query  # noqa: E402

cloudpickle.register_pickle_by_value(spark_eoc)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

JARS = ("/usr/share/java/mariadb-java-client.jar",)
COLUMNS = "id BIGINT, name VARCHAR(40), price DOUBLE, at DATETIME(6), kind INT"


def main() -> None:
    """Prints a JSON line for each figure; all sides of one run take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, MariaDB.start(Path(folder) / "m") as server:
        server.query("CREATE DATABASE bench")
        spark = session()
        try:
            bench = Bench(spark, server, args.rows)
            throughput(bench, args.rounds)
            overhead(bench, args.rounds * 10)
        finally:
            spark.stop()
        ageing(bench, args.batches)


def session() -> SparkSession:
    builder: Any = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    jar = next((path for path in JARS if Path(path).exists()), None)
    if jar:
        builder = builder.config("spark.jars", jar)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Bench:
    """The same frame, written in several ways into an empty table each time."""

    def __init__(self, spark: SparkSession, server: MariaDB, rows: int) -> None:
        self.spark, self.server, self.rows = spark, server, rows
        self.url = f"mysql://root@127.0.0.1:{server.port}/bench"
        self.frame = frame(spark, rows, 2)
        self.frame.cache().count()
        self.query, self.batch = Query(spark), 0
        self.writer = MySQLWriter(self.url, "t")
        self.loader = MySQLWriter(self.url, "t", load_data=True, writer_id="loader")
        self.loaded = 0

    def empty(self) -> None:
        self.server.query("DROP TABLE IF EXISTS bench.t")
        self.server.query(f"CREATE TABLE bench.t ({COLUMNS})")

    def ours(self) -> None:
        self.query.call(self.writer, self.frame, self.batch)
        self.batch += 1

    def load(self) -> None:
        self.query.call(self.loader, self.frame, self.loaded)
        self.loaded += 1

    def bare(self) -> None:
        """The writer without ledger, token and fingerprint: rows in one transaction a partition."""
        sink = MySQLSink(self.writer._sink.address, "t")
        sink.check(describe_columns(self.frame))
        self.frame.mapInArrow(BareTask(sink), "rows BIGINT").collect()

    def jdbc(self) -> None:
        writer = self.frame.write.format("jdbc").mode("append")
        writer.options(
            url=f"jdbc:mysql://127.0.0.1:{self.server.port}/bench?rewriteBatchedStatements=true",
            dbtable="t",
            user="root",
            driver="org.mariadb.jdbc.Driver",
            batchsize="10000",
        ).save()

    def executemany(self) -> None:
        self.frame.foreachPartition(ExecuteMany(self.server.port))

    def count(self) -> int:
        return int(self.server.query("SELECT COUNT(*) FROM bench.t")[0][0])


def frame(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    return spark.range(0, rows, 1, partitions).select(
        "id",
        F.concat(F.lit("name-"), F.col("id").cast("string")).alias("name"),
        (F.col("id") * 1.37).alias("price"),
        F.timestamp_micros(F.lit(1_700_000_000_000_000) + F.col("id") * 1_234_567).alias("at"),
        (F.col("id") % 7).cast("int").alias("kind"),
    )


@dataclass(frozen=True)
class BareTask:
    sink: MySQLSink

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(list(batches))
        with transaction(self.sink.address) as connection:
            self.sink._write(connection, Rows(table, pa.chunked_array([], pa.int64())))
            connection.query("COMMIT")
        yield pa.record_batch({"rows": pa.array([table.num_rows], pa.int64())})


@dataclass(frozen=True)
class ExecuteMany:
    port: int

    def __call__(self, rows: Iterator[Any]) -> None:
        import pymysql  # noqa: PLC0415

        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root", db="bench")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s,%s,%s,%s,%s)", [tuple(r) for r in rows])
        connection.commit()
        connection.close()


def timed(bench: Bench, write: Callable[[], None]) -> float:
    bench.empty()
    begun = time.perf_counter()
    write()
    seconds = time.perf_counter() - begun
    if bench.count() != bench.rows:
        raise RuntimeError(f"{write.__name__} wrote {bench.count()} of {bench.rows} rows")
    return seconds


def throughput(bench: Bench, rounds: int) -> None:
    sides: dict[str, Callable[[], None]] = {"ours": bench.ours, "bare": bench.bare}
    sides["load"] = bench.load
    sides["executemany"] = bench.executemany
    if "spark.jars" in dict(bench.spark.sparkContext.getConf().getAll()):
        sides["jdbc"] = bench.jdbc
    else:
        print("no JDBC driver: apt-get install libmariadb-java", file=sys.stderr)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, write in sides.items():
            took = timed(bench, write)
            if turn:  # the first one warms up
                seconds[name].append(took)
    for name, against, at_least in (
        ("jdbc", "Spark JDBC, rewriteBatchedStatements, not idempotent", 1.0),
        ("executemany", "foreachPartition + executemany", 3.0),
        ("bare", "itself with ledger, token and fingerprint off", 0.95),
    ):
        if name in seconds:
            ours, theirs = (statistics.median(seconds[n]) for n in ("ours", name))
            report(
                what="MySQL append", against=against, ratio=theirs / ours, at_least=at_least,
                unit="rows/s", ours=round(bench.rows / ours), theirs=round(bench.rows / theirs),
            )  # fmt: skip

    load, ours = (statistics.median(seconds[n]) for n in ("load", "ours"))
    report(
        what="MySQL append, load_data", against="itself by INSERT", ratio=ours / load,
        at_least=1.0, unit="rows/s", ours=round(bench.rows / load),
        theirs=round(bench.rows / ours),
    )  # fmt: skip


@dataclass(frozen=True)
class NoOp:
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})


def overhead(bench: Bench, times: int) -> None:
    small = frame(bench.spark, 100, 1)
    bench.empty()
    ours, theirs = [], []
    for turn in range(times + 5):
        begun = time.perf_counter()
        bench.query.call(bench.writer, small, bench.batch)
        bench.batch += 1
        middle = time.perf_counter()
        small.mapInArrow(NoOp(), "rows BIGINT").collect()
        if turn >= 5:
            ours.append(middle - begun)
            theirs.append(time.perf_counter() - middle)
    more = (statistics.median(ours) - statistics.median(theirs)) * 1000
    report(
        what="MySQL, 100-row batch, the writer's own overhead", against="a no-op mapInArrow",
        value=round(more, 1), unit="ms", at_most=20,
    )  # fmt: skip


def ageing(bench: Bench, batches: int) -> None:
    """Batch 10,000 against batch 100, without Spark: open, one unit, close; and ledger size."""
    bench.empty()
    sink = MySQLSink(bench.writer._sink.address, "t", ledger="aged")
    sink.check(describe_columns_of_bench())
    rows = small_rows(100)
    run_id, query_id = uuid.uuid4().hex, uuid.uuid4().hex
    seconds, sizes = [], {}
    for batch_id in range(batches):
        begun = time.perf_counter()
        one_batch(
            sink,
            Call("w", query_id, run_id, batch_id, secrets.token_hex(16), not batch_id),
            rows,
        )
        seconds.append(time.perf_counter() - begun)
        if batch_id in (HISTORY, batches - 1):
            sizes[batch_id] = bench.server.query("SELECT COUNT(*) FROM bench.aged_history")[0][0]
    early, late = (statistics.median(part) for part in (seconds[50:250], seconds[-200:]))
    report(
        what=f"MySQL, batch {batches:,}, time", against="batch 100", ratio=late / early, at_most=1.1
    )
    report(
        what=f"MySQL, batch {batches:,}, ledger rows", against="batch 100",
        ratio=sizes[batches - 1] / sizes[HISTORY], at_most=1.1,
    )  # fmt: skip


def describe_columns_of_bench() -> Any:
    from spark_eoc.sinks.store import Column  # noqa: PLC0415

    names = {"id": "bigint", "name": "string", "price": "double", "at": "timestamp", "kind": "int"}
    return [Column(name, kind) for name, kind in names.items()]


def small_rows(count: int) -> Rows:
    numbers = range(count)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"name-{i}" for i in numbers],
            "price": [i * 1.37 for i in numbers],
            "at": pa.array([i * 10**6 for i in numbers], pa.timestamp("us", "UTC")),
            "kind": pa.array([i % 7 for i in numbers], pa.int32()),
        }
    )
    return Rows(table, pa.chunked_array([pa.array(numbers, pa.int64())]))


def one_batch(sink: MySQLSink, call: Call, rows: Rows) -> None:
    opened = sink.open_batch("w", call.batch_id, lambda view: decide_open(view, call))
    assert isinstance(opened, Open)
    found: Fingerprint = rows.fingerprint()
    unit = Unit("w", 0, call.batch_id, opened.control.epoch, call.token, found)
    assert sink.apply(unit, rows) == Applied()
    sink.close_batch(
        "w", call.batch_id, lambda view, units: decide_close(view, units, {0: found}, call, 1)
    )


def report(**figure: Any) -> None:
    if "ratio" in figure:
        figure["ratio"] = round(figure["ratio"], 3)
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
