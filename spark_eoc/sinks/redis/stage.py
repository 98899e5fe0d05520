"""One partition, staged for a batch that is published whole."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import RedisError

from spark_eoc.errors import BatchTooLargeError, SinkUnavailableError
from spark_eoc.failpoints import hit
from spark_eoc.sinks.entries import Applied, Fingerprint, Outcome, Refused, Unit
from spark_eoc.sinks.redis.keys import LedgerKeys
from spark_eoc.sinks.redis.lua_stage import SEAL_SCRIPT, STAGE_SCRIPT
from spark_eoc.sinks.redis.outcomes import bad_row, fenced_or_behind, refused
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.server import PassingError, Patience, Script, run_script, text
from spark_eoc.sinks.redis.staged import StagedEntry, StagedSize, staging_member
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.window import Window, refuse_bad_rows
from spark_eoc.sinks.rows import Rows

NOTHING = "nothing of this batch"


class UnitStager:
    """Stages one unit under one id; ``rows`` are in the sink's order.

    After an error all chunks are sent again: they are the same, under the same numbers, so that
    it does not matter which of them had arrived.
    """

    def __init__(
        self, target: Target, keys: LedgerKeys, unit: Unit, staging_id: str, rows: Rows
    ) -> None:
        self._target, self._keys, self._unit, self._rows = target, keys, unit, rows
        self._staged, self._given = keys.staged(staging_id), keys.given(staging_id)
        self._member = staging_member(unit.epoch, unit.batch_id, staging_id)

    def stage(self) -> Outcome:
        """The outcome as data; what is refused leaves nothing staged."""
        try:
            refuse_bad_rows(self._target, self._rows)
        except RowRefusedError as error:
            return self._bad_row(error)
        return self._try()

    def _try(self) -> Outcome:
        outcome = self._keep_trying()
        if isinstance(outcome, Refused):
            self._discard()
        return outcome

    def _keep_trying(self) -> Outcome:
        what = f"stage partition {self._unit.partition} of batch {self._unit.batch_id}"
        patience = Patience(self._target.address, what, self._target.budget_s, NOTHING)
        try:
            return patience.keep_trying(self._stage)
        except (SinkUnavailableError, BatchTooLargeError) as error:
            return refused(error)
        except RowRefusedError as error:
            return self._bad_row(error)

    def _stage(self, client: redis.Redis) -> Outcome:
        script, size, chunks, done = Script(client, STAGE_SCRIPT), StagedSize(), 0, 0
        while done < len(self._rows):
            window, start = Window.at(self._target, self._rows, done), 0
            while start < len(window):
                end = window.cutter.end(start)
                chunks += 1
                answer, fact = self._send(script, window, start, end, chunks)
                if answer == b"FENCED":
                    return fenced_or_behind(self._unit, text(fact))
                size += StagedSize((end - start) * window.width, int(fact))
                size.check(f"partition {self._unit.partition} of batch {self._unit.batch_id}")
                start, done = end, window.row(end)
        return self._seal(client, StagedEntry(self._unit.fingerprint, chunks, size))

    def _send(self, script: Script, window: Window, start: int, end: int, number: int) -> list[Any]:
        hit("redis.before_stage")
        part = self._rows.slice(window.row(start), window.row(end)).fingerprint()
        ttl = self._target.command.ttl_argument
        head = self._head(number, part)
        return self._run(script, *window.arguments(self._own(), head, ttl, start, end))

    def _own(self) -> tuple[str, str, str]:
        return self._keys.control, self._keys.staging, self._staged

    def _head(self, number: int, part: Fingerprint) -> list[object]:
        return [self._unit.token, self._unit.batch_id, self._member, number, "", part]

    def _run(self, script: Script, count: int, parts: Sequence[bytes | memoryview]) -> list[Any]:
        reply = script.run(count, parts)
        if reply[0] == b"REFUSED":
            raise PassingError(text(reply[1]))
        self._rows.release()
        return reply

    def _seal(self, client: redis.Redis, entry: StagedEntry) -> Outcome:
        keys = [self._keys.control, self._staged]
        arguments: list[str | int] = [
            self._unit.token,
            self._unit.batch_id,
            entry.chunks,
            str(entry),
        ]
        answer, *facts = run_script(client, SEAL_SCRIPT, keys, arguments)
        if answer == "FENCED":
            return fenced_or_behind(self._unit, facts[0])
        if answer == "REFUSED":
            raise PassingError(facts[0])
        hit("redis.after_stage")
        return Applied()

    def _discard(self) -> None:
        """Best effort: what stays is deleted when the next batch opens."""
        with (
            contextlib.suppress(RedisError),
            self._target.address.connect() as client,
            client.pipeline(transaction=True) as pipe,
        ):
            pipe.delete(self._staged, self._given)
            pipe.srem(self._keys.staging, self._member)
            pipe.execute()

    def _bad_row(self, error: RowRefusedError) -> Refused:
        key = self._target.command.key.render(self._rows.table.slice(error.row, 1))[0].as_py()
        return bad_row(self._unit, key, f"column {error.column!r}: {error.reason}", NOTHING)
