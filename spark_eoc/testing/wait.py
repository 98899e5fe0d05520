"""Waiting on conditions, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WaitTimeoutError(AssertionError):
    """A condition did not come true in time; the message says which, and what was seen last."""


def until(condition: Callable[[], T], timeout: float, what: str, *, interval: float = 0.02) -> T:
    """The first true value that ``condition()`` returns, asked every ``interval`` seconds.

    Raises :class:`WaitTimeoutError` naming ``what`` and the last value after ``timeout`` seconds.
    What the condition raises passes through.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(f"{what}: not within {timeout:g} s, last seen {value!r}")
        time.sleep(interval)
