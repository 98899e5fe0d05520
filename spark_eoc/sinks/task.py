"""What runs in Spark's tasks: one callable for pass 1, one for writing; both travel by value.

Each task yields one result row, a :class:`Report`. Typed refusals are rows too, since an
exception would reach the driver as text, after four retries on a cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Fingerprint,
    Outcome,
    Refused,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.rows import Rows, read_rows
from spark_eoc.sinks.store import Sink

#: Spark's schema of the result rows, in the order of Report's fields.
REPORT_SCHEMA = (
    "partition INT, fingerprint STRING, prefix STRING, outcome STRING, what STRING, "
    "applied STRING, next_step STRING, stage_id INT, attempt INT, staging_id STRING, "
    "dead_letters INT"
)
_ARROW_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("fingerprint", pa.string()),
        ("prefix", pa.string()),
        ("outcome", pa.string()),
        ("what", pa.string()),
        ("applied", pa.string()),
        ("next_step", pa.string()),
        ("stage_id", pa.int32()),
        ("attempt", pa.int32()),
        ("staging_id", pa.string()),
        ("dead_letters", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Report:
    """What one task says of its partition. ``outcome`` is None where nothing was to be written.

    ``prefix`` is the fingerprint of as many rows as an incomplete unit entry has done;
    ``staging_id`` names what was staged, in batch atomicity.
    """

    partition: int
    fingerprint: Fingerprint
    prefix: Fingerprint | None
    outcome: Outcome | None
    stage_id: int
    attempt: int
    staging_id: str | None = None

    @classmethod
    def of_row(cls, row: tuple[object, ...]) -> Report:
        """From a collected result row."""
        (
            partition, fingerprint, prefix, outcome, what, applied, step, stage, attempt, staged,
            dead_letters,
        ) = row  # fmt: skip
        return cls(
            int(str(partition)),
            Fingerprint.parse(str(fingerprint)),
            None if prefix is None else Fingerprint.parse(str(prefix)),
            _outcome(outcome, what, applied, step, dead_letters),
            int(str(stage)),
            int(str(attempt)),
            None if staged is None else str(staged),
        )

    @property
    def dead_letters(self) -> int:
        """Rows that this task put aside."""
        return self.outcome.dead_letters if isinstance(self.outcome, Applied) else 0

    def batch(self) -> pa.RecordBatch:
        """As the task's only output batch."""
        refused = self.outcome if isinstance(self.outcome, Refused) else None
        name = None if self.outcome is None else type(self.outcome).__name__
        values = [
            self.partition,
            str(self.fingerprint),
            None if self.prefix is None else str(self.prefix),
            refused.error if refused else name,
            refused.what if refused else None,
            refused.applied if refused else None,
            refused.next_step if refused else None,
            self.stage_id,
            self.attempt,
            self.staging_id,
            self.dead_letters,
        ]
        arrays = [pa.array([v], f.type) for v, f in zip(values, _ARROW_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def _outcome(
    name: object, what: object, applied: object, next_step: object, dead_letters: object
) -> Outcome | None:
    if name is None:
        return None
    if name == "Applied":
        return Applied(int(str(dead_letters)))
    if name == "AlreadyApplied":
        return AlreadyApplied()
    return Refused(
        str(name),
        str(what),
        None if applied is None else str(applied),
        None if next_step is None else str(next_step),
    )


@dataclass(frozen=True)
class FingerprintPass:
    """Pass 1, and the run of a complete batch: computes everything, writes nothing.

    ``names`` are those of the columns, in order; they travel to the task as numbers.
    """

    sink: Sink
    names: tuple[str, ...]
    stored: Mapping[int, UnitEntry] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = read_rows(batches, self.names)
        partition = _context().partitionId()
        entry = self.stored.get(partition)
        prefix = None
        if rows is not None and entry is not None and not entry.complete:
            prefix = self.sink.applied_part(rows, entry)
        yield _report(rows, prefix, None)


@dataclass(frozen=True)
class WritePass:
    """Writes each partition as one unit; ``names`` as in :class:`FingerprintPass`.

    With ``expected``, the fingerprints of pass 1, a partition is written only if it is equal to
    what pass 1 saw. Partitions in ``done`` are complete in the ledger and not touched.
    """

    sink: Sink
    names: tuple[str, ...]
    writer_id: str
    batch_id: int
    epoch: int
    token: str
    expected: Mapping[int, Fingerprint] | None = None
    done: frozenset[int] = frozenset()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = read_rows(batches, self.names)
        partition = _context().partitionId()
        found = Fingerprint() if rows is None else rows.fingerprint()
        outcome: Outcome | None
        if self.expected is not None and self.expected.get(partition, Fingerprint()) != found:
            outcome = _changed(partition, self.batch_id)
        elif rows is None:
            outcome = None
        elif partition in self.done:
            outcome = AlreadyApplied()
        else:
            unit = Unit(self.writer_id, partition, self.batch_id, self.epoch, self.token, found)
            outcome = self.sink.apply(unit, self.sink.arrange(rows))
        yield _report(rows, None, outcome, found)


@dataclass(frozen=True)
class StagePass:
    """Stages each partition under an id of its own, in batch atomicity; one pass, no comparison.

    The id is new at every try, so that of a task's copies exactly the one that came back is
    published; ``names`` as in :class:`FingerprintPass`.
    """

    sink: Sink
    names: tuple[str, ...]
    writer_id: str
    batch_id: int
    epoch: int
    token: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = read_rows(batches, self.names)
        if rows is None:
            yield _report(None, None, None)
            return
        partition, found = _context().partitionId(), rows.fingerprint()
        unit = Unit(self.writer_id, partition, self.batch_id, self.epoch, self.token, found)
        staging_id = uuid.uuid4().hex
        outcome = self.sink.stage(unit, staging_id, self.sink.arrange(rows))
        yield _report(rows, None, outcome, found, staging_id)


def _changed(partition: int, batch_id: int) -> Refused:
    return Refused(
        "ReplayMismatchError",
        f"partition {partition} of batch {batch_id} changed between the two passes over the batch",
        "nothing of this partition now",
        'make the plan repeatable, or use partitioning="hash" or atomicity="batch"',
    )


def _report(
    rows: Rows | None,
    prefix: Fingerprint | None,
    outcome: Outcome | None,
    found: Fingerprint | None = None,
    staging_id: str | None = None,
) -> pa.RecordBatch:
    context = _context()
    if found is None:
        found = Fingerprint() if rows is None else rows.fingerprint()
    return Report(
        context.partitionId(),
        found,
        prefix,
        outcome,
        context.stageId(),
        context.attemptNumber(),
        staging_id,
    ).batch()


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not in a Spark task")
    return context
