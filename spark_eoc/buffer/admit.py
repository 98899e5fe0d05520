"""Which blocks the log takes, and what they do to the producers' sequence numbers; pure."""

from __future__ import annotations

from collections.abc import Mapping

from spark_eoc.buffer.block import MAX_PRODUCER_BYTES, LineBlock, ProducerState
from spark_eoc.buffer.columns import check_offsets
from spark_eoc.buffer.frame import MAX_DATA_BYTES, MAX_RECORDS, MAX_RUNS
from spark_eoc.errors import RecordTooLargeError


def check_block(block: LineBlock) -> None:
    """Raises RecordTooLargeError for a block that no frame can hold, ValueError for one that is
    not in form."""
    if block.records > MAX_RECORDS or len(block.runs) > MAX_RUNS:
        raise RecordTooLargeError(
            f"a block of {block.records} records and {len(block.runs)} runs is more than a frame "
            "holds",
            next_step="split it",
        )
    if block.data_bytes > MAX_DATA_BYTES:
        raise RecordTooLargeError(
            f"a block of {block.data_bytes} bytes is more than int32 offsets reach",
            next_step="split it",
        )
    if block.records < 0:
        raise ValueError("a block has no offsets")
    if block.runs and sum(run.records for run in block.runs) != block.records:
        raise ValueError("the runs of a block don't add up to its records")
    if any(len(run.producer) > MAX_PRODUCER_BYTES or run.records < 1 for run in block.runs):
        raise ValueError("a run is empty, or its producer's name is too long")
    check_offsets(block)


def states_after(
    block: LineBlock, known: Mapping[bytes, ProducerState], time_us: int
) -> dict[bytes, ProducerState]:
    """The states that a block changes. Raises ValueError unless its sequence numbers rise: whoever
    appends has to drop what the log holds already."""
    states: dict[bytes, ProducerState] = {}
    for run in block.runs:
        if not run.producer:
            continue
        before = states.get(run.producer) or known.get(run.producer)
        if before is not None and run.first_sequence <= before.last_sequence:
            raise ValueError(
                f"sequence {run.first_sequence} of producer {run.producer!r} is in the log "
                f"already, which holds up to {before.last_sequence}"
            )
        states[run.producer] = ProducerState(run.first_sequence + run.records - 1, time_us)
    return states
