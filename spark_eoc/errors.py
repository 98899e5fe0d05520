"""Every error that the package raises, all under :class:`SparkEocError`.

An error says what happened, what was and was not applied, and the one next step. It carries its
facts as keyword arguments, so that a caller can act on them, and it survives pickling.
No fact may hold a secret.
"""

from __future__ import annotations

from typing import Any


class SparkEocError(Exception):
    """``what`` happened; ``applied`` says what was and was not applied; ``next_step`` mends it."""

    def __init__(
        self,
        what: str,
        *,
        applied: str | None = None,
        next_step: str | None = None,
        **facts: Any,
    ) -> None:
        self.what = what
        self.applied = applied
        self.next_step = next_step
        self.facts = facts
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what.rstrip(".")]
        if self.applied:
            parts.append(f"Applied: {self.applied.rstrip('.')}")
        if self.next_step:
            parts.append(f"Next step: {self.next_step.rstrip('.')}")
        return ". ".join(parts) + "."

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            _restore,
            (type(self), self.what, self.applied, self.next_step, self.facts),
        )


def _restore(
    kind: type[SparkEocError],
    what: str,
    applied: str | None,
    next_step: str | None,
    facts: dict[str, Any],
) -> SparkEocError:
    return kind(what, applied=applied, next_step=next_step, **facts)


class ConfigError(SparkEocError):
    """An option, argument or combination that can't work; nothing was started."""


class LogError(SparkEocError):
    """Anything about the buffer's segment log."""


class CorruptLogError(LogError):
    """Bytes of the log are not what was written; names file, position and repair command."""


class LogLockedError(LogError):
    """Another process holds the buffer's writer lock, or a consumer's; names the process."""


class OffsetOutOfRangeError(LogError):
    """An offset below the first retained, beyond the durable end, or of another buffer or epoch."""


class RecordTooLargeError(LogError):
    """One line is longer than the limit, or than a frame can hold."""


class BadLineError(LogError):
    """A line is not valid UTF-8 where only that is allowed; names its offset."""


class LogClosedError(LogError):
    """The log was closed, or poisoned by a failed write or fsync; it takes nothing more."""


class LogFullError(LogError):
    """No space is left on the disk; nothing of this write is in the log, it may be tried again."""


class ProtocolError(SparkEocError):
    """A peer of the acknowledged protocol said something that its state does not allow."""


class UnacknowledgedError(SparkEocError):
    """Lines were not acknowledged in time; the producer keeps them and sends them again."""


class FencedError(SparkEocError):
    """Another run has taken over; this one wrote nothing since, and must stop."""


class SinkError(SparkEocError):
    """Anything about a database that rows are written to."""


class SinkUnavailableError(SinkError):
    """The server can't be reached, or did not answer within the time budget."""


class SinkBehindError(SinkError):
    """The ledger is older than the checkpoint: a restored dump or snapshot, or a lost ledger."""


class HalfAppliedError(SinkError):
    """A script failed after its first write; the unit can be neither repeated nor taken back."""


class ReplayMismatchError(SinkError):
    """A batch run again holds other rows than those already applied, or would be written with
    other options; nothing more was written."""


class CheckpointMismatchError(SinkError):
    """The ledger belongs to another query, or to another history of this one."""


class BadRowError(SinkError):
    """The sink refuses a row for its content; names row and column."""


class BatchTooLargeError(SinkError):
    """A batch is larger than what the sink can make visible in one step; nothing was written."""


class DeadLetterLimitError(SinkError):
    """More rows of one batch were refused than the limit allows."""
