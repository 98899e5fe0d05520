"""The three tiers of kills: how many cases this run went through, and how long they took.

Surgery edits a checkpoint and needs seconds a case; a failpoint kills at a named step; random kills
find what nobody has named. The pytest plugin ends a run with a line for each tier that it used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum


class Tier(str, Enum):
    """In the order of what a case costs."""

    SURGERY = "checkpoint surgery"
    FAILPOINTS = "failpoints"
    RANDOM = "random kills"


_CASES = {Tier.SURGERY: "cases", Tier.FAILPOINTS: "deaths", Tier.RANDOM: "kills"}

#: Of this process and those that it has heard of: cases and seconds.
_seen: dict[Tier, tuple[int, float]] = {}


def went(tier: Tier, cases: int, seconds: float) -> None:
    """Adds ``cases`` that took so long together; nothing where there were none."""
    if cases:
        before, took = _seen.get(tier, (0, 0.0))
        _seen[tier] = (before + cases, took + seconds)


@contextmanager
def case(tier: Tier) -> Iterator[None]:
    """What happens inside is one case, however it ends."""
    began = time.monotonic()
    try:
        yield
    finally:
        went(tier, 1, time.monotonic() - began)


def lines() -> list[str]:
    """Such as ``tier 1, checkpoint surgery: 22 cases, 61 s``; none for a tier without any.

    Of several processes the seconds are added up.
    """
    return [
        f"tier {number}, {tier.value}: {_seen[tier][0]:,} {_CASES[tier]}, {_seen[tier][1]:.0f} s"
        for number, tier in enumerate(Tier, 1)
        if tier in _seen
    ]


def told() -> dict[str, list[float]]:
    """Plain values, for another process's :func:`heard`."""
    return {tier.value: [cases, seconds] for tier, (cases, seconds) in _seen.items()}


def heard(values: Mapping[str, list[float]]) -> None:
    """Adds what another process has told."""
    for name, (cases, seconds) in values.items():
        went(Tier(name), int(cases), seconds)
