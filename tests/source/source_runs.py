"""A buffer that a test fills itself, and queries on it whose batches the test sees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyspark

from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.consumers import ConsumerPosition
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.buffer.reader import LogReader
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.testing.wait import until

BEFORE_4_2 = tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)
SECONDS = 60


class Buffer:
    """A buffer directory that the test writes; Spark only reads it."""

    def __init__(self, path, **options):
        self.path = Path(path)
        self.options = BufferOptions(**options)
        self.writer = LogWriter.open(self.path, self.options)

    def add(self, lines, time_us=1_700_000_000_000_000):
        """Makes lines durable as one frame; returns the end offset."""
        encoded = [line.encode() if isinstance(line, str) else line for line in lines]
        self.writer.append(LineBlock.from_lines(encoded), receive_time_us=time_us)
        return self.writer.sync()

    def count(self, records, start=0):
        """Adds ``records`` lines that are their own numbers."""
        return self.add([str(number) for number in range(start, start + records)])

    def restart(self):
        """A new writer, and so the next epoch."""
        self.writer.close()
        self.writer = LogWriter.open(self.path, self.options)

    def log(self):
        """A reader, as Spark's processes have one."""
        return LogReader(self.path)

    def trim_to(self, offset, consumer="default"):
        """As a query that has committed ``offset``."""
        position = ConsumerPosition.open(self.path, consumer)
        position.commit(offset)
        position.close()
        self.writer.apply_trim()

    def close(self):
        self.writer.close()


class Checkpoint:
    """Spark's checkpoint folder, for surgery between two runs."""

    def __init__(self, path):
        self.path = Path(path)

    def numbers(self, log):
        """Batch ids in ``offsets`` or ``commits``."""
        folder = self.path / log
        return sorted(int(file.name) for file in folder.glob("[0-9]*") if file.name.isdigit())

    def offset(self, batch):
        """The source's end offset of a batch, as the text that Spark stored."""
        return (self.path / "offsets" / str(batch)).read_text().splitlines()[2]

    def drop_last_commit(self):
        """As a kill just before Spark wrote it: the newest batch is run again."""
        number = self.numbers("commits")[-1]
        self._drop("commits", number)
        return number

    def drop_last_batch(self):
        """As a kill just before Spark wrote its offsets."""
        number = self.numbers("offsets")[-1]
        self._drop("offsets", number)
        if number in self.numbers("commits"):
            self._drop("commits", number)
        return number

    def write_offset(self, batch, offset):
        """Puts another end offset into ``offsets/N``."""
        file = self.path / "offsets" / str(batch)
        head = file.read_text().splitlines()[:2]
        self._drop("offsets", batch)
        file.write_text("\n".join([*head, json.dumps(offset)]))

    def _drop(self, log, number):
        (self.path / log / str(number)).unlink()
        (self.path / log / f".{number}.crc").unlink(missing_ok=True)


class Run:
    """One start of a query; ``batches`` is what foreachBatch saw: batch id to rows in order."""

    def __init__(
        self, spark, path, checkpoint, *, fail_in=None, trigger=None, change=None, **given
    ):
        self.batches = {}
        self.partitions = {}
        self._fail_in = fail_in
        frame = frame_of(spark, path, **given)
        frame = change(frame) if change else frame
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint.path))
        writer = writer.trigger(**trigger) if trigger else writer
        self.query = writer.foreachBatch(self._take).start()

    def _take(self, frame, batch_id):
        rows = frame.selectExpr("spark_partition_id() AS task", "*").collect()
        if batch_id == self._fail_in:
            raise RuntimeError("the test kills this batch")
        self.partitions[batch_id] = [
            count for _, count in sorted(Counter(row.task for row in rows).items())
        ]
        self.batches[batch_id] = [row[1:] for row in rows]

    @property
    def values(self):
        """First column of all batches in order."""
        return [row[0] for batch in sorted(self.batches) for row in self.batches[batch]]

    @property
    def sizes(self):
        """Rows of the batches that had any, in order."""
        return [len(self.batches[batch]) for batch in sorted(self.batches) if self.batches[batch]]

    def drain(self, records):
        """Waits until that many rows have come; the query goes on."""
        until(lambda: len(self.values) >= records or self.failed, SECONDS, f"{records} rows")
        if self.failed:
            raise self.query.exception()
        return self

    @property
    def failed(self):
        return self.query.exception() is not None

    def error(self):
        """The text of the failure that must come."""
        until(lambda: not self.query.isActive, SECONDS, "the query's failure")
        assert self.failed, "the query ended well"
        return str(self.query.exception())

    def finish(self):
        """Waits for a query that ends by itself."""
        assert self.query.awaitTermination(SECONDS), "the query goes on"
        return self

    def settle(self):
        """Waits until nothing is new and the last batch is committed."""
        self.query.processAllAvailable()
        return self

    def stop(self):
        self.query.stop()
        return self


def frame_of(spark, path, **given):
    reader = spark.readStream.format("replayable_socket").option("bufferPath", str(path))
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load()
