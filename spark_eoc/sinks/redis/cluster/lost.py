"""What is said when a slot has lost writes that its node had acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_eoc.errors import SinkBehindError
from spark_eoc.sinks.redis.server import text


def behind(slot: int, epoch: int, facts: Sequence[Any], floor: str) -> SinkBehindError:
    """Of the answer BEHIND; ``facts`` are the epoch and the settlement that the entry shows."""
    found, closed = (text(fact) or "nothing" for fact in facts)
    if int(floor) > int(text(facts[1]) or 0):
        what = (
            f"slot {slot} of the Redis Cluster went back to an older state: it was settled at "
            f"epoch {floor}, and its ledger entry now shows {closed}"
        )
        step = (
            "find out which writes the slot's node lost (a failover, a restart without its "
            "newest data), restore it, or restore a checkpoint that is as old as that node"
        )
    else:
        what = (
            f"the ledger's control entry went back to an older state: it is at epoch {epoch}, and "
            f"slot {slot} shows epoch {found} of a call that it does not know"
        )
        step = (
            "restore the node that serves the control entry; if the ledger was deleted on purpose, "
            "delete its entries in the slots as well, keys <ledger>:{*}:*:slot on every node"
        )
    return SinkBehindError(
        what,
        applied="what the ledger's unit entries say; the batch stays open",
        next_step=step,
        slot=slot,
    )
