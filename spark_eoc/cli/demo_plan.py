"""The demo's kills: which kind, for which query, when. Everything from one seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from spark_eoc.testing.kills import Instants, Kill, KillSchedule, Strike

SERVER = {"mysql": Kill.MARIADB, "redis": Kill.REDIS}
_OTHERS = (
    Kill.DRIVER_PYTHON,
    Kill.JVM,
    Kill.SOURCE_RUNNER,
    Kill.PYTHON_WORKER,
    Kill.TAKEOVER,
)
#: Seconds after a sign of life; short, since the row that a strike waits for is random already.
_INSTANTS = Instants(spread_s=1.5, starting=0.1, start_spread_s=8.0)
#: Where in its window a strike may fall. Not at its end: a run that takes over a stopped one
#: needs rows that are in the buffer already.
_EARLIEST, _LATEST = 0.05, 0.6


@dataclass(frozen=True)
class Due:
    """A strike, and the rows around it."""

    strike: Strike
    #: It waits until the query has done this many rows.
    after_row: int
    #: The producer sends no more than this before it, so it always falls into a running stream.
    window_end: int


def plan(seed: int, sinks: Sequence[str], kills: int, rows: int) -> dict[str, list[Due]]:
    """Each sink's strikes in order. Every kind comes at least once where ``kills`` allows it."""
    dice = random.Random(seed)
    others = list(_OTHERS)
    dice.shuffle(others)
    plans = {}
    for number, sink in enumerate(sinks):
        count = kills // len(sinks) + (number < kills % len(sinks))
        # The first kinds where there is no room for all: the next sink has the others.
        kinds = [SERVER[sink], *others][: max(1, count)]
        schedule = KillSchedule(dice.randrange(2**32), count=count, kinds=kinds, instants=_INSTANTS)
        plans[sink] = [_due(dice, strike, i, count, rows) for i, strike in enumerate(schedule)]
        # With few kills, the next sink goes on with the kinds that this one had no room for.
        rest = max(0, count - 1) % len(others)
        others = others[rest:] + others[:rest]
    return plans


def _due(dice: random.Random, strike: Strike, number: int, count: int, rows: int) -> Due:
    # One window more than there are strikes: the last run has rows of its own.
    width = rows / (count + 1)
    after = (number + dice.uniform(_EARLIEST, _LATEST)) * width
    return Due(strike, round(after), round((number + 1) * width))
