"""Whether a log still takes anything, and why it doesn't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_eoc.errors import LogClosedError, LogFullError


class Health:
    """``failure`` is None while all is well; the first reason stays for ever.

    After a write or an fsync that failed, nobody knows what the disk has, and an fsync that is
    tried again falsely succeeds: the kernel has marked the pages clean.
    """

    def __init__(self, path: Path | str) -> None:
        self.failure: str | None = None
        self._path = path

    def fail(self, why: str) -> None:
        """Takes nothing more from now on."""
        self.failure = self.failure or why

    def check(self) -> None:
        """Raises LogClosedError if the log takes nothing more."""
        if self.failure is not None:
            raise self.closed_error()

    def closed_error(self) -> LogClosedError:
        """The error that says why."""
        return LogClosedError(
            f"buffer {self._path} takes nothing more: {self.failure}",
            applied="what was acknowledged is durable, nothing more was acknowledged",
            next_step="open the log again; that recovers it",
            path=str(self._path),
        )

    @contextmanager
    def poisoning(self, step: str) -> Iterator[None]:
        """Any error in here is final, and an OSError becomes LogClosedError; but for a full disk,
        which leaves the log as it was."""
        try:
            yield
        except LogFullError:
            raise
        except OSError as error:
            self.fail(f"{step} failed: {error}")
            raise self.closed_error() from error
        except Exception as error:
            self.fail(f"{step} failed: {error}")
            raise
