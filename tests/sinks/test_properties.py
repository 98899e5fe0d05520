"""Any sequence of batches, deaths, repeats, other splits, stragglers and zombies: exactly once.

``--eoc-seed`` makes a failure again; it is printed with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from spark_eoc.sinks import ledger
from spark_eoc.sinks.mysql import ledger_sql, staging
from spark_eoc.sinks.mysql import sink as mysql_sink
from spark_eoc.sinks.redis import apply, store
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.machine import ExactlyOnce, OptionsChange
from spark_eoc.testing.matrix import MODES
from spark_eoc.testing.modes import Keys, Mode, Table, Target
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import broken_writer

NAMES = iter(range(10**9))


def machine(
    sink: str, modules: list[Any], make: Any, base: type[ExactlyOnce] = ExactlyOnce
) -> type[ExactlyOnce]:
    """For every mode of a sink that the model knows, on empty targets from ``make``."""

    class Tried(base):  # type: ignore[misc,valid-type]
        modes: ClassVar = [mode for mode in MODES[sink]() if mode.fold is not None]
        files: ClassVar = [str(module.__file__) for module in modules]

        def make_target(self, mode: Mode) -> Target:
            return make(mode)

    return Tried


def run(
    tried: type[ExactlyOnce], seed: int, examples: int, steps: int, *, shrink: bool = False
) -> None:
    """Without ``shrink`` a failure is shown as it was found, which takes no minutes."""
    profile = settings(
        phases=[Phase.generate, *([Phase.shrink] if shrink else [])],
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(seed)(tried), settings=profile)


def mysql_machine(mariadb: Database, base: type[ExactlyOnce] = ExactlyOnce) -> type[ExactlyOnce]:
    def make(mode: Mode) -> Target:
        return Table(mariadb.url(), mariadb.query, f"t{next(NAMES)}", mode).create()

    return machine("mysql", [mysql_sink, ledger_sql, staging], make, base)


def redis_machine(
    server: Any, prefix: str, base: type[ExactlyOnce] = ExactlyOnce
) -> type[ExactlyOnce]:
    def make(mode: Mode) -> Target:
        return Keys(server.url(), server.client(), f"{prefix}{next(NAMES)}", mode).create()

    return machine("redis", [store, apply], make, base)


def test_mysql_whatever_happens(mariadb: Database, eoc_seed: int) -> None:
    """A few sequences in each run of the suite, other ones each time."""
    run(mysql_machine(mariadb), eoc_seed, 12, 10)


def test_redis_whatever_happens(redis_server: Any, prefix: str, eoc_seed: int) -> None:
    """The same for every command."""
    run(redis_machine(redis_server, prefix), eoc_seed, 40, 12)


@dataclass(frozen=True)
class BrokenTable(Table):
    """With a sink that lacks a rule."""

    kind: str = ""

    def writer(self, atomicity: str) -> Writer:
        return broken_writer(self.kind, self.url, self.name)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("ledger_in_its_own_transaction", "is complete: the sink holds"),
        ("no_token", "overtaken|is complete: the sink holds"),
    ],
)
def test_a_sink_without_a_rule_is_found(mariadb: Database, kind: str, how: str) -> None:
    """Red without the rule, within a few sequences."""

    def make(mode: Mode) -> Target:
        name = f"t{next(NAMES)}"
        return BrokenTable(mariadb.url(), mariadb.query, name, mode, kind).create()

    tried = machine("mysql", [mysql_sink], make)
    tried.modes, tried.atomicities = [MODES["mysql"]()[0]], ["partition"]
    with pytest.raises(AssertionError, match=how):
        run(tried, 1, 40, 12)


def test_options_that_change_in_mid_batch_are_found(
    redis_server: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the rule."""
    monkeypatch.setattr(ledger, "changed_options", lambda *_: [])
    tried = redis_machine(redis_server, prefix, OptionsChange)
    tried.modes, tried.atomicities = [MODES["redis"]()[0]], ["partition"]
    with pytest.raises(AssertionError, match="two kinds of options"):
        run(tried, 1, 60, 12)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_mysql_whatever_happens_for_long(mariadb: Database, eoc_seed: int) -> None:
    """Deep."""
    print(f"\nproperties with --eoc-seed={eoc_seed}")
    run(mysql_machine(mariadb, OptionsChange), eoc_seed, 400, 40, shrink=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_redis_whatever_happens_for_long(redis_server: Any, prefix: str, eoc_seed: int) -> None:
    """Deep."""
    print(f"\nproperties with --eoc-seed={eoc_seed}")
    run(redis_machine(redis_server, prefix, OptionsChange), eoc_seed, 2000, 40, shrink=True)
