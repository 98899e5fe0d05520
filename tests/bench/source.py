"""The source against what it can at best be, and against Spark's own socket source."""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import spark_eoc
from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.writer import LogWriter

#: A line of 60 bytes, as a flight of the demo's data.
LINE = b"2013-01-01,0515,UA,1545,N14228,EWR,IAH,227,1400,5,15,+2,on-t"
ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000
#: Lines of 60 bytes, each with its four bytes of offset.
BIG_ROWS = 160_000_000
#: It is read in so many batches, the sides taking turns.
BIG_PARTS = 8
PER_PARTITION = 250_000
PER_FRAME = 50_000
ROUNDS = 5
WAITING = 100_000


class MemorySource(DataSource):
    """The same rows, columns and partitions, as Arrow batches made once a task in memory."""

    @classmethod
    def name(cls) -> str:
        return "memory_batches"

    def schema(self) -> str:
        return "value STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return MemoryReader(int(self.options["rows"]), self.options["line"])


class MemoryReader(DataSourceStreamReader):
    """One batch of all rows."""

    def __init__(self, rows: int, line: str) -> None:
        self.rows = rows
        self.line = line

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"offset": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        count = (end["offset"] - start["offset"]) // PER_PARTITION
        return [InputPartition(PER_PARTITION) for _ in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_pydict({"value": [self.line] * PER_FRAME})
        for _ in range(partition.value // PER_FRAME):
            yield batch


def main() -> None:
    """Prints one JSON line a figure."""
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        against_memory(spark, Path(folder), ROWS, "source to a no-op sink")
        if shutil.disk_usage(folder).free > 2 * BIG_ROWS * len(LINE):
            what = "source to a no-op sink, all of 10 GB"
            against_memory(spark, Path(folder) / "big", BIG_ROWS, what, parts=BIG_PARTS)
        against_socket(spark, Path(folder))
    spark.stop()


def session() -> SparkSession:
    builder: Any = SparkSession.builder.master("local[2]").appName("spark_eoc bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark_eoc.register(spark)
    spark.dataSource.register(MemorySource)
    return spark


def against_memory(
    spark: SparkSession, folder: Path, rows: int, what: str, *, parts: int = 1
) -> None:
    """Rows of one batch a second, from disk and from memory, taking turns: each time all rows of
    the buffer, or each time another part of them."""
    fill(folder / "buffer", rows)
    part = rows // parts

    def ours(number: int) -> DataFrame:
        reader = spark.readStream.format("replayable_socket").option("maxRowsPerTrigger", part)
        reader = reader.option("startingOffsets", number % parts * part)
        return reader.option("bufferPath", str(folder / "buffer")).load()

    def theirs() -> DataFrame:
        reader = spark.readStream.format("memory_batches").option("rows", part)
        return reader.option("line", LINE.decode()).load()

    seconds = turns(
        lambda number: batch_seconds(ours(number), folder / f"ours-{number}", part),
        lambda number: batch_seconds(theirs(), folder / f"theirs-{number}", part),
        parts if parts > 1 else ROUNDS,
    )
    figure(
        what,
        "the same Arrow batches made in memory",
        0.8,
        ours=part / seconds[0],
        theirs=part / seconds[1],
    )


def against_socket(spark: SparkSession, folder: Path) -> None:
    """100,000 lines that have been received and wait for a batch, by the time of that batch."""

    def ours(number: int) -> float:
        def frame(port: int) -> DataFrame:
            reader = spark.readStream.format("replayable_socket").option("host", "127.0.0.1")
            path = folder / f"own-{number}"
            return reader.option("port", port).option("bufferPath", str(path)).load()

        return waiting_seconds(frame, folder / f"own-checkpoint-{number}")

    def theirs(number: int) -> float:
        def frame(port: int) -> DataFrame:
            reader = spark.readStream.format("socket").option("host", "127.0.0.1")
            return reader.option("port", port).load()

        return waiting_seconds(frame, folder / f"socket-checkpoint-{number}")

    seconds = turns(ours, theirs)
    figure(
        "source, 100,000 waiting lines",
        "Spark's socket source",
        50,
        ours=WAITING / seconds[0],
        theirs=WAITING / seconds[1],
    )


def turns(
    ours: Callable[[int], float], theirs: Callable[[int], float], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Median seconds of both; one more round, the first, warms up."""
    measured = [(ours(number), theirs(number)) for number in range(rounds + 1)][1:]
    first, second = zip(*measured, strict=True)
    return statistics.median(first), statistics.median(second)


def batch_seconds(frame: DataFrame, checkpoint: Path, rows: int) -> float:
    """Time that Spark took for the batch that held the rows: planning and reading."""
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="1 hour")  # one batch, at once
        .start()
    )
    deadline = time.monotonic() + 900
    while not (progress := [one for one in query.recentProgress if one["numInputRows"]]):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "no batch came"
        time.sleep(0.05)
    query.stop()
    assert [one["numInputRows"] for one in progress] == [rows]
    return progress[0]["durationMs"]["addBatch"] / 1000


def waiting_seconds(frame: Callable[[int], DataFrame], checkpoint: Path) -> float:
    """Time of the batches that held the lines: both sources have received them long before."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = frame(server.getsockname()[1]).writeStream.format("noop")
        writer = writer.trigger(processingTime="3 seconds")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        connection, _ = server.accept()
        with connection:
            connection.sendall((LINE + b"\n") * WAITING)
            deadline = time.monotonic() + 300
            while sum(one["numInputRows"] for one in query.recentProgress) < WAITING:
                assert time.monotonic() < deadline, f"not all lines came, {query.exception()}"
                time.sleep(0.1)
            progress = [one for one in query.recentProgress if one["numInputRows"]]
            query.stop()
    return sum(one["durationMs"]["triggerExecution"] for one in progress) / 1000


def fill(path: Path, rows: int) -> None:
    """A buffer of equal lines."""
    ends = struct.pack(f"<{PER_FRAME + 1}i", *range(0, len(LINE) * (PER_FRAME + 1), len(LINE)))
    writer = LogWriter.open(path)
    for _ in range(rows // PER_FRAME):
        writer.append(LineBlock(LINE * PER_FRAME, ends), receive_time_us=time.time_ns() // 1000)
        writer.sync()
    writer.close()


def figure(what: str, against: str, at_least: float, *, ours: float, theirs: float) -> None:
    """One line of JSON, for `run.py`."""
    line = {
        "what": what,
        "against": against,
        "ratio": round(ours / theirs, 3),
        "at_least": at_least,
        "unit": "rows/s",
        "ours": round(ours),
        "theirs": round(theirs),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
