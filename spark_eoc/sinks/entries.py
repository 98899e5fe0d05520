"""The ledger's entries, as values: what a sink stores beside the rows, and what a task reports.

A ledger holds per writer one :class:`Control`, per partition one :class:`UnitEntry` (of the newest
batch that wrote there), and a :class:`Completed` for each of the newest ``HISTORY`` batches.
Everything here is frozen, picklable and free of I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: How many complete batches a ledger remembers.
HISTORY = 100
#: Version of the way in which rows are hashed; two versions are never compared.
FINGERPRINT_VERSION = 1
#: ``last_complete`` of a writer that has completed nothing.
NO_BATCH = -1

_MODULUS = 1 << 64


@dataclass(frozen=True)
class Fingerprint:
    """Row count and order-free hash (a sum modulo 2^64) of a unit, a chunk or a whole batch."""

    rows: int = 0
    total: int = 0
    version: int = FINGERPRINT_VERSION

    def __add__(self, other: Fingerprint) -> Fingerprint:
        if self.version != other.version:
            raise ValueError(f"fingerprint versions {self.version} and {other.version} differ")
        return Fingerprint(
            self.rows + other.rows, (self.total + other.total) % _MODULUS, self.version
        )

    def __str__(self) -> str:
        return f"{self.rows}:{self.total:016x}:{self.version}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """The inverse of ``str``: the form in which ledgers store a fingerprint."""
        rows, total, version = text.split(":")
        return cls(int(rows), int(total, 16), int(version))

    @classmethod
    def sum(cls, parts: Sequence[Fingerprint]) -> Fingerprint:
        """The fingerprint of all parts together; of none, that of an empty batch."""
        whole = cls()
        for part in parts:
            whole = whole + part
        return whole


@dataclass(frozen=True)
class Control:
    """The one control entry of a writer: who owns it, and where it stands.

    ``open_batch`` is None when nothing is open. ``split`` names, as JSON, the settings that
    decided how the open batch was split, and the options that decide what its rows do.
    ``opened_us`` is the server's clock at the newest open.
    """

    query_id: str
    run_id: str
    epoch: int
    token: str
    open_batch: int | None
    last_complete: int
    split: str = "{}"
    opened_us: int = 0


@dataclass(frozen=True)
class UnitEntry:
    """What one partition has applied of its newest batch.

    ``fingerprint`` is that of the rows applied so far, in the order of :meth:`Sink.arrange`;
    ``complete`` is False while chunks of the partition are missing (a sink without transactions).
    ``parts``, of a sink that splits a partition further, are (part, rows applied of it): then the
    rows applied need not be the first ones.
    ``dead_letters`` counts those of these rows that were refused and put aside.
    """

    partition: int
    batch_id: int
    fingerprint: Fingerprint
    complete: bool = True
    parts: tuple[tuple[int, int], ...] = ()
    dead_letters: int = 0

    @property
    def rows_done(self) -> int:
        """Rows applied so far."""
        return self.fingerprint.rows


@dataclass(frozen=True)
class Completed:
    """History: one complete batch. ``offsets_digest`` is None where Spark's log was not seen."""

    batch_id: int
    offsets_digest: str | None
    partitions: int
    fingerprint: Fingerprint
    run_id: str
    atomicity: str = "partition"


@dataclass(frozen=True)
class LedgerView:
    """A writer's ledger as seen under the control entry's lock.

    ``history`` holds what is remembered, ``open_units`` counts the units stored for the open
    batch, ``now_us`` is the server's clock.
    """

    control: Control | None
    history: Mapping[int, Completed]
    open_units: int
    now_us: int


@dataclass(frozen=True)
class Call:
    """One call of a writer for one batch.

    ``first`` is True until a call of this run has opened a batch; ``age_us`` is how long ago the
    run's first call began, by a clock that goes on while the process is stopped; ``token`` is new
    and random for every call.
    """

    writer_id: str
    query_id: str
    run_id: str
    batch_id: int
    token: str
    first: bool
    age_us: int = 0
    offsets_digest: str | None = None
    adopt: bool = False
    split: str = "{}"
    atomicity: str = "partition"


@dataclass(frozen=True)
class Unit:
    """What a task needs to apply one partition: its place, its right to write, its content."""

    writer_id: str
    partition: int
    batch_id: int
    epoch: int
    token: str
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Staged:
    """One partition as a task staged it; ``staging_id`` is 32 hex digits, new at every try."""

    partition: int
    staging_id: str
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Applied:
    """The unit's rows and its entry became durable together, in this attempt. Of staged rows:
    they and what is known of them.

    ``dead_letters`` of the rows were refused and put aside in the same step.
    """

    dead_letters: int = 0


@dataclass(frozen=True)
class AlreadyApplied:
    """The unit was there already, with the same fingerprint; nothing was written."""


@dataclass(frozen=True)
class Refused:
    """The unit was not applied; ``error`` is the name of a class in :mod:`spark_eoc.errors`.

    It travels from task to driver as data, because an exception would arrive as text only, and
    be retried on a cluster.
    """

    error: str
    what: str
    applied: str | None = None
    next_step: str | None = None


Outcome = Applied | AlreadyApplied | Refused


def ledger_key(writer_id: str) -> bytes:
    """The 32 bytes under which a ledger keeps a writer.

    A hash in a binary column, because names that differ by case or by a trailing space must not
    meet, whatever the server's collation.
    """
    return hashlib.sha256(writer_id.encode()).digest()
