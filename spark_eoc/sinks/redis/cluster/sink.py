"""The sink of a Redis Cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import redis

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import Fingerprint, Outcome, Unit, UnitEntry
from spark_eoc.sinks.ledger import Compare, Open
from spark_eoc.sinks.redis.bad_rows import check_stream
from spark_eoc.sinks.redis.checks import check_server
from spark_eoc.sinks.redis.cluster.apply import ClusterUnitWriter
from spark_eoc.sinks.redis.cluster.aside import ClusterAsideWriter
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.ledger import ClusterLedger
from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace
from spark_eoc.sinks.redis.cluster.parts import arranged_with_bad, parts_of, parts_with_bad
from spark_eoc.sinks.redis.cluster.slots import slots_of, tag_of
from spark_eoc.sinks.redis.operations import arrange
from spark_eoc.sinks.redis.server import Patience
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import CloseDecision, Column, OpenDecision


@dataclass(frozen=True)
class RedisClusterSink(RedisSink):
    """As :class:`RedisSink`, with a unit for each batch, partition and hash slot.

    The protocol is that of :mod:`spark_eoc.sinks.redis.cluster`.
    """

    letters_in_whole_batches: ClassVar[bool] = False

    def check(self, columns: Sequence[Column]) -> str:
        """See :meth:`Sink.check`; every primary is checked."""
        target = self.target
        target.command.check_columns(columns)
        with Nodes.of(target) as nodes:
            control = ClusterKeys.of(target.ledger, target.command.key.text).control_slot
            first = Patience(SlotPlace(nodes, control), "be checked", target.budget_s)
            for slot in first.keep_trying(lambda _: list(nodes.primaries().values())):
                patience = Patience(SlotPlace(nodes, slot), "be checked", target.budget_s)
                tag = tag_of(slot)
                patience.keep_trying(
                    lambda client, tag=tag: self._check_node(client, tag)  # type: ignore[misc]
                )
            ClusterLedger(target, nodes, target.command.key.text).wait_everywhere()
        return target.command.key.text

    def _check_node(self, client: redis.Redis, tag: str) -> None:
        check_server(client, self.target.command, self.target.ledger, tag)
        if self.target.dead_letter_limit is not None:
            check_stream(client, self.target, tag)

    def check_batch(self) -> None:
        """Refuses: no step of a cluster's is atomic over its slots."""
        raise ConfigError(
            'atomicity="batch" can\'t be had on a Redis Cluster: its keys lie in many slots, and '
            "nothing writes to several of them in one step",
            applied="nothing",
            next_step='use atomicity="partition", or a Redis without cluster mode',
        )

    def with_dead_letters(self, limit: int) -> RedisSink:
        """See :meth:`Sink.with_dead_letters`; each slot has a stream of its own."""
        if "{" in self.target.dead_letters:
            raise ConfigError(
                f"dead_letter_key={self.target.dead_letters!r} has a brace, and on a Redis Cluster "
                "the hash tag of a slot follows it",
                next_step="leave the braces out",
            )
        return super().with_dead_letters(limit)

    @property
    def dead_letters_at(self) -> str:
        """See :attr:`Sink.dead_letters_at`."""
        return f"streams {self.target.dead_letters}:{{…}} of their slots"

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        """See :meth:`Sink.open_batch`; every slot that an older call may write to is fenced."""
        with Nodes.of(self.target) as nodes:
            return ClusterLedger(self.target, nodes, writer_id).open(batch_id, decide)

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        """See :meth:`Sink.units`; summed up over the slots."""
        with Nodes.of(self.target) as nodes:
            return ClusterLedger(self.target, nodes, writer_id).units(batch_id)

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        """See :meth:`Sink.apply`."""
        keys = ClusterKeys.of(self.target.ledger, unit.writer_id)
        aside = self.target.dead_letter_limit is not None
        writer = ClusterAsideWriter if aside else ClusterUnitWriter
        return writer(self.target, keys, unit, rows).apply()

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        """See :meth:`Sink.close_batch`; all slots are settled before ``decide`` sees the units.

        ``decide`` is asked without units first, to know whether the ledger is still this call's.
        """
        with Nodes.of(self.target) as nodes:
            ClusterLedger(self.target, nodes, writer_id).close(batch_id, decide)

    def arrange(self, rows: Rows) -> Rows:
        """By slot, and then by target key."""
        if self.target.dead_letter_limit is not None:
            return arranged_with_bad(self.target, rows)
        return arrange(self.target.command, rows, first=slots_of)

    def applied_part(self, rows: Rows, entry: UnitEntry) -> Fingerprint:
        """See :meth:`Sink.applied_part`: the first rows of each slot."""
        arranged, done = self.arrange(rows), dict(entry.parts)
        aside = self.target.dead_letter_limit is not None
        parts = (
            parts_with_bad(self.target, arranged)
            if aside
            else parts_of(self.target.command, arranged)
        )
        return Fingerprint.sum(
            [
                arranged.slice(part.start, part.start + done[part.slot]).fingerprint()
                for part in parts
                if done.get(part.slot, len(part) + 1) <= len(part)
            ]
        )
