"""One unit whose refused rows are put aside, in the scripts that write the rows beside them.

Rows that can't be written whatever Redis holds are known before anything is sent. Their place is
the unit's end, an order that depends on nothing but the rows; so all chunks before it are as
without them, and the letters at the end can be cut anywhere. Rows that don't fit what Redis holds
are named by a chunk's script, which is then sent again without them and with their letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from spark_eoc.failpoints import hit
from spark_eoc.sinks.dead_letters import RefusedRow, over_limit, row_json, source_offset
from spark_eoc.sinks.entries import Applied, Outcome, Refused, Unit
from spark_eoc.sinks.redis.apply import UnitWriter
from spark_eoc.sinks.redis.bad_rows import bad_rows
from spark_eoc.sinks.redis.cut import CHUNK_BYTES
from spark_eoc.sinks.redis.keys import (
    COMPLETE,
    HALF,
    PARTIAL,
    LedgerKeys,
    dead_letters_in,
    unit_text,
)
from spark_eoc.sinks.redis.lua_aside import aside_script
from spark_eoc.sinks.redis.operations import Operations
from spark_eoc.sinks.redis.resp import bulk
from spark_eoc.sinks.redis.server import Script, text
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.window import Window
from spark_eoc.sinks.rows import Rows

_Letter = tuple[bytes, ...]


class AsideWriter(UnitWriter):
    """Applies one unit; ``rows`` are in the order of ``bad_last`` in
    :mod:`spark_eoc.sinks.redis.bad_rows`."""

    def __init__(self, target: Target, keys: LedgerKeys, unit: Unit, rows: Rows) -> None:
        super().__init__(target, keys, unit, rows)
        self._limit = target.dead_letter_limit or 0
        self._stream = target.dead_letters
        self._known: dict[int, RefusedRow] = {}
        self._named: dict[int, RefusedRow] = {}
        self._aside = 0
        self._client: Any = None

    def apply(self) -> Outcome:
        """See :meth:`UnitWriter.apply`; too many bad rows are refused before anything is sent."""
        self._known = bad_rows(self._target, self._rows, self._limit)
        if len(self._known) > self._limit:
            return self._too_many(len(self._known), 0)
        self._good = len(self._rows) - len(self._known)
        return self.write()

    @property
    def letters(self) -> int:
        """Rows that were put aside by now."""
        return self._aside

    def _source(self) -> str:
        return aside_script(self._command.name, self._command.on_null)

    def _write_from(self, client: redis.Redis) -> Outcome:
        self._client = client
        if self._known and not self._aside:
            before = self._aside_by_others()
            if before + len(self._known) > self._limit:
                return self._too_many(len(self._known), before)
        return super()._write_from(client)

    def _chunk(self, script: Script) -> Outcome | None:
        if self._done.rows >= self._good:
            return self._send_letters(script)
        window = self._next_window()
        end = window.cutter.end(self._start)
        named = {**beyond(window.operations), **self._named}
        letters, end = self._letters_within(window, end, named)
        return self._send(script, window, end, named, letters, window.row(end))

    def _letters_within(
        self, window: Window, end: int, named: Mapping[int, RefusedRow]
    ) -> tuple[list[_Letter], int]:
        """The letters of the named operations before ``end``, or before a key's end that comes
        earlier, where they are too large for one script; those of one operation stay together."""
        found: list[tuple[int, list[_Letter]]] = []
        size = 0
        for operation in sorted(o for o in named if self._start <= o < end):
            letters = self._letters_of(window, operation, named[operation])
            size += _size(letters)
            cut = window.cutter.key_end(self._start, operation)
            if size > CHUNK_BYTES and cut > self._start:
                end = cut
                break
            found.append((operation, letters))
        return [letter for at, letters in found if at < end for letter in letters], end

    def _letters_of(self, window: Window, operation: int, why: RefusedRow) -> list[_Letter]:
        """Those of an operation's rows, as many as can be needed."""
        first, stop = window.row(operation), window.row(operation + 1)
        rows = range(first, min(stop, first + self._limit + 1))
        return [self._letter(RefusedRow(row, why.reason, why.column)) for row in rows]

    def _next_window(self) -> Window:
        if self._window is None or self._start == len(self._window):
            good = self._rows.slice(0, self._good)
            self._window = Window.at(self._target, good, self._done.rows, keep_bad=True)
            self._start, self._named = 0, {}
        return self._window

    def _send_letters(self, script: Script) -> Outcome | None:
        """The rows at the unit's end, as many as go into one script."""
        letters: list[_Letter] = []
        size, start = 0, self._done.rows
        for row in range(start, len(self._rows)):
            letters.append(self._letter(self._known[row]))
            size += _size(letters[-1:])
            if size > CHUNK_BYTES:
                break
        return self._send(script, None, 0, {}, letters, start + len(letters))

    def _send(  # noqa: PLR0917
        self,
        script: Script,
        window: Window | None,
        end: int,
        named: Mapping[int, RefusedRow],
        letters: Sequence[_Letter],
        stop: int,
    ) -> Outcome | None:
        """Sends operations ``[_start, end)`` but the named ones, with letters; then rows up to
        ``stop`` are done."""
        if letters:
            before = self._aside_by_others()
            if before + self._aside + len(letters) > self._limit:
                return self._too_many(self._aside + len(letters), before)
        after = self._done + self._rows.slice(self._done.rows, stop).fingerprint()
        aside = self._aside + len(letters)
        complete = after.rows == len(self._rows)
        state = COMPLETE if complete else PARTIAL
        entry = unit_text(self._unit.batch_id, after, state, aside)
        part = None if window is None else without(window, self._start, end, named)
        answer, *facts = script.run(*self._all_arguments(part, entry, letters))
        if answer == b"BAD":
            self._name(facts, [o for o in range(self._start, end) if o not in named])
            return None
        if answer == b"LETTERS":
            return self._unfit(text(facts[0]))
        if answer != b"OK":
            return self._answered(text(answer), facts)
        self._start, self._done, self._expected, self._wrote = end, after, entry, True
        self._aside, self._named, self._patience = aside, {}, None
        self._rows.release()
        hit("redis.after_chunk")
        if not complete:
            return None
        hit("redis.after_unit")
        return Applied(aside)

    def _name(self, facts: Sequence[Any], sent: Sequence[int]) -> None:
        """Notes what the script named, numbered from 1 among the operations that were sent."""
        for number, reason in zip(facts[::2], facts[1::2], strict=True):
            self._named[sent[int(number) - 1]] = RefusedRow(0, text(reason))

    def _all_arguments(
        self, part: Window | None, entry: str, letters: Sequence[_Letter]
    ) -> tuple[int, list[bytes | memoryview]]:
        unit, count = self._unit, 0 if part is None else len(part)
        names = [] if part is None else part.operations.names
        half = unit_text(unit.batch_id, self._done, HALF, self._aside)
        head = [unit.token, unit.batch_id, unit.partition, self._expected, half, entry]
        head += [count, len(names), self._ttl_argument()]
        tail = [field for letter in letters for field in letter]
        tail += [_bytes(unit.writer_id), b"%d" % (self._limit + 1), b"%d" % len(letters)]
        parts = [
            bulk(b"%d" % (count + 3), _bytes(self._keys.control), _bytes(self._keys.units)),
            *([] if part is None else [part.keys(0, count)]),
            bulk(_bytes(self._stream), *(_bytes(str(value)) for value in head)),
            *([] if part is None else part.values(0, count)),
            bulk(*tail),
        ]
        values = 0 if part is None else part.value_count(0, count)
        return 4 + count + len(head) + values + len(tail), parts

    def _ttl_argument(self) -> str:
        ttl = self._command.ttl
        return "" if ttl is None else str(ttl) if isinstance(ttl, int) else "column"

    def _letter(self, refused: RefusedRow) -> _Letter:
        table = self._rows.table
        offset = source_offset(table, refused.row)
        fields = ("" if offset is None else str(offset), refused.column or "", refused.reason)
        return (*map(_bytes, fields), _bytes(row_json(table, refused.row)))

    def _resume(self, entry_text: str) -> Outcome | None:
        batch = entry_text.partition("|")[0]
        mine = batch == str(self._unit.batch_id)
        self._aside, self._named = dead_letters_in(entry_text) if mine else 0, {}
        outcome = super()._resume(entry_text)
        return Applied(self._aside) if outcome == Applied() else outcome

    def _aside_by_others(self) -> int:
        """Dead letters of the batch's other partitions, as far as they are written."""
        own, batch = str(self._unit.partition), str(self._unit.batch_id)
        entries = self._client.hgetall(self._keys.units)
        texts = {text(field): text(entry) for field, entry in entries.items()}
        return sum(
            dead_letters_in(entry)
            for field, entry in texts.items()
            if field != own and entry.partition("|")[0] == batch
        )

    def _too_many(self, found: int, before: int) -> Refused:
        return over_limit(self._unit, found, before, self._limit, self._so_far())

    def _so_far(self) -> str:
        return f"{self._done.rows} rows of this partition, {self._aside} of them dead letters"

    def _unfit(self, problem: str) -> Refused:
        return Refused(
            "SinkError",
            f"the stream {self._stream!r} can't take dead letters: {problem}",
            f"{self._done.rows} rows of this partition",
            "remove what is at that key, or let this user write to it, then restart the query",
        )


def beyond(ops: Operations) -> dict[int, RefusedRow]:
    """Operations that can't be done, because of what their rows add up to."""
    return {
        operation: RefusedRow(0, problem.reason, problem.column)
        for problem in ops.bad
        for operation in pc.indices_nonzero(pc.fill_null(problem.mask, False)).to_pylist()
    }


def without(window: Window, start: int, end: int, named: Mapping[int, RefusedRow]) -> Window:
    """The operations ``[start, end)`` that are not named, as a window of their own."""
    ops = window.operations
    keep = [operation not in named for operation in range(start, end)] if named else []
    mask = pa.array(keep, pa.bool_())

    def kept(column: Any) -> Any:
        part = column.slice(start, end - start)
        return part.filter(mask) if named else part

    columns = [kept(column) for column in ops.columns]
    ttl = None if ops.ttl is None else kept(ops.ttl)
    return Window(window.base, Operations(kept(ops.keys), columns, ops.names, ttl), window.cutter)


def _size(letters: Sequence[_Letter]) -> int:
    return sum(len(field) for letter in letters for field in letter)


def _bytes(value: str) -> bytes:
    return value.encode()
