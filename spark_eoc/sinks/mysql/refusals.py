"""What becomes of the rows that are refused for their content: an error, or dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_eoc.errors import BadRowError, DeadLetterLimitError
from spark_eoc.sinks.dead_letters import RefusedRow, over_limit, row_name
from spark_eoc.sinks.entries import Outcome, Unit
from spark_eoc.sinks.mysql.connection import DUPLICATE
from spark_eoc.sinks.mysql.insertion import refused_row
from spark_eoc.sinks.rows import Rows

_OR_ASIDE = '; or put such rows aside with on_bad_row="dead_letter"'


class SettledError(Exception):
    """Ends an attempt whose unit the ledger shows to be settled; never leaves the sink."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass
class Refusals:
    """Takes each refused row of one attempt; without a ``limit`` the first is a BadRowError.

    ``look`` says what the ledger shows of the unit, or None. It is asked before the first row is
    taken for a bad one, because the rows that another copy of the task has committed would look
    like that, as duplicates. ``offer`` says that dead letters could be had.
    """

    rows: Rows
    key: Sequence[str]
    unit: Unit | None
    limit: int | None
    look: Callable[[Unit], Outcome | None]
    offer: bool = True
    found: list[RefusedRow] = field(default_factory=list)

    def __call__(self, row: int, error: Exception) -> None:
        """Raises BadRowError, DeadLetterLimitError or SettledError; else the row is noted."""
        if self.unit is None or self.limit is None:
            raise self._bad_row(row, error)
        if not self.found:
            settled = self.look(self.unit)
            if settled is not None:
                raise SettledError(settled)
        self.found.append(refused_row(row, error))
        check_limit(self.unit, len(self.found), 0, self.limit)

    def _bad_row(self, row: int, error: Exception) -> BadRowError:
        unit, found = self.unit, refused_row(row, error)
        place = "" if unit is None else f" of partition {unit.partition}, batch {unit.batch_id},"
        column = found.column if found.column and repr(found.column) not in found.reason else None
        about = [f"column {column!r}"] * bool(column) + [f"error {found.error}"] * bool(found.error)
        return BadRowError(
            f"{row_name(self.rows, row, self.key)}{place} is refused: "
            + ": ".join([*filter(None, [", ".join(about)]), found.reason]),
            applied="nothing of this partition",
            next_step=_remedy(error, found) + (_OR_ASIDE if self.offer else ""),
            row=row,
            column=found.column,
            error=found.error,
        )


def check_limit(unit: Unit, found: int, before: int, limit: int) -> None:
    """DeadLetterLimitError if the unit's ``found`` refused rows, after ``before`` of the batch's
    other units, are too many."""
    if found + before > limit:
        refusal = over_limit(unit, found, before, limit, "nothing of this partition")
        raise DeadLetterLimitError(
            refusal.what, applied=refusal.applied, next_step=refusal.next_step
        )


def _remedy(error: Exception, found: RefusedRow) -> str:
    if found.error == DUPLICATE:
        return "rows with the key of an earlier one need mode='upsert'"
    own = error.next_step if isinstance(error, BadRowError) else None
    return own or "mend the row or the table, then restart the query"
