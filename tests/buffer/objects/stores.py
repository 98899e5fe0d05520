"""Stores for the tests: in memory, or moto's server; and one that fails at a given request."""

from __future__ import annotations

from collections.abc import Sequence

from obstore.store import MemoryStore

from spark_eoc.buffer.objects import Objects, ObstoreObjects


class CrashError(BaseException):
    """The process is killed here; nothing catches it."""


class FaultyObjects:
    """Fails at the ``at``-th request from now on (counted from 1), before the store has seen it or
    after it was done; with ``crash`` as if the process was killed, else once with OSError."""

    def __init__(self, objects: Objects, at: int, *, after: bool, crash: bool) -> None:
        self.url = objects.url
        self.requests = 0
        self._objects = objects
        self._at = at
        self._after = after
        self._crash = crash

    @property
    def is_over(self) -> bool:
        """Whether it has failed."""
        return self.requests >= self._at

    def _ask(self, call, *arguments):
        self.requests += 1
        fails = self.requests == self._at or (self._crash and self.requests > self._at)
        if fails and not self._after:
            self._fail()
        answer = call(*arguments)
        if fails:
            self._fail()
        return answer

    def _fail(self):
        self._after = self._after and not self._crash
        raise CrashError if self._crash else OSError("no answer")

    def create(self, name: str, data: bytes) -> bool:
        return self._ask(self._objects.create, name, data)

    def get(self, name: str) -> memoryview | None:
        return self._ask(self._objects.get, name)

    def head(self, name: str, length: int) -> memoryview | None:
        return self._ask(self._objects.head, name, length)

    def names(self, folder: str) -> list[str]:
        return self._ask(self._objects.names, folder)

    def delete(self, names: Sequence[str]) -> None:
        return self._ask(self._objects.delete, names)


def memory() -> ObstoreObjects:
    """A store of its own in this process's memory."""
    return ObstoreObjects("memory:///buffer", store=MemoryStore())
