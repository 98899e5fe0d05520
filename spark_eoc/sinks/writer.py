"""The callable for ``foreachBatch``: everything about exactly-once that all sinks share."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from spark_eoc.errors import (
    BadRowError,
    BatchTooLargeError,
    ConfigError,
    DeadLetterLimitError,
    FencedError,
    HalfAppliedError,
    ReplayMismatchError,
    SinkBehindError,
    SinkError,
    SinkUnavailableError,
    SparkEocError,
)
from spark_eoc.failpoints import hit
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.checkpoint import (
    Identity,
    identify,
    new_run_id,
    offsets_digest,
    run_key,
)
from spark_eoc.sinks.dead_letters import DEFAULT_LIMIT, check_limit
from spark_eoc.sinks.entries import Call, Control, Fingerprint, Refused, Staged, UnitEntry
from spark_eoc.sinks.frame import check_marks, describe_columns, hashed, with_hashes
from spark_eoc.sinks.ledger import (
    Compare,
    check_totals,
    decide_close,
    decide_open,
    decide_publish,
    decide_replay,
)
from spark_eoc.sinks.split import Split
from spark_eoc.sinks.store import Column, Sink
from spark_eoc.sinks.task import (
    REPORT_SCHEMA,
    FingerprintPass,
    Report,
    StagePass,
    WritePass,
)

LOGGER = logging.getLogger("spark_eoc.sinks")
_REFUSALS: dict[str, type[SparkEocError]] = {
    kind.__name__: kind
    for kind in (
        FencedError,
        ReplayMismatchError,
        HalfAppliedError,
        SinkBehindError,
        BadRowError,
        DeadLetterLimitError,
        BatchTooLargeError,
        SinkUnavailableError,
    )
}


@dataclass(frozen=True)
class WriterOptions:
    """The arguments that every writer takes; ConfigError names one that can't work.

    See the README for their meaning; all have a default.
    """

    writer_id: str | None = None
    checkpoint_location: str | None = None
    atomicity: str = "partition"
    partitioning: str = "source"
    num_partitions: int | None = None
    partition_by: tuple[str, ...] = ()
    on_bad_row: str = "fail"
    dead_letter_limit: int | None = None
    on_new_checkpoint: str = "refuse"

    def __post_init__(self) -> None:
        _one_of("atomicity", self.atomicity, ("partition", "batch"))
        _one_of("partitioning", self.partitioning, ("source", "hash"))
        _one_of("on_bad_row", self.on_bad_row, ("fail", "dead_letter"))
        _one_of("on_new_checkpoint", self.on_new_checkpoint, ("refuse", "adopt"))
        check_limit(self.on_bad_row, self.dead_letter_limit)
        if self.partitioning == "hash" and not (self.num_partitions or 0) > 0:
            raise ConfigError(
                'partitioning="hash" needs num_partitions; a batch that was begun keeps its own',
                next_step="pass num_partitions=<a positive number>",
            )
        if self.partitioning == "source" and (self.num_partitions or self.partition_by):
            raise ConfigError(
                'num_partitions and partition_by belong to partitioning="hash"',
                next_step='pass partitioning="hash" with them, or leave them out',
            )

    @property
    def split(self) -> Split:
        """How a batch that this writer begins is split."""
        return Split(self.partitioning, self.num_partitions, self.partition_by)


def _one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(
            f"{name}={value!r} is not known", next_step=f"use one of {', '.join(known)}"
        )


class Writer:
    """Writes each batch to ``sink`` exactly once; give it to ``foreachBatch``.

    When a call returns, every row of the batch and its ledger entries are durable. A batch that
    Spark runs again is compared, partition by partition, and not written again. Raises an error of
    :mod:`spark_eoc.errors` where exactly once can't be kept.
    """

    def __init__(self, sink: Sink, options: WriterOptions) -> None:
        if options.atomicity == "batch" and type(sink).stage is Sink.stage:
            sink.check_batch()
        dead_letters = options.on_bad_row == "dead_letter"
        if dead_letters and options.atomicity == "batch" and not sink.letters_in_whole_batches:
            raise ConfigError(
                f'on_bad_row="dead_letter" does not go with atomicity="batch" in '
                f"{type(sink).__name__}",
                next_step='use atomicity="partition", or on_bad_row="fail"',
            )
        self._limit = (options.dead_letter_limit or DEFAULT_LIMIT) if dead_letters else None
        self._sink = sink if self._limit is None else sink.with_dead_letters(self._limit)
        self._options = options
        self._own_run_id = new_run_id()
        self._runs: dict[tuple[str, str], _Run] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._sink!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_sink": self._sink, "_options": self._options, "_limit": self._limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy in another process is another run, where Spark names none.
        self.__dict__.update(state, _own_run_id=new_run_id(), _runs={})

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes ``df`` as batch ``batch_id``; one Spark action, two for a partly applied batch."""
        columns = describe_columns(df)
        run = self._run(df)
        if run.columns != columns:
            check_marks(df, self._sink.marks())
            target = self._sink.check(columns)
            if self._options.atomicity == "batch":
                self._sink.check_batch()
            run.writer_id, run.columns = self._options.writer_id or target, columns
            run.target = target
        call = self._call(run, batch_id, offsets_digest(df, run.identity.root, batch_id))
        hit("batch.before_open")
        decision = self._sink.open_batch(
            call.writer_id,
            batch_id,
            lambda view: decide_open(view, replace(call, age_us=run.age_us())),
        )
        opened = None if isinstance(decision, Compare) else decision.control
        split = self._split(batch_id, opened)
        names = tuple(column.name for column in columns)
        batch = _Batch(self._sink, call, self._frame(df, columns, split), names, self._limit)
        if isinstance(decision, Compare):
            batch.compute_only(decision)
            return
        if decision.reset:
            LOGGER.warning(
                "writer_id %r now belongs to query %s (on_new_checkpoint='adopt'); what its source "
                "reads again is written again. Take 'adopt' out again: it holds for each new "
                "checkpoint",
                call.writer_id,
                call.query_id,
            )
        run.opened = True
        hit("batch.after_open")
        batch.write(decision.control)

    def _run(self, df: DataFrame) -> _Run:
        key = run_key(df, self._own_run_id)
        if key not in self._runs:
            location = self._options.checkpoint_location
            self._runs[key] = _Run(identify(df, location, self._own_run_id))
        return self._runs[key]

    def _call(self, run: _Run, batch_id: int, digest: str | None) -> Call:
        options = self._options
        settings = {"atomicity": options.atomicity, **run.identity.settings}
        deciding = {"target": run.target, **self._sink.options()}
        return Call(
            writer_id=run.writer_id,
            query_id=run.identity.query_id,
            run_id=run.identity.run_id,
            batch_id=batch_id,
            token=secrets.token_hex(16),
            first=not run.opened,
            offsets_digest=digest,
            adopt=options.on_new_checkpoint == "adopt",
            split=options.split.text(settings, deciding),
            atomicity=options.atomicity,
        )

    def _split(self, batch_id: int, control: Control | None) -> Split:
        """That of the run which began the batch: another one would match nothing of it.

        But not one that parts rows which must meet, as that of a run before ``delete_when`` was
        given. Then nothing of the batch may be applied yet, which the comparison will tell.
        """
        wanted = self._options.split
        begun = wanted if control is None else Split.of(control.split)
        if not begun.unites(self._sink.together()):
            return wanted
        if begun != wanted:
            LOGGER.info("batch %d was begun as %s and is completed so", batch_id, begun)
        return begun

    def _frame(self, df: DataFrame, columns: Sequence[Column], split: Split) -> DataFrame:
        frame = with_hashes(df, columns, self._sink.marks())
        if split.partitioning == "hash":
            return hashed(frame, columns, split.num_partitions or 1, split.partition_by)
        return frame


