"""What a command says where another process writes the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_eoc.errors import LogLockedError


@contextmanager
def naming_the_holder(otherwise: str) -> Iterator[None]:
    """A locked buffer's next step in the words of the command line; ``otherwise`` is the other
    way out."""
    try:
        yield
    except LogLockedError as error:
        pid = error.facts.get("pid")
        if pid is None:
            step = f"try again, or stop that process; {otherwise}"
        elif error.facts.get("stopped"):
            step = f"continue it (kill -CONT {pid}) or end it (kill -KILL {pid}); {otherwise}"
        else:
            step = f"stop that receiver or query first; {otherwise}"
        raise LogLockedError(
            error.what, applied=error.applied, next_step=step, **error.facts
        ) from error
