"""What the rows of a change stream leave behind when they are applied one after another.

A unit holds every row of a key that its batch has, so what a key's rows amount to is decided
before anything is sent: which keys are deleted, and which rows are then written. Pure, and by
Arrow's kernels only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.errors import BadRowError
from spark_eoc.sinks.order import in_order
from spark_eoc.sinks.rows import Rows

#: The mark of the rows that delete their key.
DELETED = "__spark_eoc_deleted"
#: Labels of :func:`labels`.
WRITE, DELETE, SKIP = b"w", b"d", b"-"
#: Rows that are judged at a time, whatever the partition's size; more of a key that has more.
_JUDGED_ROWS = 65_536


@dataclass(frozen=True)
class Changes:
    """First ``deleted`` goes: the key columns of each key that some row deletes, in order of the
    keys. Then ``written``, in that order, with several rows of a key where ``merge`` needs them."""

    deleted: Rows
    written: Rows


def arranged(rows: Rows, key: Sequence[str], order_by: Sequence[str]) -> Rows:
    """The rows by key, and those of one key by ``order_by``."""
    names = [*key, *(name for name in order_by if name not in key)]
    return in_order(rows, lambda part: part.table.select(names))


def settle(rows: Rows, key: Sequence[str], order_by: Sequence[str], *, last_only: bool) -> Changes:
    """What ``rows``, as :func:`arranged` gives them, amount to; ``last_only`` where a row replaces
    all that came before it.

    BadRowError where ``order_by`` does not tell which of two different rows of a key comes last.
    """
    judged = _checked(rows, key, order_by, last_only=last_only)
    keep = judged.written
    keys = replace(rows, table=rows.table.select(list(key)), marks=None)
    written = rows if pc.all(keep).as_py() else rows.kept(keep)
    return Changes(keys.kept(judged.deletes), written)


def labels(
    rows: Rows, key: Sequence[str], order_by: Sequence[str], *, last_only: bool
) -> pa.ChunkedArray:
    """The same as a label for each row, for rows that are all kept until later: ``DELETE`` where
    the key is to be deleted first, ``WRITE`` where the row is then written, else ``SKIP``."""
    judged = _checked(rows, key, order_by, last_only=last_only)
    masks = zip(judged.written.chunks, judged.deletes.chunks, strict=True)
    return pa.chunked_array([_labelled(keep, gone) for keep, gone in masks])


def _labelled(keep: pa.Array, gone: pa.Array) -> pa.Array:
    count = len(keep)
    found = pc.if_else(keep, _repeated(WRITE, count), _repeated(SKIP, count))
    return pc.if_else(gone, _repeated(DELETE, count), found)


def _repeated(label: bytes, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(label, pa.binary()), count)


@dataclass(frozen=True)
class Judgement:
    """What becomes of each row. ``group`` is the number of its key, from 0; ``written`` and
    ``deletes`` are as in :class:`Groups`, ``conflicts`` too."""

    group: pa.ChunkedArray
    written: pa.ChunkedArray
    deletes: pa.ChunkedArray
    conflicts: pa.ChunkedArray


def judge(rows: Rows, key: Sequence[str], order_by: Sequence[str], *, last_only: bool) -> Judgement:
    """Judges ordered rows, some keys at a time, because it takes 100 bytes a row.

    No row may be :func:`unplaced` in ``key`` or ``order_by``.
    """
    parts, keys = [], 0
    for start, stop in _whole_keys(rows, key):
        groups = Groups(rows.slice(start, stop), key, order_by)
        group = pc.add(groups.group, keys).cast(pa.int32())
        keys = 1 + group[-1].as_py()
        written, conflicts = (of(last_only=last_only) for of in (groups.written, groups.conflicts))
        parts.append((group, written, groups.deletes(), conflicts))
        rows.release()
    return Judgement(*map(pa.chunked_array, zip(*parts, strict=True)))


def _whole_keys(rows: Rows, key: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Stretches of ordered rows, each with all rows of its keys."""
    start, most = 0, _JUDGED_ROWS
    while start + most < len(rows):
        found = numbers_where(_changes(rows.table.slice(start, most), key))
        last = found[-1].as_py() if len(found) else 0
        if not last:  # one key has more rows than that
            most *= 2
            continue
        yield start, start + last
        start, most = start + last, _JUDGED_ROWS
    yield start, len(rows)


def _checked(
    rows: Rows, key: Sequence[str], order_by: Sequence[str], *, last_only: bool
) -> Judgement:
    _refuse_unplaced(rows.table, "key", key)
    _refuse_unplaced(rows.table, "order_by", order_by)
    judged = judge(rows, key, order_by, last_only=last_only)
    conflict = pc.index(judged.conflicts, pa.scalar(True)).as_py()
    if conflict >= 0:
        raise _unordered(rows.table.slice(conflict, 1), key, order_by)
    return judged