class _Run:
    """What a writer remembers of one run of a query; nothing of it decides about rows."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._began = time.monotonic() - identity.trigger_age_us / 1e6
        self.opened = False
        self.columns: Sequence[Column] | None = None
        self.writer_id = self.target = ""

    def age_us(self) -> int:
        """Microseconds since the run's first trigger began."""
        return int((time.monotonic() - self._began) * 1e6)


@dataclass(frozen=True)
class _Batch:
    """One batch on its way: the passes over its frame, and its close.

    ``frame`` is the one that the caller gave, made ready to be written; ``limit`` is the most dead
    letters that it may have, None where a bad row fails.
    """

    sink: Sink
    call: Call
    frame: DataFrame
    names: tuple[str, ...]
    limit: int | None = None

    def compute_only(self, decision: Compare) -> None:
        """Computes a complete batch to its end: skipping that kills a stateful query."""
        LOGGER.info("batch %d is complete already; it is not written again", self.call.batch_id)
        reports = self._collect(FingerprintPass(self.sink, self.names))
        if decision.by_totals:
            check_totals(decision.completed, Fingerprint.sum([r.fingerprint for r in reports]))

    def write(self, control: Control) -> None:
        """Writes what is missing of the batch, and completes it.

        A batch that was begun in partition atomicity is completed in it: its readers have seen a
        part of it, and what they have seen must fit.
        """
        stored = self.sink.units(self.call.writer_id, self.call.batch_id)
        if self.call.atomicity == "partition":
            self._write_units(control, stored)
        elif stored:
            call = replace(self.call, atomicity="partition")
            replace(self, call=call)._write_units(control, stored)
        else:
            self._write_whole(control)

    def _write_whole(self, control: Control) -> None:
        """Batch atomicity: stages all partitions, then publishes what came back, in one step."""
        call = self.call
        self._clear_staged()
        watch = StageWatch(self.frame)
        reports = self._collect(
            StagePass(
                self.sink, self.names, call.writer_id, call.batch_id, control.epoch, control.token
            )
        )
        staged = [Staged(r.partition, r.staging_id, r.fingerprint) for r in reports if r.staging_id]
        try:
            _raise_refusal(reports)
            if watch.repeated():
                raise repeated_stage(call.batch_id, "nothing of this batch")
            hit("batch.before_publish")
            self.sink.publish(
                call.writer_id,
                call.batch_id,
                staged,
                lambda view: decide_publish(view, staged, call, len(reports)),
            )
        except BatchTooLargeError:
            # What is too large may never be published, and would lie there for good.
            self.sink.discard_staged(call.writer_id, call.batch_id, control.epoch, staged)
            raise
        hit("batch.after_publish")
        self._clear_staged()

    def _clear_staged(self) -> None:
        try:
            self.sink.clear_staged(self.call.writer_id)
        except SparkEocError as error:
            LOGGER.warning("what dead runs have staged is left for the next batch: %s", error)

    def _write_units(self, control: Control, stored: Sequence[UnitEntry]) -> None:
        watch = StageWatch(self.frame)
        if stored:
            reported, partitions = self._write_rest(control, stored)
        else:
            reports = self._collect(self._write_pass(control))
            self._heed(reports)
            reported, partitions = _fingerprints(reports), len(reports)
        if watch.repeated():
            applied = f"{sum(f.rows for f in reported.values())} rows; the batch stays open"
            raise repeated_stage(self.call.batch_id, applied)
        hit("batch.before_close")
        self.sink.close_batch(
            self.call.writer_id,
            self.call.batch_id,
            lambda view, units: decide_close(
                view, units, reported, self.call, partitions, dead_letter_limit=self.limit
            ),
        )
        hit("batch.after_close")

    def _write_rest(
        self, control: Control, stored: Sequence[UnitEntry]
    ) -> tuple[dict[int, Fingerprint], int]:
        entries = {entry.partition: entry for entry in stored}
        LOGGER.info(
            "batch %d has %d partitions applied already; it is compared first",
            self.call.batch_id,
            len(entries),
        )
        frame = self.frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            batch = replace(self, frame=frame)
            reports = batch._collect(FingerprintPass(self.sink, self.names, entries))
            computed = _fingerprints(reports)
            prefixes = {r.partition: r.prefix for r in reports if r.prefix is not None}
            if not decide_replay(stored, computed, prefixes, control.split, self.call.split):
                return {p: entry.fingerprint for p, entry in entries.items()}, len(reports)
            done = frozenset(p for p, entry in entries.items() if entry.complete)
            self._heed(batch._collect(self._write_pass(control, computed, done)))
            return computed, len(reports)
        finally:
            frame.unpersist()

    def _heed(self, reports: Sequence[Report]) -> None:
        """Logs the dead letters that tasks wrote, and raises what they were refused for."""
        for report in reports:
            if report.dead_letters:
                LOGGER.warning(
                    "batch %d, partition %d: %d of %d rows were refused and put aside in %s",
                    self.call.batch_id,
                    report.partition,
                    report.dead_letters,
                    report.fingerprint.rows,
                    self.sink.dead_letters_at,
                )
        _raise_refusal(reports)

    def _write_pass(
        self,
        control: Control,
        expected: Mapping[int, Fingerprint] | None = None,
        done: frozenset[int] = frozenset(),
    ) -> WritePass:
        call = self.call
        return WritePass(
            self.sink,
            self.names,
            call.writer_id,
            call.batch_id,
            control.epoch,
            control.token,
            expected,
            done,
        )

    def _collect(self, task: FingerprintPass | WritePass | StagePass) -> list[Report]:
        rows = self.frame.mapInArrow(task, REPORT_SCHEMA).collect()
        return [Report.of_row(tuple(row)) for row in rows]


def repeated_stage(batch_id: int, applied: str) -> ReplayMismatchError:
    """A second pass in this run would prove nothing: a batch's frame keeps its shuffles, so it
    would read what both attempts left there, and agree with itself. A restarted run computes the
    batch anew, and compares what is applied with that.
    """
    return ReplayMismatchError(
        f"Spark attempted a stage of batch {batch_id} twice (an executor was lost), so its "
        "partitions may be of two computations that do not fit",
        applied=applied,
        next_step="restart the query, which computes the batch anew and compares",
    )


def _fingerprints(reports: Sequence[Report]) -> dict[int, Fingerprint]:
    return {r.partition: r.fingerprint for r in reports if r.fingerprint.rows}


def _raise_refusal(reports: Sequence[Report]) -> None:
    refused = [report.outcome for report in reports if isinstance(report.outcome, Refused)]
    for name, kind in _REFUSALS.items():
        for refusal in refused:
            if refusal.error == name:
                raise kind(refusal.what, applied=refusal.applied, next_step=refusal.next_step)
    if refused:
        raise SinkError(refused[0].what, applied=refused[0].applied, next_step=refused[0].next_step)
