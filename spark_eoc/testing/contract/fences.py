"""Contract: who may write, and who may no longer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from spark_eoc.errors import FencedError
from spark_eoc.sinks.entries import Applied, UnitEntry
from spark_eoc.sinks.ledger import Open
from spark_eoc.testing.contract.hooks import SinkHooks, numbered, refused
from spark_eoc.testing.lines import Held
from spark_eoc.testing.steps import Run


class FenceContract(SinkHooks):
    """Who may write, and who may no longer."""

    @pytest.mark.parametrize("zombie_first", [True, False])
    def test_a_stopped_run_is_fenced(self, zombie_first: bool) -> None:
        """E8: A is stopped inside its batch and B takes over; whichever writes first."""
        a, b = self.run("A"), self.run("B")
        a.open(0)
        b.open(0)
        assert b.control.epoch > a.control.epoch
        if zombie_first:
            assert refused(a.apply(1, numbered(2, 3)), FencedError)
        assert b.apply(0, numbered(1, 2, 3)) == Applied()
        if not zombie_first:
            assert refused(a.apply(1, numbered(2, 3)), FencedError)
        with pytest.raises(FencedError):
            a.close()
        b.close()
        assert refused(a.apply(0, numbered(1, 2, 3)), FencedError)
        with pytest.raises(FencedError):
            a.open(1)
        self.require(1, 2, 3)

    def test_a_straggler_of_the_same_run_is_fenced(self) -> None:
        """Each call has its own token: a task of the first call may not write in the second."""
        run = self.run()
        run.open(0)
        late, rows = run.unit(1, numbered(2, 3)), numbered(2, 3)
        run.open(0)
        assert run.apply(0, numbered(1, 2, 3)) == Applied()
        assert refused(run.sink.apply(late, run.sink.arrange(rows)), FencedError)
        run.close()
        self.require(1, 2, 3)

    def test_a_newer_batch_is_never_overwritten(self) -> None:
        """A task of batch 0 comes back when batch 1 is open, and when it is complete."""
        run, rows = self.run(), numbered(1)
        run.open(0)
        late = [run.unit(partition, rows) for partition in (0, 1)]
        run.apply(0, rows)
        run.close()
        run.open(1)
        run.apply(0, numbered(2))
        assert all(refused(run.sink.apply(unit, rows), FencedError) for unit in late)
        run.close()
        assert all(refused(run.sink.apply(unit, rows), FencedError) for unit in late)
        self.require(1, 2)

    def test_a_run_stopped_before_its_first_open_does_not_fence(self) -> None:
        """E8: A began a minute before B took over, and goes on while B works."""
        self.run("B").open(0)
        with pytest.raises(FencedError):
            self.run("A").open(0, age_us=60_000_000)

    def test_two_runs_that_open_together(self) -> None:
        """One of them has the batch afterwards, under its own epoch, and the other is fenced."""
        runs = [self.run(name) for name in "ABCD"]
        for batch_id in range(4):
            with ThreadPoolExecutor(4) as pool:
                opened = list(pool.map(partial(_tried, batch_id), runs))
            owners = [run for run, mine in zip(runs, opened, strict=True) if mine]
            assert len({run.control.epoch for run in owners}) == len(owners)
            rows = numbered(batch_id)
            outcomes = [run.apply(0, rows) for run in owners]
            assert outcomes.count(Applied()) == 1
            winner = owners[outcomes.index(Applied())]
            assert all(refused(o, FencedError) for o in outcomes if o != Applied())
            winner.close()
            runs = [winner, *(self.run(f"{name}{batch_id}") for name in "ABC")]
        self.require(*range(4))

    def test_what_a_new_owner_reads_is_all_there_will_be(self) -> None:
        """A is held at each line of its unit in turn, and B opens: it waits for the unit, or the
        unit is refused. What B reads after that is all that A ever wrote."""
        files, held, batch_id = self.sink_files(), True, 0
        line, first = 0, self.run()
        while held:
            line += 1
            a, b = first.restarted(f"A{line}"), first.restarted(f"B{line}")
            assert isinstance(a.open(batch_id), Open)
            task = Held(files, line, partial(a.apply, 1, numbered(2 * line, 2 * line + 1)))
            held = task.reached
            with ThreadPoolExecutor(1) as pool:
                opened = pool.submit(_open_and_read, b, batch_id)
                _within(opened.result, 0.05)
                task.go_on()
                decision, seen = opened.result(60)
            assert isinstance(decision, Open)
            assert b.sink.units("w", batch_id) == seen, f"a unit came late, held at line {line}"
            assert sum(e.rows_done for e in seen) == len(self.rows_in_sink()) - 2 * batch_id
            self.complete(b, batch_id, {1: numbered(2 * line, 2 * line + 1)})
            batch_id += 1
        assert line > 3, "sink_files() names no file that the unit runs through"
        self.require(*range(2, 2 * line + 2))

    def test_writers_do_not_meet(self) -> None:
        """Names that differ by case or by a blank at the end are other writers on one target."""
        names = ["w", "W", "w ", "ẃ"]
        runs = [self.run(writer_id=name) for name in names]
        for number, run in enumerate(runs):
            run.open(0)
            assert run.apply(0, numbered(number)) == Applied()
        for run in runs:
            run.close()
        self.require(0, 1, 2, 3)


def _tried(batch_id: int, run: Run) -> bool:
    try:
        return isinstance(run.open(batch_id), Open)
    except FencedError:
        return False


def _open_and_read(run: Run, batch_id: int) -> tuple[object, list[UnitEntry]]:
    return run.open(batch_id), run.sink.units(run.writer_id, batch_id)


def _within(wait: Callable[[float], Any], seconds: float) -> None:
    with suppress(TimeoutError):
        wait(seconds)
