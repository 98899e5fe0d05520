"""One unit, applied chunk by chunk until its entry says complete."""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import RedisError

from spark_eoc.errors import HalfAppliedError, SinkUnavailableError
from spark_eoc.failpoints import hit
from spark_eoc.sinks.dead_letters import source_offset
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Fingerprint,
    Outcome,
    Refused,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.ledger import decide_after_error, mismatch
from spark_eoc.sinks.redis.keys import (
    COMPLETE,
    HALF,
    PARTIAL,
    LedgerKeys,
    half_applied,
    parse_unit,
    unit_text,
)
from spark_eoc.sinks.redis.lua_chunk import chunk_script
from spark_eoc.sinks.redis.outcomes import bad_row, fenced_or_behind, refused
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.replicas import TooFewReplicasError
from spark_eoc.sinks.redis.server import PassingError, Patience, Place, Script, text
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.window import Window, refuse_bad_rows
from spark_eoc.sinks.rows import Rows


class UnitWriter:
    """Applies one unit; ``rows`` are in the sink's order.

    ``_named_key`` is where its entry lies, if that is not the units hash.

    The unit entry alone decides where to go on, after every answer and after every lost one. So
    it does not matter which of two copies of a task, or of two tries of one script, came first.
    """

    _named_key = ""

    def __init__(self, target: Target, keys: LedgerKeys, unit: Unit, rows: Rows) -> None:
        self._target, self._command = target, target.command
        self._keys, self._unit, self._rows = keys, unit, rows
        self._place: Place = target.address
        self._patience: Patience | None = None
        self._done = Fingerprint()
        self._expected = ""
        self._window: Window | None = None
        self._start = 0
        self._wrote = False
        self._outcome: Outcome | None = None

    def apply(self) -> Outcome:
        """The outcome as data; what went wrong for good is a Refused, too."""
        try:
            refuse_bad_rows(self._target, self._rows)
        except RowRefusedError as error:
            return self.bad_row(error.row, error.column, error.reason)
        return self.write()

    def write(self) -> Outcome:
        """The same for rows that :func:`refuse_bad_rows` has let pass."""
        while True:
            try:
                with self._place.connect() as client:
                    return self._finish(client)
            except (RedisError, PassingError) as error:
                outcome = self._after(error)
                if isinstance(outcome, Refused) or (outcome and not self._target.replicas.count):
                    return outcome
                self._outcome = outcome

    def _finish(self, client: redis.Redis) -> Outcome:
        """Writes what is left, and waits for replicas: also where nothing was left."""
        outcome = self._outcome or self._write_from(client)
        if not isinstance(outcome, Refused):
            self._target.replicas.wait(client, self._keys.waited)
        return outcome

    def _after(self, error: RedisError | PassingError) -> Outcome | None:
        """Looks at the unit entry first: only if work is left is the error classified."""
        if self._patience is None:
            what = f"write partition {self._unit.partition} of batch {self._unit.batch_id}"
            self._patience = Patience(self._place, what, self._target.budget_s)
        try:
            outcome = self._look(self._patience)
            if outcome is None or isinstance(error, TooFewReplicasError):
                self._patience.wait(error)
        except SinkUnavailableError as unavailable:
            return refused(unavailable)
        return outcome

    def _write_from(self, client: redis.Redis) -> Outcome:
        script = self._script(client)
        while True:
            hit("redis.before_chunk")
            outcome = self._chunk(script)
            if outcome is not None:
                return outcome

    def _script(self, client: redis.Redis) -> Script:
        return Script(client, self._source())

    def _source(self) -> str:
        return chunk_script(self._command.name, self._command.on_null)

    def _chunk(self, script: Script) -> Outcome | None:
        """Sends the next chunk; None if more are to come."""
        try:
            window = self._next_window()
        except RowRefusedError as error:
            return self.bad_row(error.row, error.column, error.reason)
        end = window.cutter.end(self._start)
        chunk = self._rows.slice(self._done.rows, window.row(end))
        after = self._done + chunk.fingerprint()
        complete = after.rows == len(self._rows)
        entry = unit_text(self._unit.batch_id, after, COMPLETE if complete else PARTIAL)
        answer, *facts = script.run(*self._arguments(window, end, entry))
        if answer != b"OK":
            return self._answered(text(answer), facts)
        self._start, self._done, self._expected, self._wrote = end, after, entry, True
        self._patience = None  # the budget is for standing still, not for a long unit
        self._rows.release()
        hit("redis.after_chunk")
        if not complete:
            return None
        hit("redis.after_unit")
        return Applied()

    def _next_window(self) -> Window:
        if self._window is None or self._start == len(self._window):
            self._window = None
            self._window = Window.at(self._target, self._rows, self._done.rows)
            self._start = 0
        return self._window

    def _answered(self, answer: str, facts: list[Any]) -> Outcome | None:
        if answer == "MOVED":
            return self._resume(text(facts[0]))
        if answer == "FENCED":
            return fenced_or_behind(self._unit, text(facts[0]))
        if answer == "HALF":
            entry, problem = map(text, facts)
            return refused(half_applied(self._unit.partition, entry, problem, self._named_key))
        if answer == "BAD":
            row = self._next_window().row(self._start + int(facts[0]) - 1)
            return self.bad_row(row, None, text(facts[1]))
        raise PassingError(text(facts[0]))

    def _look(self, patience: Patience) -> Outcome | None:
        """Reads the unit entry again and goes where it points."""
        stored = patience.keep_trying(
            lambda client: client.hget(self._keys.units, str(self._unit.partition))
        )
        return self._resume(text(stored) if stored is not None else "")

    def _resume(self, entry_text: str) -> Outcome | None:
        """Moves to where ``entry_text`` says that the unit stands; None if there is work left."""
        try:
            entry = self._parse(entry_text) if entry_text else None
        except HalfAppliedError as error:
            return refused(error)
        if entry is None or entry.batch_id < self._unit.batch_id:
            self._window, self._done, self._expected = None, Fingerprint(), ""
            return None
        if entry.complete or entry.batch_id > self._unit.batch_id:
            outcome = decide_after_error(entry, self._unit)
            return Applied() if self._wrote and outcome == AlreadyApplied() else outcome
        return self._go_on(entry, entry_text)

    def _parse(self, entry_text: str) -> UnitEntry:
        return parse_unit(self._unit.partition, entry_text, self._named_key)

    def _go_on(self, entry: UnitEntry, entry_text: str) -> Outcome | None:
        done = entry.rows_done
        if done >= len(self._rows) or self._rows.slice(0, done).fingerprint() != entry.fingerprint:
            return mismatch(self._unit, entry)
        self._window, self._done, self._expected = None, entry.fingerprint, entry_text
        return None

    def _arguments(
        self, window: Window, end: int, entry: str
    ) -> tuple[int, list[bytes | memoryview]]:
        """How many keys and arguments the script gets for ``[_start, end)``, and these."""
        unit = self._unit
        half = unit_text(unit.batch_id, self._done, HALF)
        head = [unit.token, unit.batch_id, unit.partition, self._expected, half, entry]
        own = (self._keys.control, self._keys.units)
        return window.arguments(own, head, self._command.ttl_argument, self._start, end)

    def bad_row(self, row: int, column: str | None, reason: str) -> Refused:
        """The refusal of a row, which counts from 0 in the unit's."""
        key = self._command.key.render(self._rows.table.slice(row, 1))[0].as_py()
        where = f"column {column!r}" if column else f"command={self._command.name!r}"
        offset = source_offset(self._rows.table, row)
        where = where if offset is None else f"offset {offset}, {where}"
        return bad_row(self._unit, key, f"{where}: {reason}", self._applied())

    def _applied(self) -> str:
        """What is applied where a row of the next chunk is bad."""
        done = self._done.rows
        if not done:
            return "nothing of this partition"
        return f"the partition's first {done} rows; nothing of the chunk with this row"
