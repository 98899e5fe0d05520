"""What a database must offer to be written exactly once: the public base class of a sink.

A third sink is one file with one subclass of :class:`Sink`, given to
:class:`spark_eoc.sinks.writer.Writer`, which does everything that is common: identity,
fingerprints, passes, verification. The decisions are pure functions in
:mod:`spark_eoc.sinks.ledger`; a sink only makes them durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import Fingerprint, LedgerView, Outcome, Staged, Unit, UnitEntry
from spark_eoc.sinks.ledger import Close, Compare, Open
from spark_eoc.sinks.rows import Rows

OpenDecision = Callable[[LedgerView], "Open | Compare"]
CloseDecision = Callable[[LedgerView, Sequence[UnitEntry]], "Close | None"]
PublishDecision = Callable[[LedgerView], "Close | None"]


@dataclass(frozen=True)
class Column:
    """A column that will be written.

    ``type`` is Spark's simple name of the frame's type (``decimal(38,18)``, ``timestamp_ntz``);
    with ``json`` that type is nested and the rows hold its JSON text (UTC) instead.
    """

    name: str
    type: str
    json: bool = False


@dataclass(frozen=True)
class Mark:
    """A condition that the JVM evaluates for each row, as SQL; ``option`` is where users give it.

    It travels with the rows, is not written, and is no part of their hash.
    """

    option: str
    expression: str


class Sink(ABC):
    """A database that makes rows and their ledger entry durable in one atomic step.

    An instance is built by the user, travels to the tasks by pickle, and holds no connection: each
    method opens what it needs and closes it, so the driver holds none over a job. Its repr and its
    pickle's text show no secret. Methods raise errors of :mod:`spark_eoc.errors`; errors that may
    pass (no connection, a lock held by another) are tried again inside, within a budget of
    minutes, and end as SinkUnavailableError.
    """

    #: Whether ``stage`` and ``publish`` put rows aside too, after ``with_dead_letters``: then they
    #: are counted over the batch, and its dead letters are written in the publishing step.
    letters_in_whole_batches: ClassVar[bool] = False

    def marks(self) -> Mapping[str, Mark]:
        """Conditions that come with the rows as ``Rows.marks``, by name; none, here."""
        return {}

    def together(self) -> Sequence[str]:
        """Columns by which rows must be partitioned: those that are equal in them need each other
        in one unit. None, here."""
        return ()

    def options(self) -> Mapping[str, object]:
        """What decides what a row does to the target, by the names of the user's arguments, as
        values for JSON: a batch that is partly applied can only go on with the same.

        Without secrets, and without what makes a row fail where it decides: no such row was
        written. The target itself, as ``check`` names it, is added. None, here.
        """
        return {}

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> str:
        """On the driver, before a run's first batch: refuses what can't be written safely.

        Creates the ledger's tables where there are any. Returns the target as the server names
        it, without host, port or user: the default ``writer_id``. Raises ConfigError.
        """

    @abstractmethod
    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        """On the driver: locks the control entry, lets ``decide`` decide, makes it durable.

        The view's history need only hold ``batch_id``. An :class:`Open` stores its control entry
        (and with ``reset`` deletes all units and history of this writer in the same step); a
        :class:`Compare` stores nothing. When the answer to the store is lost the whole is done
        again; ``decide`` recognises its own token. Any error of ``decide`` passes through, and
        nothing is stored.
        """

    @abstractmethod
    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        """On the driver, after ``open_batch`` returned: the units stored for this batch.

        It must see every unit that was applied under an older token: no such unit can be applied
        after the new control entry was durable.
        """

    @abstractmethod
    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        """In a task: writes the rows and the unit entry in one atomic step, or nothing.

        The decision is that of :func:`spark_eoc.sinks.ledger.decide_unit`, made under a lock
        that a new owner's ``open_batch`` waits for. After any error it looks at the unit entry
        first (:func:`~spark_eoc.sinks.ledger.decide_after_error`). A sink that can't write a
        whole partition at once applies chunks, in the order of ``arrange``, and stores an
        incomplete unit entry with each. ``rows`` are in that order and never empty.
        """

    @abstractmethod
    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        """On the driver: locks the control entry, reads the batch's units, lets ``decide`` decide.

        A :class:`Close` stores its control entry and its history entry and forgets history below
        ``prune_below``, in one atomic step; None stores nothing.
        """

    def with_dead_letters(self, limit: int) -> Sink:
        """When the writer is built, with ``on_bad_row="dead_letter"``: this sink, which now puts
        rows aside that are refused for their content.

        ``apply`` then writes each such row, as JSON and with the reason, in the unit's own atomic
        step, stores and reports how many they were, and refuses a unit (DeadLetterLimitError, as
        data) that would bring its batch above ``limit``. The default refuses by name.
        """
        raise ConfigError(
            f"{type(self).__name__} keeps no dead letters",
            next_step='use on_bad_row="fail"',
        )

    @property
    def dead_letters_at(self) -> str:
        """Where dead letters lie, for messages."""
        return "the dead letters"

    def arrange(self, rows: Rows) -> Rows:
        """The rows in the order in which this sink cuts and applies them; as they are, here.

        Must depend on nothing but the rows, so that a repeat can go on where a chunk ended.
        """
        return rows

    def applied_part(self, rows: Rows, entry: UnitEntry) -> Fingerprint:
        """The fingerprint of those of ``rows`` that the incomplete ``entry`` says are applied."""
        return self.arrange(rows).slice(0, entry.rows_done).fingerprint()

    # -- batch atomicity: a sink that has it overrides these four ------------------------------

    def check_batch(self) -> None:
        """On the driver, after each ``check``: makes ready to stage, or refuses by name.

        Raises ConfigError where batch atomicity can't be had.
        """
        raise self._no_batch()

    def stage(self, unit: Unit, staging_id: str, rows: Rows) -> Outcome:
        """In a task: stores the rows under ``staging_id``, where no reader of the target looks.

        Applied when all rows, the unit's fingerprint, its batch and its epoch are durable there.
        A unit whose token is not that of the control entry is refused; once a new owner's
        ``open_batch`` has returned, no older unit can be staged any more. After any error it may
        delete what it staged and begin again, since each try of a task has an id of its own.
        ``rows`` are in the order of ``arrange`` and never empty.
        """
        raise self._no_batch()

    def publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        """On the driver: moves exactly the ``staged`` rows to the target and completes the batch.

        One atomic step: the control entry is locked, ``decide`` decides, the staged rows are
        counted and what is known of them compared with ``staged``
        (:func:`spark_eoc.sinks.ledger.check_staged`), the rows are moved, in the order of
        partitions and rows, and the Close is stored. None of ``decide`` means that this very call
        has published already and only the answer was lost. Raises, and leaves nothing, if
        anything is amiss.
        """
        raise self._no_batch()

    def clear_staged(self, writer_id: str) -> None:
        """On the driver, after an open and after a publish: deletes what nobody can publish.

        That is what :func:`spark_eoc.sinks.ledger.is_left_over` says, so that a zombie deletes
        nothing of its successor. The caller logs what it raises and goes on.
        """
        raise self._no_batch()

    def discard_staged(  # noqa: B027  only for sinks that raise BatchTooLargeError
        self, writer_id: str, batch_id: int, epoch: int, staged: Sequence[Staged]
    ) -> None:
        """On the driver, after BatchTooLargeError: deletes what this call has staged. It raises
        nothing; what it can't delete is left for ``clear_staged``."""

    def _no_batch(self) -> ConfigError:
        return ConfigError(
            f"{type(self).__name__} has no batch atomicity",
            next_step='use atomicity="partition"',
        )
