"""One partition, applied slot by slot: many small slots at once, whatever is left one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import redis

from spark_eoc.errors import SinkUnavailableError
from spark_eoc.failpoints import hit
from spark_eoc.sinks.entries import (
    AlreadyApplied,
    Applied,
    Fingerprint,
    Outcome,
    Refused,
    Unit,
)
from spark_eoc.sinks.ledger import mismatch
from spark_eoc.sinks.redis.apply import UnitWriter
from spark_eoc.sinks.redis.cluster.flight import Reply, SlotCall, flights, fly
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.lost import behind
from spark_eoc.sinks.redis.cluster.lua_control import REGISTER_SCRIPT
from spark_eoc.sinks.redis.cluster.lua_slot import slot_chunk_script
from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace, asked_place
from spark_eoc.sinks.redis.cluster.parts import Group, Part, groups, parts_of
from spark_eoc.sinks.redis.keys import COMPLETE, HALF, parse_unit, unit_text
from spark_eoc.sinks.redis.outcomes import fenced_or_behind, refused
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.resp import bulk
from spark_eoc.sinks.redis.server import PassingError, Patience, Script, run_script
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.window import Window, refuse_bad_rows
from spark_eoc.sinks.rows import Rows

_AS_ENTRIES_SAY = "what their ledger entries say"


class SlotWriter(UnitWriter):
    """Applies a partition's rows of one slot, and goes on wherever its entry says.

    ``unit`` has these rows' fingerprint.
    """

    def __init__(self, whole: ClusterUnitWriter, part: Part, place: SlotPlace, floor: str) -> None:
        keys, unit = whole.keys.slot(part.slot), replace(whole.unit, fingerprint=part.fingerprint)
        super().__init__(whole.target, keys, unit, whole.rows.slice(part.start, part.stop))
        self._place = self._slot_place = place
        self._slot, self._floor = part.slot, floor
        self._named_key = f"key {keys.units}"

    def _script(self, client: redis.Redis) -> Script:
        return self._slot_place.script(client, self._source())

    def _source(self) -> str:
        return slot_chunk_script(self._command.name, self._command.on_null)

    def _arguments(
        self, window: Window, end: int, entry: str
    ) -> tuple[int, list[bytes | memoryview]]:
        count, parts = super()._arguments(window, end, entry)
        return count + 2, [*parts, bulk(b"%d" % self._unit.epoch, self._floor.encode())]

    def _applied(self) -> str:
        done = self._done.rows
        here = f"the first {done} rows" if done else "nothing"
        return f"{here} of slot {self._slot}; of other slots {_AS_ENTRIES_SAY}"

    def _answered(self, answer: str, facts: list[Any]) -> Outcome | None:
        if answer == "BEHIND":
            return refused(behind(self._slot, self._unit.epoch, facts, self._floor))
        return super()._answered(answer, facts)


class WholeUnit(UnitWriter):
    """Names a partition's rows, before it is known which slots have what."""

    def _applied(self) -> str:
        return f"of this partition's slots {_AS_ENTRIES_SAY}"


