"""Every failpoint of a batch, in every mode and both atomicities: once, whatever died there.

No Spark: the product's writer runs on Arrow tables, dies at the failpoint by an exception, and a
new run takes the batch up again. Then the dead run's tasks come by once more. ``make failpoints``
prints the table, with the kills on real Spark after it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FAILPOINTS, FailpointError
from spark_eoc.testing import tiers
from spark_eoc.testing.local import LocalFrame, local_run
from spark_eoc.testing.modes import (
    ATOMICITIES,
    CONDITIONS,
    KEYS,
    Content,
    Keys,
    Mode,
    Row,
    Table,
    Target,
    mysql_modes,
    redis_modes,
)
from spark_eoc.testing.servers import MariaDB, Redis
from spark_eoc.testing.tiers import Tier

MODES: Mapping[str, Callable[[], list[Mode]]] = {"mysql": mysql_modes, "redis": redis_modes}
_PARTS = 3
_ROWS = 14


@dataclass(frozen=True)
class Death:
    """One cell: the failpoint at which it died, and what the sink held at the end."""

    mode: Mode
    atomicity: str
    failpoint: str
    expected: Content
    found: Content

    @property
    def once(self) -> bool:
        """Whether each row is reflected exactly once."""
        return self.expected == self.found

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "sink": self.mode.sink,
            "mode": self.mode.name,
            "atomicity": self.atomicity,
            "failpoint": self.failpoint,
            "once": self.once,
        }

    def __str__(self) -> str:
        state = "exactly once" if self.once else f"WRONG: {self.found}, not {self.expected}"
        return f"{self.mode!s:18} {self.atomicity:10} {self.failpoint:28} {state}"


def failpoints_of(sink: str) -> list[str]:
    """Those of the driver's batch and of this sink, from the product's list."""
    return [name for name in FAILPOINTS if name.startswith(("batch.", f"{sink}."))]


def offered(target: Target, atomicity: str) -> bool:
    """Whether the writer has it; what a sink refuses by name is not built, or can't be."""
    try:
        target.writer(atomicity)
    except ConfigError:
        return False
    return True


class Line:
    """Batches of one mode, one after the other on one target; ``undisturbed`` is another.

    A mode without a ``fold`` is compared with what the undisturbed writer makes of it.
    """

    def __init__(self, mode: Mode, atomicity: str, target: Target, undisturbed: Target) -> None:
        self.mode, self.atomicity, self.target = mode, atomicity, target
        self._undisturbed = undisturbed
        self._plain = local_run(undisturbed.writer("partition"), "undisturbed", "run")
        self._random, self._rows, self._batches = Random(1), 0, 0
        self._expected = target.content()

    def reached(self) -> list[str]:
        """The failpoints that a batch comes by, found out by one batch."""
        names = failpoints_of(self.mode.sink)
        rows = self._arrive()
        with failing(",".join(f"{name}:1000000=raise" for name in names)) as hits:
            self._call(self._frame(rows), "looks")
        self._expect(rows)
        return [name for name in names if name in hits]

    def death(self, name: str, count: int = 1) -> Death:
        """A batch whose run dies at the ``count``-th hit; another completes it; then the dead
        run's tasks come by once more."""
        rows = self._arrive()
        dying = self._frame(rows)
        with suppress(FailpointError), failing(f"{name}:{count}=raise"):
            self._call(dying, "dies")
        self._call(self._frame(rows), "again")
        self._expect(rows)
        for task in dying.tasks:
            task.again()
        return Death(self.mode, self.atomicity, name, self._expected, self.target.content())

    def _arrive(self) -> list[Row]:
        numbers = [(self._random.randrange(KEYS), self._random.randrange(50)) for _ in range(_ROWS)]
        self._rows += _ROWS
        self._batches += 1
        return self.mode.rows(numbers, self._rows)

    def _frame(self, rows: Sequence[Row]) -> LocalFrame:
        return LocalFrame(self.mode.split(rows, _PARTS), self.mode.schema, CONDITIONS)

    def _call(self, frame: Any, run: str) -> None:
        number = self._batches - 1
        local_run(self.target.writer(self.atomicity), "query", f"{run}-{number}")(frame, number)

    def _expect(self, rows: Sequence[Row]) -> None:
        if self.mode.fold is not None:
            self._expected = self.mode.expected(rows, self._expected)
        else:
            self._plain(self._frame(rows), self._batches - 1)  # type: ignore[arg-type]
            self._expected = self._undisturbed.content()
            self._undisturbed.refill()
        # Others may write when the batch is complete; a late repeat would undo it.
        self._expected = {**self._expected, **self.target.refill()}


def deaths(mode: Mode, atomicity: str, make: Callable[[Mode], Target]) -> Iterator[Death]:
    """One death at each failpoint that this mode comes by; none where it isn't offered."""
    target = make(mode)
    if offered(target, atomicity):
        line = Line(mode, atomicity, target, make(mode))
        for name in line.reached():
            with tiers.case(Tier.FAILPOINTS):
                death = line.death(name)
            yield death


@contextmanager
def failing(wanted: str) -> Iterator[Mapping[str, int]]:
    """Inside, failpoints do what ``wanted`` says; how often each of them was hit."""
    before = {key: os.environ.pop(key, None) for key in (ENVIRONMENT, DIRECTORY)}
    hits: dict[str, int] = {}
    sys.__dict__["_spark_eoc_failpoint_hits"] = hits
    os.environ[ENVIRONMENT] = wanted
    try:
        yield hits
    finally:
        del os.environ[ENVIRONMENT]
        os.environ.update({key: value for key, value in before.items() if value is not None})


def run_all(tell: Callable[[str], None], sinks: Sequence[str] = ("mysql", "redis")) -> list[Death]:
    """The whole table, on servers of its own."""
    found: list[Death] = []
    with tempfile.TemporaryDirectory(prefix="eoc-matrix-") as folder:
        for sink in sinks:
            with _server(sink, Path(folder)) as make:
                for mode in MODES[sink]():
                    for atomicity in ATOMICITIES:
                        for death in deaths(mode, atomicity, make):
                            tell(str(death))
                            found.append(death)
    return found


@contextmanager
def _server(sink: str, folder: Path) -> Iterator[Callable[[Mode], Target]]:
    made = iter(range(1_000_000))
    if sink == "mysql":
        with MariaDB.start(folder / "mysql") as mariadb:
            mariadb.query("CREATE DATABASE matrix")

            def query(sql: str) -> list[tuple[object, ...]]:
                with mariadb.connect("matrix") as connection, connection.cursor() as cursor:
                    cursor.execute(sql)
                    return list(cursor.fetchall())

            url = mariadb.url("matrix")
            yield lambda mode: Table(url, query, f"t{next(made)}", mode).create()
        return
    with Redis.start(folder / "redis") as redis:
        client = redis.client()
        yield lambda mode: Keys(redis.url(), client, f"p{next(made)}", mode).create()
