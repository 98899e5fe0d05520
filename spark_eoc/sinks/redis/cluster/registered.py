"""The decision of an open where the ledger shows what tasks registered, not what they wrote."""

from __future__ import annotations

from dataclasses import replace

from spark_eoc.errors import ReplayMismatchError
from spark_eoc.sinks.entries import LedgerView
from spark_eoc.sinks.ledger import Compare, Open
from spark_eoc.sinks.store import OpenDecision


class Registered:
    """Decides as ``decide``, but for the options of a batch that was begun.

    Whether they may change depends on whether any of the batch is written, and that is known only
    once its slots are fenced. Until then the batch is taken over as it was begun, so that a crash
    in between hides nothing; then :meth:`finally_` decides.
    """

    def __init__(self, decide: OpenDecision) -> None:
        self._decide = decide
        self._doubtful: LedgerView | None = None

    def __call__(self, view: LedgerView) -> Open | Compare:
        """The decision to store first."""
        try:
            decision = self._decide(view)
        except ReplayMismatchError:
            decision = self._decide(replace(view, open_units=0))
            if view.control is None or not isinstance(decision, Open):
                raise
            self._doubtful = view
            return Open(replace(decision.control, split=view.control.split))
        if not isinstance(decision, Open) or decision.control != view.control:
            self._doubtful = None  # else this is a repeat, whose first answer was lost
        return decision

    def finally_(self, applied: int) -> Open | None:
        """The decision to store over it, None if there was no doubt; ``applied`` partitions of the
        batch are written in part at least. Raises ReplayMismatchError."""
        if self._doubtful is None:
            return None
        decision = self._decide(replace(self._doubtful, open_units=applied))
        return decision if isinstance(decision, Open) else None

    @property
    def doubtful(self) -> bool:
        """Whether :meth:`finally_` has anything to decide."""
        return self._doubtful is not None
