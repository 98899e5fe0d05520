"""A MySQL sink driven by hand, without Spark: what the driver and the tasks do, step by step."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_eoc.sinks.entries import Call, Fingerprint, Outcome, Unit
from spark_eoc.sinks.ledger import Open, decide_close, decide_open
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database

_TYPES = {
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.float64(): "double",
    pa.binary(): "binary",
}


def rows_of(table: pa.Table) -> Rows:
    """Rows with a hash of their content, as the JVM makes one."""
    digests = (hashlib.sha256(repr(row).encode()).digest() for row in table.to_pylist())
    hashes = [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]
    return Rows(table, pa.chunked_array([pa.array(hashes, pa.int64())]))


def columns_of(table: pa.Table) -> Sequence[Column]:
    return [Column(field.name, _TYPES[field.type]) for field in table.schema]


def sink_of(database: Database, table: str = "t", **arguments: Any) -> MySQLSink:
    """The sink of a writer that puts bad rows aside, unless the arguments say otherwise."""
    arguments.setdefault("on_bad_row", "dead_letter")
    arguments.setdefault("retry_minutes", 0.1)
    return MySQLWriter(database.url(), table, **arguments)._sink  # type: ignore[return-value]


class Run:
    """One run of a query on one sink; every ``open`` is a call of its own, with a new token."""

    _tokens = itertools.count()

    def __init__(self, sink: MySQLSink, run_id: str = "run-1") -> None:
        self.sink, self.run_id, self.first, self.writer_id = sink, run_id, True, "w"
        self.reported: dict[int, Fingerprint] = {}

    def open(self, batch_id: int = 0) -> None:
        """Opens a batch; what tasks need is kept."""
        self.sink._driver("making the ledger", self.sink._sql.create)
        self.call = Call(
            self.writer_id,
            "q",
            self.run_id,
            batch_id,
            f"token-{next(self._tokens)}",
            first=self.first,
        )
        decision = self.sink.open_batch(
            self.writer_id, batch_id, lambda view: decide_open(view, self.call)
        )
        assert isinstance(decision, Open)
        self.control, self.first, self.reported = decision.control, False, {}

    def apply(self, table: pa.Table, partition: int = 0) -> Outcome:
        """What a task does with its partition."""
        self.sink.check(columns_of(table))
        rows = rows_of(table)
        self.reported[partition] = rows.fingerprint()
        control = self.control
        unit = Unit(
            self.writer_id,
            partition,
            self.call.batch_id,
            control.epoch,
            control.token,
            rows.fingerprint(),
        )
        return self.sink.apply(unit, self.sink.arrange(rows))

    def close(self, limit: int | None = None) -> None:
        """Completes the batch with what the tasks reported."""
        self.sink.close_batch(
            self.writer_id,
            self.call.batch_id,
            lambda view, units: decide_close(
                view, units, self.reported, self.call, len(self.reported), dead_letter_limit=limit
            ),
        )

    def again(self) -> Run:
        """The next run of the query, on the same checkpoint."""
        return Run(replace(self.sink), self.run_id + "x")
