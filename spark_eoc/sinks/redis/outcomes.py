"""What a task says when it could not write or stage its partition, as data for the driver."""

from __future__ import annotations

from spark_eoc.errors import SparkEocError
from spark_eoc.sinks.entries import Refused, Unit
from spark_eoc.sinks.ledger import fenced

MEND_ROW = "mend the row in the query (filter or coalesce it) or the key in Redis, then restart"
_SHOWN_KEY_BYTES = 100


def refused(error: SparkEocError) -> Refused:
    """An error that the task met, to be raised by the driver."""
    return Refused(type(error).__name__, error.what, error.applied, error.next_step)


def bad_row(unit: Unit, key: bytes | None, problem: str, applied: str) -> Refused:
    """A row of the unit can't be written; ``key`` is its target key."""
    what = bad_row_text(unit.partition, unit.batch_id, key, problem)
    return Refused("BadRowError", what, applied, MEND_ROW)


def bad_row_text(partition: int, batch_id: int, key: bytes | None, problem: str) -> str:
    """What BadRowError says of the row for ``key``."""
    shown = "NULL" if key is None else repr(key[:_SHOWN_KEY_BYTES])[1:]
    return (
        f"a row for key {shown} of partition {partition}, batch {batch_id}, can't be written: "
        f"{problem}"
    )


def fenced_or_behind(unit: Unit, epoch: str) -> Refused:
    """The refusal where the control entry shows ``epoch`` and another token; "" for no entry."""
    if epoch and int(epoch) >= unit.epoch:
        return fenced(unit)
    return Refused(
        "SinkBehindError",
        f"Redis went back to an older state while batch {unit.batch_id} was written: its "
        f"ledger shows epoch {epoch or 'nothing'} and this call opened epoch {unit.epoch}",
        "what that older state holds",
        "restart the query; it will be refused if batches are missing in Redis, and then a "
        "checkpoint as old as the sink must be restored",
    )
