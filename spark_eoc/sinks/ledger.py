"""The ledger's decisions, pure: from what is stored and what a call wants to what may be done.

A store locks its control entry, reads a :class:`LedgerView`, lets one of these functions decide,
and makes the decision durable in the same atomic step. Each raises a typed error where going on
could lose or double rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_eoc.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeadLetterLimitError,
    FencedError,
    ReplayMismatchError,
    SinkBehindError,
    SparkEocError,
)
from spark_eoc.sinks.entries import (
    HISTORY,
    NO_BATCH,
    AlreadyApplied,
    Applied,
    Call,
    Completed,
    Control,
    Fingerprint,
    LedgerView,
    Outcome,
    Refused,
    Staged,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.options import changed_options, completed_options, split_alone

_NOTHING = "nothing of this call was applied"


@dataclass(frozen=True)
class Open:
    """The batch may be written under ``control``, which must be stored first.

    With ``reset`` units and history belong to another query and are deleted in the same step.
    """

    control: Control
    reset: bool = False


@dataclass(frozen=True)
class Compare:
    """The batch is complete: compute it to its end and write nothing.

    With ``by_totals`` Spark's log could not tell that it is the same batch; its fingerprint must
    equal ``completed.fingerprint``.
    """

    completed: Completed
    by_totals: bool = False


@dataclass(frozen=True)
class Close:
    """Store ``control`` and ``completed``; forget history below batch ``prune_below``."""

    control: Control
    completed: Completed
    prune_below: int


def decide_open(view: LedgerView, call: Call) -> Open | Compare:
    """What a call may do with its batch; raises if it may do nothing.

    Raises FencedError (another run owns the writer), SinkBehindError (the ledger is older than
    the checkpoint), CheckpointMismatchError (another query, or another history), ConfigError
    (a second call for this batch in this run) or ReplayMismatchError (what is applied of the batch
    was written with other options).
    """
    control = view.control
    if control is None:
        return _first_open(view, call)
    if (control.token, control.open_batch) == (call.token, call.batch_id):
        return Open(control)  # this very call opened it; only the answer was lost
    if control.query_id != call.query_id:
        return _adopt(view, control, call)
    if call.batch_id <= control.last_complete:
        return _compare(view, control, call)
    if call.batch_id > control.last_complete + 1:
        raise _behind(call, control.last_complete)
    _check_owner(view, control, call)
    reopened = control.open_batch == call.batch_id and view.open_units > 0
    if reopened:
        _check_options(view, control, call)
    return Open(
        replace(
            control,
            run_id=call.run_id,
            epoch=control.epoch + 1,
            token=call.token,
            open_batch=call.batch_id,
            split=completed_options(control.split, call.split) if reopened else call.split,
            opened_us=view.now_us,
        )
    )


def _check_options(view: LedgerView, control: Control, call: Call) -> None:
    changed = changed_options(control.split, call.split)
    if changed:
        raise ReplayMismatchError(
            f"batch {call.batch_id} is partly applied, and its other rows would be written with "
            f"other options: {'; '.join(changed)}",
            applied=f"{view.open_units} units of it, with the options of then; nothing now",
            next_step="put the options back until this batch is complete, then change them",
            batch_id=call.batch_id,
        )


def _first_open(view: LedgerView, call: Call) -> Open:
    if call.batch_id > 0 and not (call.adopt and call.first):
        raise _behind(call, None)
    return Open(_fresh(view, call, epoch=1))


def _fresh(view: LedgerView, call: Call, epoch: int) -> Control:
    return Control(
        query_id=call.query_id,
        run_id=call.run_id,
        epoch=epoch,
        token=call.token,
        open_batch=call.batch_id,
        last_complete=call.batch_id - 1,
        split=call.split,
        opened_us=view.now_us,
    )


def _adopt(view: LedgerView, control: Control, call: Call) -> Open:
    if not (call.adopt and call.first and call.batch_id == 0):
        raise CheckpointMismatchError(
            f"writer_id {call.writer_id!r} is bound to query {control.query_id}, which completed "
            f"batch {control.last_complete}, and query {call.query_id} wants to write batch "
            f"{call.batch_id}: the checkpoint was wiped or changed, or a second query writes to "
            "this target",
            applied=_NOTHING,
            next_step="give a second query a writer_id of its own; for a wiped checkpoint start "
            'once with on_new_checkpoint="adopt" and a source that begins where the old query '
            'ended (for replayable_socket startingOffsets="<end offset of the old query>", or '
            '"latest"), since whatever is read again is written again',
            bound_to=control.query_id,
            query_id=call.query_id,
            last_complete=control.last_complete,
        )
    if view.open_units:
        raise CheckpointMismatchError(
            f"writer_id {call.writer_id!r} can't be adopted: query {control.query_id} has applied "
            f"{view.open_units} partitions of batch {control.open_batch}, which is not complete",
            applied=_NOTHING,
            next_step="restart the old query on its own checkpoint until that batch is complete",
        )
    return Open(_fresh(view, call, control.epoch + 1), reset=True)


def _check_owner(view: LedgerView, control: Control, call: Call) -> None:
    if control.run_id == call.run_id:
        return
    # A run that began before the owner's newest open is the older one, stopped or slow until now;
    # it must not fence the healthy run. Two times of the server's clock are compared, the run's
    # own clock gives only an interval.
    overtaken = view.now_us - call.age_us < control.opened_us <= view.now_us
    if not call.first or overtaken:
        raise FencedError(
            f"run {control.run_id} has taken over writer_id {call.writer_id!r} from run "
            f"{call.run_id} (epoch {control.epoch})",
            applied=f"{_NOTHING} (batch {call.batch_id})",
            next_step="let this run end; only one run of a query may be alive",
            owner=control.run_id,
            run_id=call.run_id,
        )


def _behind(call: Call, last_complete: int | None) -> SinkBehindError:
    found = (
        "no ledger"
        if last_complete is None
        else f"batch {last_complete} as the newest complete one"
        if last_complete != NO_BATCH
        else "no complete batch"
    )
    return SinkBehindError(
        f"the checkpoint wants batch {call.batch_id} written, but the ledger of writer_id "
        f"{call.writer_id!r} shows {found}: the sink was restored from an older state, its ledger "
        "was lost, or the query wrote elsewhere before",
        applied=_NOTHING,
        next_step="restore a checkpoint that is as old as the sink; if rows that are missing here "
        'may stay missing and there is no ledger, start once with on_new_checkpoint="adopt"',
        batch_id=call.batch_id,
        last_complete=last_complete,
    )


def _compare(view: LedgerView, control: Control, call: Call) -> Compare:
    completed = view.history.get(call.batch_id)
    if completed is None:
        raise CheckpointMismatchError(
            f"batch {call.batch_id} is older than the ledger's history (newest complete batch "
            f"{control.last_complete}, {HISTORY} remembered): an old checkpoint was restored",
            applied=_NOTHING,
            next_step="restore the newest checkpoint of this query",
        )
    if completed.run_id == call.run_id:
        raise ConfigError(
            f"batch {call.batch_id} was already written by this run with writer_id "
            f"{call.writer_id!r}: a second call can't be told from a repeat",
            applied=f"the first call's rows; {_NOTHING}",
            next_step="give each writer that one foreachBatch function calls its own writer_id",
        )
    if completed.offsets_digest and call.offsets_digest:
        if completed.offsets_digest == call.offsets_digest:
            return Compare(completed)
        raise CheckpointMismatchError(
            f"batch {call.batch_id} is complete in the ledger, with other offsets than the "
            "checkpoint now says: an older checkpoint was restored and went another way",
            applied=_NOTHING,
            next_step="restore the newest checkpoint of this query",
        )
    if call.batch_id != control.last_complete:
        raise CheckpointMismatchError(
            f"batch {call.batch_id} is complete in the ledger, is not the newest "
            f"({control.last_complete}), and Spark's offsets can't be read to tell whether it is "
            "the same",
            applied=_NOTHING,
            next_step="pass checkpoint_location to the writer, or restore the newest checkpoint",
        )
    return Compare(completed, by_totals=completed.atomicity == "partition")


def check_totals(completed: Completed, computed: Fingerprint) -> None:
    """A complete batch run again without a digest holds the same rows; ReplayMismatchError."""
    if completed.fingerprint != computed:
        raise ReplayMismatchError(
            f"batch {completed.batch_id} is complete with {completed.fingerprint.rows} rows, and "
            f"run again it holds {computed.rows} rows or other content",
            applied="the rows of the first time; nothing was written now",
            next_step="pass checkpoint_location to the writer, so that offsets can be compared",
        )


def decide_unit(control: Control | None, entry: UnitEntry | None, unit: Unit) -> Outcome:
    """Compare and set of a unit, under locks on both entries: Applied means *set it now*."""
    if control is None or control.token != unit.token or control.open_batch != unit.batch_id:
        return fenced(unit)
    if entry is None or entry.batch_id < unit.batch_id:
        return Applied()
    if entry.batch_id > unit.batch_id:
        return fenced(unit)
    if entry.fingerprint == unit.fingerprint:
        return AlreadyApplied()
    return mismatch(unit, entry)


def decide_after_error(entry: UnitEntry | None, unit: Unit) -> Outcome | None:
    """After any error: what the unit entry alone says; None if the error must be classified."""
    if entry is None or entry.batch_id < unit.batch_id:
        return None
    if entry.batch_id > unit.batch_id:
        return fenced(unit)
    return AlreadyApplied() if entry.fingerprint == unit.fingerprint else mismatch(unit, entry)


def fenced(unit: Unit) -> Refused:
    """The refusal of a unit whose token is no longer that of the control entry."""
    return Refused(
        "FencedError",
        f"another call has taken over: epoch {unit.epoch} may no longer write partition "
        f"{unit.partition} of batch {unit.batch_id}",
        "nothing of this partition by this task",
        "let this run end; only one run of a query may be alive",
    )


def mismatch(unit: Unit, entry: UnitEntry) -> Refused:
    """The refusal of a unit that is there already with other rows."""
    return Refused(
        "ReplayMismatchError",
        f"partition {unit.partition} of batch {unit.batch_id} is applied with "
        f"{entry.fingerprint.rows} rows, and run again it holds {unit.fingerprint.rows} rows or "
        "other content",
        "the rows of the first time; nothing of this partition now",
        'make the plan repeatable, or use partitioning="hash" or atomicity="batch"',
    )


def decide_replay(
    stored: Sequence[UnitEntry],
    computed: Mapping[int, Fingerprint],
    prefixes: Mapping[int, Fingerprint],
    split: str,
    now: str,
) -> bool:
    """Whether partitions of a partly applied batch are left to write, after pass 1.

    ``computed`` has every partition with rows; ``prefixes`` the fingerprint of the first
    ``rows_done`` rows of each incomplete unit. Raises ReplayMismatchError if what is applied is
    not part of what was computed; False means that all of it is applied, if split otherwise.
    """
    if all(_contained(entry, computed, prefixes) for entry in stored):
        return True
    done = Fingerprint.sum([entry.fingerprint for entry in stored])
    if all(e.complete for e in stored) and done == Fingerprint.sum(list(computed.values())):
        return False
    batch_id = stored[0].batch_id
    raise ReplayMismatchError(
        f"batch {batch_id} is partly applied, and run again its partitions hold other rows",
        applied=f"{done.rows} rows in {len(stored)} partitions the first time; nothing now",
        next_step="restart with the settings of the run that began the batch until it is "
        f"complete; they were {split_alone(split)}, now they are {split_alone(now)}",
        batch_id=batch_id,
        partitions=sorted(entry.partition for entry in stored),
    )


def _contained(
    entry: UnitEntry, computed: Mapping[int, Fingerprint], prefixes: Mapping[int, Fingerprint]
) -> bool:
    if entry.complete:
        return computed.get(entry.partition) == entry.fingerprint
    return prefixes.get(entry.partition) == entry.fingerprint


def decide_close(
    view: LedgerView,
    stored: Sequence[UnitEntry],
    reported: Mapping[int, Fingerprint],
    call: Call,
    partitions: int,
    *,
    dead_letter_limit: int | None = None,
) -> Close | None:
    """Completes the batch, or None if this very call has done so and only the answer was lost.

    ``stored`` are the units of this batch, read under the same lock; ``reported`` what the tasks
    said, without empty partitions. More dead letters than ``dead_letter_limit`` leave it open.
    """
    control = view.control
    if control is None or control.token != call.token:
        raise _lost_ownership(call)
    if control.last_complete == call.batch_id:
        return None
    units = {entry.partition: entry.fingerprint for entry in stored if entry.complete}
    if units != dict(reported) or len(units) != len(stored):
        raise ReplayMismatchError(
            f"batch {call.batch_id} can't be completed: its tasks reported "
            f"{_described(reported)}, and the ledger holds {_described(units)}",
            applied="the units in the ledger; the batch stays open",
            next_step="restart the query; if this comes again, make the plan repeatable or use "
            'atomicity="batch"',
        )
    _check_dead_letters(stored, call, dead_letter_limit)
    return _complete(control, call, partitions, list(reported.values()))


def _complete(
    control: Control, call: Call, partitions: int, prints: Sequence[Fingerprint]
) -> Close:
    completed = Completed(
        call.batch_id,
        call.offsets_digest,
        partitions,
        Fingerprint.sum(prints),
        call.run_id,
        call.atomicity,
    )
    return Close(
        replace(control, open_batch=None, last_complete=call.batch_id),
        completed,
        prune_below=call.batch_id - HISTORY + 1,
    )


def _check_dead_letters(stored: Sequence[UnitEntry], call: Call, limit: int | None) -> None:
    """Each unit looks at the limit too, but tasks that run at the same time don't see each other's
    dead letters."""
    found = sum(entry.dead_letters for entry in stored)
    if limit is not None and found > limit:
        raise DeadLetterLimitError(
            f"{found} rows of batch {call.batch_id} were refused, in {len(stored)} partitions; "
            f"dead_letter_limit={limit} for one batch",
            applied=f"the batch's other rows and {found} dead letters; the batch stays open, and "
            "nothing of it is written again",
            next_step=f"look at the dead letters; to go on, restart with dead_letter_limit={found} "
            "or more and the same query",
            dead_letters=found,
        )


def decide_publish(
    view: LedgerView, staged: Sequence[Staged], call: Call, partitions: int
) -> Close | None:
    """Publishes and completes a batch in batch atomicity; None if this very call has done so.

    ``staged`` is what the tasks of this call reported. Raises FencedError if another call has
    taken over, and ReplayMismatchError where publishing would double rows.
    """
    control = view.control
    if control is None or control.token != call.token:
        raise _lost_ownership(call, "nothing: what its tasks staged is not published")
    if control.last_complete == call.batch_id:
        return None
    if view.open_units or len({one.partition for one in staged}) != len(staged):
        raise ReplayMismatchError(
            f"batch {call.batch_id} can't be published: {view.open_units} of its partitions are "
            f"applied already, and {len(staged)} staged ones are to be added",
            applied="those partitions; nothing now",
            next_step="restart the query; it completes the batch by partitions",
        )
    return _complete(control, call, partitions, [one.fingerprint for one in staged])


def check_staged(batch_id: int, staged: Sequence[Staged], found: Mapping[str, Fingerprint]) -> None:
    """ReplayMismatchError unless ``found`` has what the tasks say they staged.

    ``found`` has, by staging id, the stored fingerprint with the number of rows that were counted.
    """
    wrong = [one for one in staged if found.get(one.staging_id) != one.fingerprint]
    if wrong:
        there = found.get(wrong[0].staging_id, Fingerprint()).rows
        raise ReplayMismatchError(
            f"batch {batch_id} can't be published: of {len(staged)} staged partitions "
            f"{len(wrong)} are not as their tasks left them; partition {wrong[0].partition} had "
            f"{wrong[0].fingerprint.rows} rows, and {there} are found",
            applied="nothing of this batch",
            next_step="see whether the server lost what it had acknowledged, or someone deleted "
            "staged rows; restart the query, which stages the batch again",
            partitions=sorted(one.partition for one in wrong),
        )


def is_left_over(control: Control | None, epoch: int, batch_id: int) -> bool:
    """Whether what was staged under ``epoch`` for a batch can never be published any more."""
    return control is None or epoch < control.epoch or batch_id <= control.last_complete


def _lost_ownership(
    call: Call,
    applied: str = "what its tasks had committed; the new owner completes the batch",
) -> SparkEocError:
    return FencedError(
        f"another call has taken over writer_id {call.writer_id!r} before batch {call.batch_id} "
        f"of run {call.run_id} was complete",
        applied=applied,
        next_step="let this run end; only one run of a query may be alive",
    )


def _described(units: Mapping[int, Fingerprint]) -> str:
    return f"{len(units)} partitions with {sum(f.rows for f in units.values())} rows"
