"""The ledger's keys in a cluster.

Beside the control entry, in its slot: ``:touched``, a set of slots, and ``:floors``, a hash from
slot to epoch. In every slot that was ever written to: ``<prefix>:{<tag>}:<writer>:slot``, a hash
with ``epoch``, ``token``, ``open_batch``, ``closed`` (the epoch of the newest settlement) and, by
partition, the units of the newest batch as :mod:`spark_eoc.sinks.redis.keys` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_eoc.sinks.entries import ledger_key
from spark_eoc.sinks.redis.cluster.slots import slot_of, tag_of
from spark_eoc.sinks.redis.keys import LedgerKeys


@dataclass(frozen=True)
class ClusterKeys:
    """The keys of one writer: ``control`` and what lies beside it, and :meth:`slot`."""

    prefix: str
    writer: str
    control: LedgerKeys

    @classmethod
    def of(cls, prefix: str, writer_id: str) -> ClusterKeys:
        """For the ledger under ``prefix``."""
        return cls(prefix, ledger_key(writer_id).hex(), LedgerKeys.of(prefix, writer_id))

    @property
    def control_slot(self) -> int:
        """The slot of the control entry."""
        return slot_of(self.control.control.encode())

    @property
    def touched(self) -> str:
        """The slots that the open batch may have written to."""
        return self.control.control.removesuffix(":control") + ":touched"

    @property
    def floors(self) -> str:
        """The epoch at which each slot was last settled."""
        return self.control.control.removesuffix(":control") + ":floors"

    def slot(self, slot: int) -> LedgerKeys:
        """A slot's entry, in the roles that the chunk script knows; it holds nothing else."""
        base = f"{self.prefix}:{{{tag_of(slot)}}}:{self.writer}"
        entry, waited = f"{base}:slot", f"{base}:waited"
        return LedgerKeys(control=entry, units=entry, history="", waited=waited, staging="")