class Groups:
    """The rows of each key, numbered from 0; each array has an entry for each row.

    No row may be :func:`unplaced` in ``key`` or ``order_by``.
    """

    def __init__(self, rows: Rows, key: Sequence[str], order_by: Sequence[str]) -> None:
        table = rows.table
        self._rows, self._table = len(rows), table
        self._number = _counting(self._rows)
        new_key = _changes(table, key)
        new_place = pc.or_(new_key, _changes(table, order_by))
        #: The number of each row's key.
        self.group = _numbered(new_key)
        self._place = _numbered(new_place)
        last = numbers_where(_next_is(new_key))
        self._last = pc.take(last, self.group)
        self._deleted = _deleted(rows)
        self._last_delete = self._newest_delete()
        other = pc.or_(_changes_of(rows.hashes), _first(self._rows))
        both_deleted = pc.and_(self._deleted, _previous(self._deleted))
        # A row that differs from the one before it, at the same place of the same key.
        self._tied = pc.and_(pc.and_not(other, both_deleted), pc.invert(new_place))

    def _newest_delete(self) -> pa.Array:
        """The number of the key's last deleting row, -1 without one."""
        numbers = pc.if_else(self._deleted, self._number, pa.scalar(-1, pa.int64()))
        table = pa.table({"group": self.group, "number": numbers})
        newest = table.group_by("group", use_threads=False).aggregate([("number", "max")])
        newest = newest.sort_by("group").column("number_max")
        return pc.take(_whole(*newest.chunks), self.group)

    def conflicts(self, *, last_only: bool) -> pa.Array:
        """True for a row whose order to the one before it decides, and is not known."""
        if last_only:
            matters = pc.equal(self._place, pc.take(self._place, self._last))
        else:
            matters = pc.greater_equal(self._number, self._last_delete)
        return pc.and_(self._tied, matters)

    def written(self, *, last_only: bool) -> pa.Array:
        """True for the rows that are written: those after the key's last deleting row."""
        after = pc.greater(self._number, self._last_delete)
        return pc.and_(after, pc.equal(self._number, self._last)) if last_only else after

    def deletes(self) -> pa.Array:
        """True for one row of each key that is deleted."""
        return pc.equal(self._number, self._last_delete)


def _counting(count: int) -> pa.Array:
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), pa.scalar(1, pa.int64()))


def counting(count: int) -> pa.ChunkedArray:
    """The numbers of so many rows."""
    starts = range(0, count, _JUDGED_ROWS)
    parts = [pc.add(_counting(min(_JUDGED_ROWS, count - start)), start) for start in starts]
    return pa.chunked_array(parts, pa.int64())


def _numbered(starts: pa.Array) -> pa.Array:
    """The number of the run that each row is in; ``starts`` is True where one begins."""
    return pc.subtract(pc.cumulative_sum(pc.cast(starts, pa.int64())), pa.scalar(1, pa.int64()))


def numbers_where(mask: pa.Array) -> pa.Array:
    """The numbers of the rows that are True."""
    return pc.indices_nonzero(mask).cast(pa.int64())


def _changes(table: pa.Table, names: Sequence[str]) -> pa.Array:
    """True where a row differs in these columns from the one before it, and for the first."""
    found = _first(table.num_rows)
    for name in names:
        found = pc.or_(found, _changes_of(table.column(name)))
    return found


def _changes_of(column: pa.ChunkedArray) -> pa.Array:
    differs = pc.not_equal(column.slice(0, len(column) - 1), column.slice(1))
    return _whole(pa.array([True]), *_chunks(differs))


def _first(count: int) -> pa.Array:
    return _whole(pa.array([True]), pa.repeat(pa.scalar(False), count - 1))


def _next_is(starts: pa.Array) -> pa.Array:
    return _whole(starts.slice(1), pa.array([True]))


def _previous(mask: pa.Array) -> pa.Array:
    return _whole(pa.array([False]), mask.slice(0, len(mask) - 1))


def _deleted(rows: Rows) -> pa.Array:
    if rows.marks is None:
        return pa.repeat(pa.scalar(False), len(rows))
    return _whole(*rows.marks.column(DELETED).chunks)


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _whole(*parts: pa.Array) -> pa.Array:
    return pa.concat_arrays(list(parts))


def unplaced(table: pa.Table, name: str) -> pa.Array:
    """True for the rows whose column has no place in an order; none may be left of them."""
    return pc.is_null(table.column(name), nan_is_null=True).combine_chunks()


def no_place(option: str, name: str) -> str:
    """Says what is wrong with such a row."""
    return f"column {name!r} of {option} holds NULL or NaN, which has no place in an order"


def _refuse_unplaced(table: pa.Table, option: str, names: Sequence[str]) -> None:
    for name in names:
        if pc.any(unplaced(table, name)).as_py():
            raise BadRowError(
                no_place(option, name),
                applied="nothing of this partition",
                next_step="filter or coalesce it in the query",
                column=name,
            )


def no_order(order_by: Sequence[str]) -> str:
    """Says what rows are that come in no known order."""
    return f"are equal in order_by={list(order_by)}" if order_by else "have no order_by"


def _unordered(row: pa.Table, key: Sequence[str], order_by: Sequence[str]) -> BadRowError:
    (values,) = row.select(list(key)).to_pylist()
    where = ", ".join(f"{name}={value!r:.80}" for name, value in values.items())
    how = no_order(order_by)
    return BadRowError(
        f"the batch holds different rows of the key {where} which {how}, so which comes last is "
        "not known",
        applied="nothing of this partition",
        next_step="pass order_by=[…], columns that put the rows of a key in one order; "
        "replayable_socket gives one, offset, with includeOffset=true",
    )
