"""The product's own writer on Arrow tables, in this process: a batch without Spark, within
milliseconds, whose tasks a test can order, fail, hold and run again later.

Only what asks the JVM is replaced: identity, the hash of each row, conditions beside the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_eoc.sinks.checkpoint import Identity
from spark_eoc.sinks.frame import describe_columns
from spark_eoc.sinks.rows import HASH_COLUMN
from spark_eoc.sinks.split import Split
from spark_eoc.sinks.store import Column
from spark_eoc.sinks.writer import Writer, _Run

Row = Mapping[str, Any]
Batches = Iterator[pa.RecordBatch]


class JobFailedError(Exception):
    """A task was told to fail before it began, as if its executor was lost for good."""


@dataclass
class LocalTask:
    """One task that was run; a copy of it, or a straggler, is :meth:`again`."""

    run: Callable[[Batches], Batches]
    partition: int
    table: pa.Table

    def again(self) -> list[tuple[Any, ...]]:
        """Its result rows, of one more try."""
        with _task_context(self.partition):
            batches = list(self.run(iter(self.table.to_batches())))
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@dataclass
class LocalFrame:
    """What a writer needs of a DataFrame; ``partitions`` are its rows, of one ``arrow`` schema.

    ``conditions`` evaluates, by their SQL text, what a sink wants beside the rows. ``before_task``
    is called before each task with its partition; whatever it raises fails the job there.
    ``order`` is the order in which the partitions are run. What was run is kept in ``tasks``.
    """

    partitions: Sequence[Sequence[Row]]
    arrow: pa.Schema
    conditions: Mapping[str, Callable[[Row], bool | None]] = field(default_factory=dict)
    before_task: Callable[[int], None] = lambda _: None
    order: Sequence[int] | None = None
    tasks: list[LocalTask] = field(default_factory=list)
    sparkSession: object = None

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.arrow)

    def persist(self, _: object = None) -> LocalFrame:
        """Nothing: rows of a table do not change."""
        return self

    def unpersist(self, *, blocking: bool = False) -> LocalFrame:
        """Nothing."""
        return self

    def mapInArrow(self, task: Callable[[Batches], Batches], _: str) -> LocalJob:
        """The job that runs ``task`` on every partition."""
        return LocalJob(self, task)

    def tables(self) -> list[pa.Table]:
        """The rows of each partition."""
        return [pa.Table.from_pylist(list(rows), self.arrow) for rows in self.partitions]


@dataclass(frozen=True)
class LocalJob:
    """Runs one task after the other; the first error is that of the job."""

    frame: LocalFrame
    task: Callable[[Batches], Batches]

    def collect(self) -> list[tuple[Any, ...]]:
        """All result rows, by partition."""
        frame, results = self.frame, dict[int, list[tuple[Any, ...]]]()
        tables = frame.tables()
        for partition in frame.order or range(len(tables)):
            frame.before_task(partition)
            task = LocalTask(self.task, partition, tables[partition])
            frame.tasks.append(task)
            results[partition] = task.again()
        return [row for partition in sorted(results) for row in results[partition]]


class _Local(Writer):
    """A writer that calls of ``LocalFrame`` frames; see :func:`local_run`."""

    _identity: Identity

    def _run(self, df: Any) -> _Run:
        key = "", self._own_run_id
        if key not in self._runs:
            run = _Run(self._identity)
            # As a first call does, but for the conditions, which Spark would have to parse.
            run.columns = describe_columns(df)
            target = self._sink.check(run.columns)
            if self._options.atomicity == "batch":
                self._sink.check_batch()
            run.writer_id, run.target = self._options.writer_id or target, target
            self._runs[key] = run
        return self._runs[key]

    def _frame(self, df: Any, columns: Sequence[Column], split: Split) -> Any:
        marks = {name: mark.expression for name, mark in self._sink.marks().items()}
        parts: Sequence[Sequence[Row]] = df.partitions
        if split.partitioning == "hash":
            by = split.partition_by or tuple(column.name for column in columns)
            parts = _by_content(parts, by, split.num_partitions or 1)
            df = replace(df, order=None)
        return _Prepared(**{**vars(df), "partitions": parts}, marks=marks)


@dataclass
class _Prepared(LocalFrame):
    """As ``with_hashes`` makes it: columns by number, conditions, hash."""

    marks: Mapping[str, str] = field(default_factory=dict)

    def tables(self) -> list[pa.Table]:
        return [
            self._prepared(rows, table)
            for rows, table in zip(self.partitions, super().tables(), strict=True)
        ]

    def _prepared(self, rows: Sequence[Row], table: pa.Table) -> pa.Table:
        plain = table.rename_columns([f"c{number}" for number in range(table.num_columns)])
        for name, text in self.marks.items():
            found = [bool(self.conditions[text](row)) for row in rows]
            plain = plain.append_column(name, pa.array(found, pa.bool_()))
        hashes = pa.array([_hash(row) for row in table.to_pylist()], pa.int64())
        return plain.append_column(HASH_COLUMN, hashes)


def _hash(row: Row) -> int:
    text = repr(sorted(row.items())).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little", signed=True)


def _by_content(parts: Sequence[Sequence[Row]], by: Sequence[str], count: int) -> list[list[Row]]:
    split: list[list[Row]] = [[] for _ in range(count)]
    for row in (row for part in parts for row in part):
        split[_hash({name: row[name] for name in by}) % count].append(row)
    return split


def local_run(writer: Writer, query_id: str, run_id: str, checkpoint: str | None = None) -> Writer:
    """Makes ``writer`` a run of a query that is called with :class:`LocalFrame` frames.

    Give each run a writer of its own. ``checkpoint`` is a folder with ``offsets/<batch>``; without
    it a batch that is complete is compared by its totals.
    """
    writer.__class__ = type(f"Local{type(writer).__name__}", (_Local, type(writer)), {})
    settings = {"spark.sql.shuffle.partitions": "local"}
    # A run that starts within the milliseconds in which the one before died would be taken for the
    # older of the two; Spark needs longer than that.
    age_us = -10_000_000
    vars(writer)["_identity"] = Identity(query_id, run_id, checkpoint, age_us, settings)
    return writer


@contextmanager
def _task_context(partition: int) -> Iterator[None]:
    context = object.__new__(TaskContext)
    context._partitionId, context._stageId, context._attemptNumber = partition, 0, 0
    before, TaskContext._taskContext = TaskContext._taskContext, context
    try:
        yield
    finally:
        TaskContext._taskContext = before
