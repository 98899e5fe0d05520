"""Every failpoint in every mode and both atomicities, from the product's lists, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from spark_eoc.failpoints import FAILPOINTS
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.matrix import MODES, Line, deaths
from spark_eoc.testing.modes import ATOMICITIES, Keys, Mode, Table, Target
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import broken_writer
from tests.sinks.redis.broken import LedgerApartSink

#: What was tried in this process, and the failpoints that were reached.
TRIED: list[tuple[Mode, str]] = []
REACHED: set[str] = set()
ALL = [
    (mode, atomicity) for modes in MODES.values() for mode in modes() for atomicity in ATOMICITIES
]


@pytest.fixture
def make(request: pytest.FixtureRequest, prefix: str) -> Callable[[Mode], Target]:
    """An empty table or prefix of keys for a mode."""
    made: list[Mode] = []

    def empty(mode: Mode) -> Target:
        made.append(mode)
        name = f"{prefix}_{len(made)}"
        if mode.sink == "mysql":
            database: Database = request.getfixturevalue("mariadb")
            return Table(database.url(), database.query, name, mode).create()
        server: Any = request.getfixturevalue("redis_server")
        return Keys(server.url(), server.client(), name, mode).create()

    return empty


@pytest.mark.parametrize(("mode", "atomicity"), ALL, ids=str)
def test_a_death_at_each_failpoint_is_exactly_once(
    make: Callable[[Mode], Target], mode: Mode, atomicity: str
) -> None:
    """The run dies there, another completes the batch, the dead run's tasks come by once more."""
    found = list(deaths(mode, atomicity, make))
    TRIED.append((mode, atomicity))
    REACHED.update(death.failpoint for death in found)
    assert found or atomicity == "batch"
    assert all(death.once for death in found), "\n".join(map(str, found))


def test_every_failpoint_of_a_batch_was_reached() -> None:
    """A failpoint that is added is tried by itself, or it is named here."""
    if len(TRIED) < len(ALL):
        pytest.skip("needs the whole file")
    names = {name for name in FAILPOINTS if name.split(".")[0] in ("batch", *MODES)}
    assert names == REACHED


@dataclass(frozen=True)
class BrokenTable(Table):
    """The ledger in a transaction of its own."""

    def writer(self, atomicity: str) -> Writer:
        return broken_writer("ledger_in_its_own_transaction", self.url, self.name)


@dataclass(frozen=True)
class BrokenKeys(Keys):
    """The entry in a step of its own after the chunk."""

    def writer(self, atomicity: str) -> Writer:
        writer = super().writer(atomicity)
        writer._sink = LedgerApartSink(writer._sink.target)  # type: ignore[attr-defined]
        return writer


def test_a_ledger_of_its_own_is_caught(mariadb: Database) -> None:
    """Red without the rule, at the failpoint between rows and entry."""
    (append, *_) = MODES["mysql"]()
    table = BrokenTable(mariadb.url(), mariadb.query, "t", append).create()
    assert not Line(append, "partition", table, table).death("mysql.after_rows").once


@pytest.mark.parametrize("command", ["hincrby", "rpush"])
def test_entries_apart_from_chunks_are_caught(redis_server: Any, prefix: str, command: str) -> None:
    """Red without the rule, in commands that are not idempotent."""
    (mode,) = (mode for mode in MODES["redis"]() if mode.name == command)
    keys = BrokenKeys(redis_server.url(), redis_server.client(), prefix, mode)
    assert not Line(mode, "partition", keys, keys).death("redis.after_chunk").once
