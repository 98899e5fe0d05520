"""One unit, applied chunk by chunk until its entry says complete."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis.exceptions import RedisError

from spark_eoc.errors import HalfAppliedError, SinkUnavailableError
from spark_eoc.failpoints import hit
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Fingerprint,
    Outcome,
    Refused,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.ledger import decide_after_error, fenced, mismatch
from spark_eoc.sinks.redis.cut import Cutter
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
from spark_eoc.sinks.redis.operations import operations
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.resp import bulk, bulks
from spark_eoc.sinks.redis.server import PassingError, Patience, Script, text
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.text import text_column
from spark_eoc.sinks.rows import Rows

_SHOWN_KEY_BYTES = 100


class UnitWriter:
    """Applies one unit; ``rows`` are in the sink's order.

    The unit entry alone decides where to go on, after every answer and after every lost one. So
    it does not matter which of two copies of a task, or of two tries of one script, came first.
    """

    def __init__(self, target: Target, keys: LedgerKeys, unit: Unit, rows: Rows) -> None:
        self._target, self._command = target, target.command
        self._keys, self._unit, self._rows = keys, unit, rows
        self._patience: Patience | None = None
        self._done = Fingerprint()
        self._start = 0
        self._expected = ""
        self._wrote = False

    def apply(self) -> Outcome:
        """The outcome as data; what went wrong for good is a Refused, too."""
        try:
            self._operations = operations(self._command, self._target.ledger, self._rows)
        except RowRefusedError as error:
            return self._bad_row(error.row, error.column, error.reason)
        self._cutter = Cutter.of(
            self._operations.keys,
            self._operations.sizes(),
            self._target.chunk_rows,
            len(self._operations.columns) + 2,
        )
        while True:
            try:
                with self._target.address.connect() as client:
                    return self._write_from(client)
            except (RedisError, PassingError) as error:
                outcome = self._after(error)
                if outcome is not None:
                    return outcome

    def _after(self, error: RedisError | PassingError) -> Outcome | None:
        """Looks at the unit entry first: only if work is left is the error classified."""
        if self._patience is None:
            what = f"write partition {self._unit.partition} of batch {self._unit.batch_id}"
            self._patience = Patience(self._target.address, what, self._target.budget_s)
        try:
            outcome = self._look(self._patience)
            if outcome is None:
                self._patience.wait(error)
        except SinkUnavailableError as unavailable:
            return _refused(unavailable)
        return outcome

    def _write_from(self, client: redis.Redis) -> Outcome:
        script = Script(client, self._source())
        while True:
            hit("redis.before_chunk")
            outcome = self._chunk(script)
            if outcome is not None:
                return outcome

    def _source(self) -> str:
        return chunk_script(self._command.name, self._command.on_null)

    def _chunk(self, script: Script) -> Outcome | None:
        """Sends the chunk at ``_start``; None if more are to come."""
        end = self._cutter.end(self._start)
        first, last = (self._operations.rows_before(o) for o in (self._start, end))
        after = self._done + self._rows.slice(first, last).fingerprint()
        complete = end == len(self._operations)
        entry = unit_text(self._unit.batch_id, after, COMPLETE if complete else PARTIAL)
        try:
            parts, count = self._arguments(end, entry)
        except RowRefusedError as error:
            return self._bad_row(first + error.row, error.column, error.reason)
        answer, *facts = script.run(count, parts)
        if answer != b"OK":
            return self._answered(text(answer), facts)
        self._start, self._done, self._expected, self._wrote = end, after, entry, True
        self._patience = None  # the budget is for standing still, not for a long unit
        hit("redis.after_chunk")
        if not complete:
            return None
        hit("redis.after_unit")
        return Applied()

    def _answered(self, answer: str, facts: list[Any]) -> Outcome | None:
        if answer == "MOVED":
            return self._resume(text(facts[0]))
        if answer == "FENCED":
            return self._fenced(text(facts[0]))
        if answer == "NEWER":
            return fenced(self._unit)
        if answer == "HALF":
            entry, problem = map(text, facts)
            return _refused(half_applied(self._unit.partition, entry, problem))
        if answer == "BAD":
            operation = self._start + int(facts[0]) - 1
            row = self._operations.rows_before(operation)
            return self._bad_row(row, None, text(facts[1]))
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
            entry = parse_unit(self._unit.partition, entry_text) if entry_text else None
        except HalfAppliedError as error:
            return _refused(error)
        if entry is None or entry.batch_id < self._unit.batch_id:
            self._start, self._done, self._expected = 0, Fingerprint(), ""
            return None
        if entry.complete or entry.batch_id > self._unit.batch_id:
            outcome = decide_after_error(entry, self._unit)
            return Applied() if self._wrote and outcome == AlreadyApplied() else outcome
        return self._go_on(entry, entry_text)

    def _go_on(self, entry: UnitEntry, entry_text: str) -> Outcome | None:
        operation = self._operations.operation_after(entry.rows_done)
        if (
            operation is None
            or operation >= len(self._operations)
            or self._rows.slice(0, entry.rows_done).fingerprint() != entry.fingerprint
        ):
            return mismatch(self._unit, entry)
        self._start, self._done, self._expected = operation, entry.fingerprint, entry_text
        return None

    def _arguments(self, end: int, entry: str) -> tuple[list[bytes | memoryview], int]:
        """The script's keys and arguments for operations ``[_start, end)``, and their number."""
        unit, ops, start = self._unit, self._operations, self._start
        n, names = end - start, [name.encode() for name in ops.names]
        head = [unit.token, unit.batch_id, unit.partition, self._expected, self._half(), entry, n]
        head += [len(names), self._ttl()]
        masks, columns = [], list[memoryview]()
        for column in ops.columns:
            values = text_column(column.slice(start, n))
            masks.append(_null_mask(values))
            columns.append(bulks(values.fill_null(b"") if values.null_count else values))
        ttl = [] if ops.ttl is None else [bulks(text_column(ops.ttl.slice(start, n)))]
        parts: list[bytes | memoryview] = [
            bulk(b"%d" % (n + 2), self._keys.control.encode(), self._keys.units.encode()),
            bulks(ops.keys.slice(start, n)),
            bulk(*(str(value).encode() for value in head), *names, *masks),
            *columns,
            *ttl,
        ]
        count = 1 + 2 + n + len(head) + 2 * len(names) + n * (len(columns) + len(ttl))
        return parts, count

    def _half(self) -> str:
        return unit_text(self._unit.batch_id, self._done, HALF)

    def _ttl(self) -> str:
        ttl = self._command.ttl
        return "" if ttl is None else str(ttl) if isinstance(ttl, int) else "column"

    def _fenced(self, epoch: str) -> Refused:
        if epoch and int(epoch) >= self._unit.epoch:
            return fenced(self._unit)
        return Refused(
            "SinkBehindError",
            f"Redis went back to an older state while batch {self._unit.batch_id} was written: its "
            f"ledger shows epoch {epoch or 'nothing'} and this call opened epoch "
            f"{self._unit.epoch}",
            "what that older state holds",
            "restart the query; it will be refused if batches are missing in Redis, and then a "
            "checkpoint as old as the sink must be restored",
        )

    def _bad_row(self, row: int, column: str | None, reason: str) -> Refused:
        key = self._command.key.render(self._rows.table.slice(row, 1))[0].as_py()
        shown = "NULL" if key is None else repr(key[:_SHOWN_KEY_BYTES])[1:]
        where = f"column {column!r}" if column else f"command={self._command.name!r}"
        return Refused(
            "BadRowError",
            f"a row for key {shown} of partition {self._unit.partition}, batch "
            f"{self._unit.batch_id}, can't be written: {where}: {reason}",
            f"the partition's first {self._done.rows} rows; nothing of the chunk with this row",
            "mend the row in the query (filter or coalesce it) or the key in Redis, then restart",
        )


def _null_mask(values: pa.Array) -> bytes:
    """ "" if nothing is NULL, else one "0" or "1" a value."""
    if not values.null_count:
        return b""
    flags = pc.is_null(values).cast(pa.uint8())
    return bytes(memoryview(pc.add(flags, pa.scalar(48, pa.uint8())).buffers()[1])[: len(values)])


def _refused(error: HalfAppliedError | SinkUnavailableError) -> Refused:
    return Refused(type(error).__name__, error.what, error.applied, error.next_step)