@dataclass(frozen=True)
class ClusterUnitWriter:
    """Applies one unit; ``rows`` are in the sink's order, by slot and then by key.

    Slots do not depend on each other: which of them are applied, and how far, is in their entries
    alone. So it does not matter in which order they are written, or by which of two tries.
    """

    target: Target
    keys: ClusterKeys
    unit: Unit
    rows: Rows

    def apply(self) -> Outcome:
        """The outcome as data; what went wrong for good is a Refused, too."""
        whole = WholeUnit(self.target, self.keys.control, self.unit, self.rows)
        try:
            refuse_bad_rows(self.target, self.rows)
        except RowRefusedError as error:
            return whole.bad_row(error.row, error.column, error.reason)
        return self._apply_parts(whole, parts_of(self.target.command, self.rows))

    def _apply_parts(self, whole: UnitWriter, parts: Sequence[Part]) -> Outcome:
        with Nodes.of(self.target) as nodes:
            floors = self._register(nodes, whole, [part.slot for part in parts])
            if isinstance(floors, Refused):
                return floors
            try:
                return self._write(nodes, parts, floors)
            except RowRefusedError as error:
                return whole.bad_row(error.row, error.column, error.reason)

    def _register(
        self, nodes: Nodes, whole: UnitWriter, slots: Sequence[int]
    ) -> dict[int, str] | Refused:
        unit, control = self.unit, self.keys.control
        keys = [control.control, control.units, self.keys.touched, self.keys.floors]
        entry = unit_text(unit.batch_id, unit.fingerprint, str(unit.epoch))
        arguments: list[str | int] = [unit.token, unit.batch_id, unit.partition, entry, *slots]

        def step(client: redis.Redis) -> dict[int, str] | Refused:
            answer, *facts = run_script(client, REGISTER_SCRIPT, keys, arguments)
            if answer == "REFUSED":
                raise PassingError(facts[0])
            if answer == "FENCED":
                return fenced_or_behind(unit, facts[0])
            if answer == "MOVED":
                return mismatch(unit, parse_unit(unit.partition, facts[0]))
            return dict(zip(slots, facts, strict=True))

        what = f"register partition {unit.partition} of batch {unit.batch_id}"
        place = SlotPlace(nodes, self.keys.control_slot)
        try:
            return Patience(place, what, self.target.budget_s).keep_trying(step)
        except SinkUnavailableError as error:
            return refused(error)

    def _write(self, nodes: Nodes, parts: Sequence[Part], floors: dict[int, str]) -> Outcome:
        wrote = False
        for part, reply in self._sent(nodes, parts, floors):
            outcome = self._outcome(part, reply)
            if outcome is None:
                outcome = self._alone(nodes, part, reply, floors[part.slot])
            if isinstance(outcome, Refused):
                return outcome
            wrote = wrote or isinstance(outcome, Applied)
        hit("redis.after_unit")
        return Applied() if wrote else AlreadyApplied()

    def _sent(
        self, nodes: Nodes, parts: Sequence[Part], floors: dict[int, str]
    ) -> Iterator[tuple[Part, Reply | None]]:
        """Each part with the answer to its first chunk, None where nothing was sent."""
        for group in groups(self.target, self.rows, parts):
            yield from self._group(nodes, group, floors)
            self.rows.release()

    def _group(
        self, nodes: Nodes, group: Group, floors: dict[int, str]
    ) -> Iterator[tuple[Part, Reply | None]]:
        by_slot = {part.slot: part for part in group.parts}
        command = self.target.command
        script = slot_chunk_script(command.name, command.on_null)
        for together in flights(self._calls(group, floors)):
            hit("redis.before_chunk")
            replies = fly(nodes, script, together, self.target.replicas, self.keys)
            hit("redis.after_chunk")
            for call in together:
                yield by_slot.pop(call.slot), replies[call.slot]
        for part in by_slot.values():
            yield part, None

    def _calls(self, group: Group, floors: dict[int, str]) -> Iterator[SlotCall]:
        """What a slot's first chunk is, for the slots that need no more than one."""
        unit, told = self.unit, self.target.command.ttl_argument
        half = unit_text(unit.batch_id, Fingerprint(), HALF).encode()
        before = (unit.token.encode(), b"%d" % unit.batch_id, b"%d" % unit.partition, b"", half)
        head, tail = bulk(*before), bulk(b"%d" % len(group.names), told.encode())
        epoch = bulk(b"%d" % unit.epoch)
        for part, start, end in group.small():
            entry = unit_text(unit.batch_id, part.fingerprint, COMPLETE).encode()
            key = self.keys.slot(part.slot).units.encode()
            values, count = group.values(start, end)
            parts = [
                bulk(b"%d" % (end - start + 2), key, key),
                group.keys(start, end),
                head,
                bulk(entry, b"%d" % (end - start)),
                tail,
                *values,
                epoch,
                bulk(floors[part.slot].encode()),
            ]
            yield SlotCall(part.slot, 3 + end - start + 9 + count + 2, parts)

    def _outcome(self, part: Part, reply: Reply | None) -> Outcome | None:
        """What a clean answer says; None where more is to be done or asked."""
        if not isinstance(reply, list):
            return None
        if reply[0] == b"OK":
            return Applied()
        there = unit_text(self.unit.batch_id, part.fingerprint, COMPLETE).encode()
        if reply[0] == b"MOVED" and reply[1] == there:
            return AlreadyApplied()
        return None

    def _alone(self, nodes: Nodes, part: Part, reply: Reply | None, floor: str) -> Outcome:
        place = SlotPlace(nodes, part.slot, asked_place(reply))
        return SlotWriter(self, part, place, floor).write()
