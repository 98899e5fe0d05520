"""A row that can't be written, found before anything of its chunk was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


class RowRefusedError(Exception):
    """``row`` counts from 0 in the table at hand; never leaves the Redis sink.

    The store turns it into data, with the row's key, and the driver raises
    :class:`~spark_eoc.errors.BadRowError`.
    """

    def __init__(self, row: int, column: str, reason: str) -> None:
        super().__init__(row, column, reason)
        self.row = row
        self.column = column
        self.reason = reason

    def shifted(self, rows: int) -> RowRefusedError:
        """The same, counted in a table that has ``rows`` rows more at its start."""
        return RowRefusedError(self.row + rows, self.column, self.reason)


@dataclass(frozen=True)
class Problem:
    """Some rows of a table can't be written: those where ``mask`` is true (NULL counts as false),
    because of ``column``. At least one is."""

    mask: pa.Array | pa.ChunkedArray
    column: str
    reason: str

    @classmethod
    def found(cls, mask: pa.Array | pa.ChunkedArray, column: str, reason: str) -> Iterator[Problem]:
        """The problem, if there is any."""
        if first_true(mask) >= 0:
            yield cls(mask, column, reason)

    def error(self) -> RowRefusedError:
        """The refusal of the first of these rows."""
        return RowRefusedError(first_true(self.mask), self.column, self.reason)


def first_true(flags: pa.Array | pa.ChunkedArray) -> int:
    """The position of the first true, or -1; NULL counts as false."""
    return int(pc.index(flags, True).as_py())
