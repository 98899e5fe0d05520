"""One partition in a cluster whose refused rows are put aside: each slot has a stream of its own.

A row is put aside in its key's slot, by the script that writes the rows beside it there. Rows that
have no key, or none that may be written, have one slot for all of them, see
:func:`~spark_eoc.sinks.redis.cluster.parts.bad_slot`. A slot's first chunk is sent as ever; only
where it is refused the slot is done again by itself, with letters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from spark_eoc.errors import SparkEocError
from spark_eoc.sinks.dead_letters import over_limit
from spark_eoc.sinks.entries import Applied, Outcome
from spark_eoc.sinks.redis.aside import AsideWriter
from spark_eoc.sinks.redis.bad_rows import bad_rows
from spark_eoc.sinks.redis.cluster.apply import ClusterUnitWriter, SlotWriter, WholeUnit
from spark_eoc.sinks.redis.cluster.flight import Reply
from spark_eoc.sinks.redis.cluster.ledger import ClusterLedger
from spark_eoc.sinks.redis.cluster.lua_slot import slot_aside_script
from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace, asked_place
from spark_eoc.sinks.redis.cluster.parts import Part, letters_key, parts_with_bad
from spark_eoc.sinks.redis.resp import bulk


@dataclass
class _Letters:
    """Dead letters of the batch: of this partition by slot, and of the others, once looked at."""

    bad: int = 0
    by_slot: dict[int, int] = field(default_factory=dict)
    of_others: int | None = None


class SlotAsideWriter(SlotWriter, AsideWriter):
    """As :class:`SlotWriter`; rows that can't be written, whatever Redis holds, come last."""

    def __init__(
        self, whole: ClusterAsideWriter, part: Part, nodes: Nodes, place: SlotPlace, floor: str
    ) -> None:
        super().__init__(whole, part, place, floor)
        self._whole, self._nodes = whole, nodes
        self._stream = letters_key(whole.target, part.slot)

    def _source(self) -> str:
        return slot_aside_script(self._command.name, self._command.on_null)

    def _all_arguments(self, *of: object) -> tuple[int, list[bytes | memoryview]]:
        count, parts = super()._all_arguments(*of)  # type: ignore[arg-type]
        claim = bulk(b"%d" % self._unit.epoch, self._floor.encode())
        return count + 2, [*parts, claim]

    def _aside_by_others(self) -> int:
        return self._whole.letters_beside(self._nodes, self._slot)

    def _so_far(self) -> str:
        return self._applied()


@dataclass(frozen=True)
class ClusterAsideWriter(ClusterUnitWriter):
    """As :class:`ClusterUnitWriter`; ``rows`` are in the order of ``arranged_with_bad``."""

    letters: _Letters = field(default_factory=_Letters)

    def apply(self) -> Outcome:
        """See :meth:`ClusterUnitWriter.apply`; too many bad rows are refused before anything is
        sent."""
        limit = self.target.dead_letter_limit or 0
        self.letters.bad = len(bad_rows(self.target, self.rows, limit))
        if self.letters.bad > limit:
            nothing = "nothing of this partition"
            return over_limit(self.unit, self.letters.bad, 0, limit, nothing)
        whole = WholeUnit(self.target, self.keys.control, self.unit, self.rows)
        outcome = self._apply_parts(whole, parts_with_bad(self.target, self.rows))
        if isinstance(outcome, Applied):
            return replace(outcome, dead_letters=sum(self.letters.by_slot.values()))
        return outcome

    def letters_beside(self, nodes: Nodes, slot: int) -> int:
        """Dead letters of the batch that are not in this partition's rows of ``slot``."""
        if self.letters.of_others is None:
            self.letters.of_others = self._of_other_partitions(nodes)
        own = sum(count for other, count in self.letters.by_slot.items() if other != slot)
        return self.letters.of_others + own

    def _of_other_partitions(self, nodes: Nodes) -> int:
        """As far as they are written; those that can't be read now are counted at the close."""
        try:
            ledger = ClusterLedger(self.target, nodes, self.unit.writer_id)
            units = ledger.units(self.unit.batch_id)
        except SparkEocError:
            return 0
        return sum(one.dead_letters for one in units if one.partition != self.unit.partition)

    def _sent(
        self, nodes: Nodes, parts: Sequence[Part], floors: dict[int, str]
    ) -> Iterator[tuple[Part, Reply | None]]:
        last = len(parts) - bool(self.letters.bad)
        yield from super()._sent(nodes, parts[:last], floors)
        for part in parts[last:]:
            yield part, None

    def _alone(self, nodes: Nodes, part: Part, reply: Reply | None, floor: str) -> Outcome:
        place = SlotPlace(nodes, part.slot, asked_place(reply))
        writer = SlotAsideWriter(self, part, nodes, place, floor)
        outcome = writer.apply()
        self.letters.by_slot[part.slot] = writer.letters
        return outcome
