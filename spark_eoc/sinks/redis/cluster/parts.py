"""A partition's rows by slot: where each slot's rows lie, and their operations, encoded once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.entries import Fingerprint
from spark_eoc.sinks.redis.aside import beyond
from spark_eoc.sinks.redis.bad_rows import bad_last, bad_rows
from spark_eoc.sinks.redis.cluster.slots import SLOTS, slot_of, slots_of, tag_of
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.cut import Cutter
from spark_eoc.sinks.redis.operations import Operations, arrange, operations
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.resp import Framed, bulk
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.text import text_column
from spark_eoc.sinks.redis.window import WINDOW_ROWS, null_mask
from spark_eoc.sinks.rows import Rows

_GROUP_BYTES = 32 * 1024 * 1024
_MODULUS = 1 << 64


@dataclass(frozen=True)
class Part:
    """The rows ``[start, stop)`` of a partition lie in ``slot``."""

    slot: int
    start: int
    stop: int
    fingerprint: Fingerprint

    def __len__(self) -> int:
        return self.stop - self.start


def parts_of(command: Command, rows: Rows) -> list[Part]:
    """The parts of rows that are in the sink's order, one a slot."""
    parts: list[Part] = []
    for base in range(0, len(rows), WINDOW_ROWS):
        stop = min(len(rows), base + WINDOW_ROWS)
        for part in _runs(command, rows.slice(base, stop), base):
            if parts and parts[-1].slot == part.slot:  # it goes on where the window was cut
                last = parts.pop()
                together = last.fingerprint + part.fingerprint
                part = Part(part.slot, last.start, part.stop, together)  # noqa: PLW2901
            parts.append(part)
        rows.release()
    return parts


def parts_with_bad(target: Target, rows: Rows) -> list[Part]:
    """The same where bad rows are put aside: those that can't be written, whatever Redis holds,
    are the last, and belong to the slot of :func:`bad_slot`."""
    good = len(rows) - len(bad_rows(target, rows))
    parts = parts_of(target.command, rows.slice(0, good)) if good else []
    if good == len(rows):
        return parts
    slot, bad = bad_slot(target), rows.slice(good, len(rows)).fingerprint()
    if parts and parts[-1].slot == slot:
        last = parts.pop()
        return [*parts, Part(slot, last.start, len(rows), last.fingerprint + bad)]
    return [*parts, Part(slot, good, len(rows), bad)]


def bad_slot(target: Target) -> int:
    """Where rows lie that have no key, or none that may be written."""
    return slot_of(target.dead_letters.encode())


def arranged_with_bad(target: Target, rows: Rows) -> Rows:
    """The rows in the order of :func:`parts_with_bad`."""
    last = pa.scalar(bad_slot(target), pa.int16())

    def order(keys: pa.Array) -> pa.Array:
        slots = slots_of(keys)
        return pc.if_else(pc.equal(slots, last), pa.scalar(SLOTS, pa.int16()), slots)

    return bad_last(target, arrange(target.command, rows, first=order))


def letters_key(target: Target, slot: int) -> str:
    """The stream of a slot's dead letters."""
    return f"{target.dead_letters}:{{{tag_of(slot)}}}"


def _runs(command: Command, rows: Rows, base: int) -> Iterator[Part]:
    slots = slots_of(command.key.render(rows.table))
    # Sums of hashes are modulo 2^64, as these are.
    sums = pc.cumulative_sum(rows.hashes.combine_chunks().view(pa.uint64()))
    start = before = 0
    for stop in (*_changes(slots), len(rows)):
        total = sums[stop - 1].as_py()
        found = Fingerprint(stop - start, (total - before) % _MODULUS)
        yield Part(slots[start].as_py(), base + start, base + stop, found)
        start, before = stop, total


def _changes(slots: pa.Array) -> list[int]:
    if len(slots) < 2:
        return []
    other = pc.not_equal(slots.slice(1), slots.slice(0, len(slots) - 1))
    return list(pc.add(pc.indices_nonzero(other), 1).to_pylist())


def groups(target: Target, rows: Rows, parts: Sequence[Part]) -> Iterator[Group]:
    """Neighbouring parts whose operations are made and encoded together; a large part alone.

    Raises RowRefusedError, counted in ``rows``.
    """
    row_bytes = max(1, rows.table.nbytes // max(1, len(rows)))
    most = max(1, min(WINDOW_ROWS, _GROUP_BYTES // row_bytes))
    together: list[Part] = []
    for part in parts:
        if together and part.stop - together[0].start > most:
            yield Group(target, rows, together)
            together = []
        together.append(part)
    if together:
        yield Group(target, rows, together)


class Group:
    """``parts`` follow each other; their operations are made here unless it is one large part."""

    def __init__(self, target: Target, rows: Rows, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._target = target
        self._base = parts[0].start
        self._rows = rows.slice(self._base, parts[-1].stop)
        self.names: Sequence[str] = target.command.inputs(rows.table.column_names)

    def small(self) -> Iterator[tuple[Part, int, int]]:
        """The parts that fit into one chunk, with their operations ``[start, end)``; not those
        with sums that a counter can't take, where these are put aside."""
        if len(self._rows) > WINDOW_ROWS:
            return
        keep_bad = self._target.dead_letter_limit is not None
        try:
            ops = operations(self._target.command, self._rows, keep_bad=keep_bad)
        except RowRefusedError as error:
            raise error.shifted(self._base) from None
        self._encode(ops)
        cutter = Cutter.of(ops.keys, ops.sizes(), self._target.chunk_rows, len(ops.columns) + 2)
        bad = beyond(ops)
        start = 0
        for part in self.parts:
            end = _operation_at(ops, part.stop - self._base)
            if cutter.end(start) >= end and bad.keys().isdisjoint(range(start, end)):
                yield part, start, end
            start = end

    def keys(self, start: int, end: int) -> memoryview:
        """The target keys of operations ``[start, end)``, encoded."""
        return self._keys[start:end]

    def values(self, start: int, end: int) -> tuple[list[bytes | memoryview], int]:
        """Names, NULL masks, columns and TTLs of these operations, encoded, and how many."""
        masks = self._no_masks
        if any(self._masks):
            masks = bulk(*(mask[start:end] for mask in self._masks))
        columns = [column[start:end] for column in self._columns]
        count = 2 * len(self._masks) + len(columns) * (end - start)
        return [self._name_words, masks, *columns], count

    def _encode(self, ops: Operations) -> None:
        texts = [text_column(column) for column in ops.columns]
        self._keys = Framed(ops.keys)
        self._name_words = bulk(*(name.encode() for name in ops.names))
        self._masks = [null_mask(column) for column in texts]
        self._no_masks = bulk(*self._masks) if not any(self._masks) else b""
        filled = [column.fill_null(b"") if column.null_count else column for column in texts]
        if ops.ttl is not None:
            filled.append(text_column(ops.ttl))
        self._columns = [Framed(column) for column in filled]


def _operation_at(ops: Operations, rows: int) -> int:
    """How many operations cover the first ``rows`` rows, where a key ends."""
    return rows if ops.row_ends is None else bisect_left(ops.row_ends, rows) + 1
