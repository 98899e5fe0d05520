"""A sink driven by hand, without Spark: what the driver and the tasks of a run do, step by step."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_eoc.sinks.entries import Call, Control, Fingerprint, LedgerView, Outcome, Staged, Unit
from spark_eoc.sinks.ledger import Compare, Open, decide_close, decide_open, decide_publish
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column, Sink

_TOKENS = itertools.count()


def rows_of(table: pa.Table | Mapping[str, Any]) -> Rows:
    """Rows with a hash of each one's content, as the JVM makes one."""
    if not isinstance(table, pa.Table):
        table = pa.table(dict(table))
    digests = (hashlib.sha256(repr(row).encode()).digest() for row in table.to_pylist())
    hashes = [int.from_bytes(digest[:8], "little", signed=True) for digest in digests]
    return Rows(table, pa.chunked_array([pa.array(hashes, pa.int64())]))


class Run:
    """One run of a query on one sink; every ``open`` is a call of its own, with a new token.

    ``check`` has been called when it is built. It pickles, so that a step can be made in another
    process.
    """

    def __init__(
        self,
        sink: Sink,
        columns: Sequence[Column],
        *,
        run_id: str = "run-1",
        writer_id: str = "w",
        query_id: str = "query-1",
    ) -> None:
        self.sink, self.run_id = sink, run_id
        self.writer_id, self.query_id = writer_id, query_id
        self.target = sink.check(columns)
        self.seen: LedgerView | None = None
        self.reported: dict[int, Fingerprint] = {}
        self.call: Call
        self.control: Control
        self._first = True

    def restarted(self, run_id: str) -> Run:
        """Another run of this query, on the same sink, which is not checked again."""
        again = copy(self)
        again.run_id, again._first, again.reported = run_id, True, {}
        return again

    def open(self, batch_id: int, **more: Any) -> Open | Compare:
        """Opens a batch; ``more`` are other fields of the call."""
        call = Call(
            self.writer_id,
            self.query_id,
            self.run_id,
            batch_id,
            hashlib.md5(b"%d" % next(_TOKENS), usedforsecurity=False).hexdigest(),
            self._first,
        )
        self.call = replace(call, **more)
        decision = self.sink.open_batch(self.writer_id, batch_id, self._decide)
        if isinstance(decision, Open):
            self._first = False
            self.control = decision.control
            self.reported = {}
        return decision

    def _decide(self, view: LedgerView) -> Open | Compare:
        self.seen = view
        return decide_open(view, self.call)

    def unit(self, partition: int, rows: Rows) -> Unit:
        """What a task of the newest call gets."""
        control = self.control
        return Unit(
            self.writer_id,
            partition,
            self.call.batch_id,
            control.epoch,
            control.token,
            rows.fingerprint(),
        )

    def apply(self, partition: int, rows: Rows) -> Outcome:
        """What a task does with its partition, which is then reported."""
        self.reported[partition] = rows.fingerprint()
        return self.sink.apply(self.unit(partition, rows), self.sink.arrange(rows))

    def close(self) -> None:
        """Completes the batch with what was reported."""
        self.sink.close_batch(
            self.writer_id,
            self.call.batch_id,
            lambda view, units: decide_close(
                view, units, self.reported, self.call, len(self.reported)
            ),
        )

    def stage(self, partition: int, rows: Rows) -> tuple[Staged, Outcome]:
        """One try of a task in batch atomicity: what it would report, and its outcome."""
        staged = Staged(partition, uuid.uuid4().hex, rows.fingerprint())
        unit = self.unit(partition, rows)
        return staged, self.sink.stage(unit, staged.staging_id, self.sink.arrange(rows))

    def publish(self, *staged: Staged) -> None:
        """Publishes what came back, which completes the batch."""
        self.sink.publish(
            self.writer_id,
            self.call.batch_id,
            staged,
            lambda view: decide_publish(view, staged, self.call, len(staged)),
        )

    def batch(self, batch_id: int, *partitions: Rows, **more: Any) -> list[Outcome]:
        """A whole batch; ``more`` are other fields of the call."""
        self.open(batch_id, **more)
        outcomes = [self.apply(number, rows) for number, rows in enumerate(partitions)]
        self.close()
        return outcomes
