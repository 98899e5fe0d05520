"""One partition, staged for a batch whose refused rows are put aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from spark_eoc.failpoints import hit
from spark_eoc.sinks.dead_letters import RefusedRow, over_limit
from spark_eoc.sinks.entries import Fingerprint, Outcome, Refused
from spark_eoc.sinks.redis.aside import beyond, without
from spark_eoc.sinks.redis.bad_rows import bad_rows
from spark_eoc.sinks.redis.given import Letter, letter, packed_letters, packed_rows, size_of
from spark_eoc.sinks.redis.lua_stage import GIVEN_SCRIPT, STAGE_SCRIPT
from spark_eoc.sinks.redis.outcomes import fenced_or_behind
from spark_eoc.sinks.redis.resp import bulk
from spark_eoc.sinks.redis.server import Script, text
from spark_eoc.sinks.redis.stage import NOTHING, UnitStager
from spark_eoc.sinks.redis.staged import StagedEntry, StagedSize, check_given, check_letters
from spark_eoc.sinks.redis.window import Window


class AsideStager(UnitStager):
    """As :class:`UnitStager`; ``rows`` are in the order of ``bad_last``.

    Rows that can't be written whatever Redis holds are staged as letters, in a chunk without
    operations; of the others what the frame gave is kept, until the batch is published.
    """

    def stage(self) -> Outcome:
        """The outcome as data; too many bad rows are refused before anything is staged."""
        self._limit = self._target.dead_letter_limit or 0
        self._name = f"partition {self._unit.partition} of batch {self._unit.batch_id}"
        self._known = bad_rows(self._target, self._rows, self._limit)
        if len(self._known) > self._limit:
            return over_limit(self._unit, len(self._known), 0, self._limit, NOTHING)
        return self._try()

    def _stage(self, client: redis.Redis) -> Outcome:
        self._script, self._keep = Script(client, STAGE_SCRIPT), Script(client, GIVEN_SCRIPT)
        self._size, self._chunks = StagedSize(), 0
        self._letters, self._letters_size = list[Letter](), 0
        good = self._rows.slice(0, len(self._rows) - len(self._known))
        done = 0
        while done < len(good):
            window, start = Window.at(self._target, good, done, keep_bad=True), 0
            bad = beyond(window.operations)
            while start < len(window):
                end = window.cutter.end(start)
                named = {o: why for o, why in bad.items() if start <= o < end}
                reply = self._send_good(window, start, end, named)
                if reply[0] == b"FENCED":
                    return fenced_or_behind(self._unit, text(reply[1]))
                if len(self._letters) > self._limit:
                    return self._too_many()
                start, done = end, window.row(end)
        return self._end(client, done)

    def _send_good(
        self, window: Window, start: int, end: int, named: dict[int, RefusedRow]
    ) -> list[Any]:
        """A chunk of the operations that are not named; the rows of these are letters."""
        hit("redis.before_stage")
        rows = self._rows.slice(window.row(start), window.row(end))
        part = without(window, start, end, named)
        self._chunks += 1
        ttl = self._target.command.ttl_argument
        head = self._head(self._chunks, rows.fingerprint())
        arguments = part.arguments(self._own(), head, ttl, 0, len(part))
        reply = self._run(self._script, *arguments)
        if reply[0] != b"OK":
            return reply
        self._size += StagedSize(len(part) * part.width, int(reply[1]))
        self._size.check(self._name)
        numbers: list[int] = []
        for operation in range(start, end):
            covered = window.row(operation + 1) - window.row(operation)
            first = len(numbers)
            numbers += [0 if operation in named else operation - start + 1] * covered
            if operation in named:
                self._note(rows.table, range(first, len(numbers)), named[operation])
        packed = packed_rows(rows.table, _closed_up(numbers))
        check_given(len(packed), self._name)
        return self._store(str(self._chunks), packed)

    def _note(self, table: Any, rows: Sequence[int], why: RefusedRow) -> None:
        """Adds the rows' letters; of more than the limit only as many as show that."""
        most = self._limit + 1 - len(self._letters)
        for row in rows[: max(0, most)]:
            refused = RefusedRow(row, why.reason, why.column)
            self._letters.append(letter(self._unit.partition, table, refused))
            self._letters_size += size_of(self._letters[-1:])
        check_letters(self._letters_size, self._name)

    def _end(self, client: redis.Redis, good: int) -> Outcome:
        """The rows that were bad from the start, all letters, and the seal."""
        bad = self._rows.slice(good, len(self._rows))
        if len(bad):
            self._chunks += 1
            reply = self._run(self._script, *self._no_operations(bad.fingerprint()))
            if reply[0] == b"FENCED":
                return fenced_or_behind(self._unit, text(reply[1]))
        for row in range(good, len(self._rows)):
            self._note(self._rows.table, [row], self._known[row])
        if len(self._letters) > self._limit:
            return self._too_many()
        pieces = [*packed_letters(self._letters)]
        for number, piece in enumerate(pieces, 1):
            reply = self._store(f"aside:{number}", piece.encode())
            if reply[0] == b"FENCED":
                return fenced_or_behind(self._unit, text(reply[1]))
        found = self._unit.fingerprint, self._chunks, self._size, len(self._letters), len(pieces)
        return self._seal(client, StagedEntry(*found))

    def _too_many(self) -> Refused:
        return over_limit(self._unit, len(self._letters), 0, self._limit, NOTHING)

    def _no_operations(self, part: Fingerprint) -> tuple[int, list[bytes | memoryview]]:
        words = [*self._own(), *self._head(self._chunks, part), 0, 0, ""]
        return 1 + len(words), [bulk(b"3", *(str(word).encode() for word in words))]

    def _store(self, field: str, value: bytes) -> list[Any]:
        keys = (self._keys.control, self._keys.staging, self._given)
        words = [*keys, self._unit.token, self._unit.batch_id, self._member, field]
        encoded = [str(word).encode() for word in words]
        return self._run(self._keep, 2 + len(words), [bulk(b"3", *encoded, value)])


def _closed_up(numbers: Sequence[int]) -> list[int]:
    """The operations' numbers once those without one are gone, in which case rows have 0."""
    found: dict[int, int] = {0: 0}
    for number in numbers:
        found.setdefault(number, len(found))
    return [found[number] for number in numbers]
