"""One run of a query in batch atomicity, its calls made by hand, without Spark."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from spark_eoc.sinks.entries import Applied, Call, Fingerprint, Outcome, Staged, Unit
from spark_eoc.sinks.ledger import Open, decide_close, decide_open, decide_publish
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column


class Whole:
    """Opens, stages and publishes; ``make`` turns what a test calls rows into rows."""

    def __init__(
        self, sink: MySQLSink, run_id: str, columns: Sequence[Column], make: Callable[..., Rows]
    ) -> None:
        self.sink, self.run_id, self.make = sink, run_id, make
        self.sink.check(columns)
        self.sink.check_batch()
        self.call: Call | None = None
        self.unit = Unit("w", 0, 0, 0, "", Fingerprint())

    def open(self, batch_id: int = 0) -> None:
        """Opens a batch, as a call of its own."""
        first = self.call is None
        token = secrets.token_hex(16)
        call = Call("w", "q", self.run_id, batch_id, token, first, atomicity="batch")
        decision = self.sink.open_batch("w", batch_id, lambda view: decide_open(view, call))
        assert isinstance(decision, Open), decision
        self.call = call
        self.unit = Unit("w", 0, batch_id, decision.control.epoch, call.token, Fingerprint())

    def try_stage(self, partition: int, *rows: object) -> tuple[Staged, Outcome]:
        """One try of a task: what it would report, and its outcome."""
        made = self.sink.arrange(self.make(*rows))
        staged = Staged(partition, uuid.uuid4().hex, made.fingerprint())
        unit = replace(self.unit, partition=partition, fingerprint=staged.fingerprint)
        return staged, self.sink.stage(unit, staged.staging_id, made)

    def stage(self, partition: int, *rows: object) -> Staged:
        """A task that succeeds."""
        staged, outcome = self.try_stage(partition, *rows)
        assert outcome == Applied(), outcome
        return staged

    def publish(self, *staged: Staged) -> None:
        """Publishes what came back, and completes the batch."""
        call = self.call
        assert call is not None
        self.sink.publish(
            "w",
            call.batch_id,
            list(staged),
            lambda view: decide_publish(view, staged, call, len(staged)),
        )

    def clear(self) -> None:
        """As after an open, and after a publish."""
        self.sink.clear_staged("w")

    def write(self, batch_id: int, *partitions: Sequence[object]) -> None:
        """A whole batch without a fault, as the writer orders it."""
        self.open(batch_id)
        self.clear()
        staged = [self.stage(p, *rows) for p, rows in enumerate(partitions) if rows]
        self.publish(*staged)
        self.clear()


def write_by_partitions(
    sink: MySQLSink,
    columns: Sequence[Column],
    make: Callable[..., Rows],
    batches: Sequence[Sequence[Sequence[object]]],
) -> None:
    """The same batches in partition atomicity, one partition after the other."""
    sink.check(columns)
    for batch_id, partitions in enumerate(batches):
        call = Call("w", "q", "by partitions", batch_id, secrets.token_hex(16), batch_id == 0)
        opened = sink.open_batch("w", batch_id, lambda view, call=call: decide_open(view, call))
        assert isinstance(opened, Open)
        prints = {}
        for number, rows in enumerate(partitions):
            made = sink.arrange(make(*rows))
            prints[number] = made.fingerprint()
            unit = Unit("w", number, batch_id, opened.control.epoch, call.token, prints[number])
            assert sink.apply(unit, made) == Applied()
        sink.close_batch(
            "w",
            batch_id,
            lambda view, units, c=call, p=prints: decide_close(view, units, p, c, len(p)),
        )
