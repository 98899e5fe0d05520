"""The ledger's keys and texts in Redis.

Per writer three hashes, ``<prefix>:{<sha256 of the writer_id>}:control``, ``:units`` (field
partition) and ``:history`` (field batch id). The braces keep the three on one Cluster node. None
has a TTL. In batch atomicity there are also a hash for each staged partition,
``:staging:<staging id>`` (field number of the chunk, and ``entry``), and the set ``:staging`` of
them all, with members ``<epoch>:<batch id>:<staging id>``; with dead letters ``:given`` behind the
name of such a hash is one of its rows as the frame gave them.

A unit entry is ``<batch id>|<fingerprint>|<state>``, with ``<dead letters>|`` before the state if
there are any. State ``half`` is set by the first write of
a chunk and replaced by its last: found there later, the chunk failed between the two. In batch
atomicity there are no units, and what publishes a batch does so with field ``-1``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from spark_eoc.errors import HalfAppliedError
from spark_eoc.sinks.entries import Completed, Control, Fingerprint, UnitEntry, ledger_key

COMPLETE, PARTIAL, HALF = "complete", "partial", "half"
#: In place of a partition: a whole batch that is published at once.
BATCH = -1


@dataclass(frozen=True)
class LedgerKeys:
    """The keys of one writer; ``waited`` is what :mod:`~.replicas` writes, if anything."""

    control: str
    units: str
    history: str
    waited: str
    staging: str

    @classmethod
    def of(cls, prefix: str, writer_id: str) -> LedgerKeys:
        """For the ledger under ``prefix``."""
        base = f"{prefix}:{{{ledger_key(writer_id).hex()}}}"
        names = ("control", "units", "history", "waited", "staging")
        return cls(*(f"{base}:{name}" for name in names))

    def staged(self, staging_id: str) -> str:
        """The hash of one staged partition."""
        return f"{self.staging}:{staging_id}"

    def given(self, staging_id: str) -> str:
        """The hash of its rows as the frame gave them, where dead letters are kept."""
        return f"{self.staging}:{staging_id}:given"


def control_fields(writer_id: str, control: Control) -> dict[str, str]:
    """The control hash; ``open_batch`` is "" when nothing is open."""
    fields = {name: "" if value is None else str(value) for name, value in asdict(control).items()}
    return {"writer_id": writer_id, **fields}


def parse_control(fields: Mapping[str, str]) -> Control | None:
    """The inverse of :func:`control_fields`; None for a hash that is not there."""
    if not fields:
        return None
    return Control(
        query_id=fields["query_id"],
        run_id=fields["run_id"],
        epoch=int(fields["epoch"]),
        token=fields["token"],
        open_batch=int(fields["open_batch"]) if fields["open_batch"] else None,
        last_complete=int(fields["last_complete"]),
        split=fields["split"],
        opened_us=int(fields["opened_us"]),
    )


def unit_text(batch_id: int, fingerprint: Fingerprint, state: str, dead_letters: int = 0) -> str:
    """A unit entry's text."""
    counted = f"{dead_letters}|" if dead_letters else ""
    return f"{batch_id}|{fingerprint}|{counted}{state}"


def dead_letters_in(text: str) -> int:
    """How many of the rows in a unit entry's text were put aside; 0 for no entry."""
    parts = text.split("|")
    return int(parts[2]) if len(parts) > 3 else 0


def parse_unit(partition: int, text: str, key: str = "") -> UnitEntry:
    """The inverse; raises HalfAppliedError for an entry whose chunk failed half-way.

    ``key`` is where it lies, if that is not the units hash.
    """
    batch_id, fingerprint, *_, state = text.split("|")
    if state == HALF:
        raise half_applied(partition, text, key=key)
    return UnitEntry(
        partition,
        int(batch_id),
        Fingerprint.parse(fingerprint),
        complete=state == COMPLETE,
        dead_letters=dead_letters_in(text),
    )


def half_applied(partition: int, text: str, problem: str = "", key: str = "") -> HalfAppliedError:
    """The error of a chunk that failed after its first write."""
    batch_id, fingerprint, *_ = text.split("|")
    mended = text.rpartition("|")[0]
    if partition == BATCH:
        return _half_published(int(batch_id), problem)
    done = Fingerprint.parse(fingerprint).rows
    return HalfAppliedError(
        f"a chunk of partition {partition} of batch {batch_id} failed in Redis after its first "
        f"write{f' ({problem})' if problem else ''}",
        applied=f"the partition's first {done} rows, and an unknown part of the chunk after them",
        next_step="compare that chunk's keys with the source and undo its writes by hand, then set "
        f"field {partition} of {key or 'the units hash of the ledger'} to {mended}|{PARTIAL} and "
        "restart the query",
        partition=partition,
        batch_id=int(batch_id),
        rows_done=done,
    )


def _half_published(batch_id: int, problem: str) -> HalfAppliedError:
    return HalfAppliedError(
        f"the script that publishes batch {batch_id} failed in Redis after its first "
        f"write{f' ({problem})' if problem else ''}",
        applied="an unknown part of the batch",
        next_step="compare the batch's keys with the source and undo its writes by hand, then "
        f"delete field {BATCH} of the ledger's units hash and restart the query",
        batch_id=batch_id,
    )


def completed_text(completed: Completed) -> str:
    """A history entry, as JSON."""
    return json.dumps({**asdict(completed), "fingerprint": str(completed.fingerprint)})


def parse_completed(text: str) -> Completed:
    """The inverse of :func:`completed_text`."""
    fields = json.loads(text)
    return Completed(**{**fields, "fingerprint": Fingerprint.parse(fields["fingerprint"])})
