"""How long to wait before the next attempt to connect. Pure."""

from __future__ import annotations

import random


class Backoff:
    """Doubles from ``lowest_s`` to ``highest_s``, each wait drawn between half of it and all.

    The jitter keeps many peers of one restarted server from coming back in step.
    """

    def __init__(self, lowest_s: float, highest_s: float, rng: random.Random | None = None) -> None:
        self._lowest = lowest_s
        self._highest = max(lowest_s, highest_s)
        self._rng = rng or random.Random()
        self._next = lowest_s

    def wait_s(self) -> float:
        """Seconds to wait now; the next wait is longer."""
        now, self._next = self._next, min(self._highest, self._next * 2)
        return now * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It went well: the next wait is the shortest again."""
        self._next = self._lowest
