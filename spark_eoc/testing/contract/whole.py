"""Contract: batch atomicity, for sinks that offer it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from spark_eoc.errors import ConfigError, FencedError, ReplayMismatchError
from spark_eoc.sinks.entries import Applied, Fingerprint, Staged
from spark_eoc.sinks.ledger import Compare, Open
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.contract.hooks import SinkHooks, numbered, refused
from spark_eoc.testing.lines import Held, Killer
from spark_eoc.testing.steps import Run


class WholeContract(SinkHooks):
    """Tasks stage, the driver publishes; a sink without it is skipped."""

    #: False for a sink that inherits the methods and refuses them in ``check_batch``.
    offers_batches = True

    def whole_run(self, name: str = "run-1", **more: Any) -> Run:
        """A run in batch atomicity."""
        run = self.run(name, **more)
        if type(run.sink).stage is Sink.stage:
            pytest.skip("the sink has no batch atomicity")
        if not self.offers_batches:
            with pytest.raises(ConfigError):
                run.sink.check_batch()
            pytest.skip("the sink refuses batch atomicity, as it says")
        run.sink.check_batch()
        return run

    def staged(self, run: Run, partition: int, rows: Rows) -> Staged:
        """A task that succeeds."""
        staged, outcome = run.stage(partition, rows)
        assert outcome == Applied()
        return staged

    def test_a_batch_appears_at_once(self) -> None:
        """Nothing that is staged is seen; published, all of it is, and the batch is complete."""
        run = self.whole_run()
        run.open(0, atomicity="batch")
        staged = [self.staged(run, p, numbered(2 * p, 2 * p + 1)) for p in range(3)]
        self.require()
        run.publish(*staged)
        self.require(*range(6))
        run.sink.clear_staged("w")
        decision = run.restarted("run-2").open(0)
        assert isinstance(decision, Compare)
        assert decision.completed.atomicity == "batch"
        assert decision.completed.fingerprint == numbered(*range(6)).fingerprint()
        run.open(1, atomicity="batch")
        run.publish()
        assert isinstance(run.open(2), Open), "an empty batch is complete too"
        self.require(*range(6))

    def test_exactly_what_came_back_is_published(self) -> None:
        """Of a task's copies one; the others can be deleted, and stay unseen."""
        run = self.whole_run()
        run.open(0, atomicity="batch")
        copies = [[self.staged(run, p, numbered(p)) for _ in range(3)] for p in range(2)]
        run.publish(copies[0][1], copies[1][2])
        run.sink.clear_staged("w")
        self.require(0, 1)

    @pytest.mark.parametrize("wrong", ["missing", "other rows", "cleared"])
    def test_what_is_not_as_it_was_staged_is_not_published(self, wrong: str) -> None:
        """It raises, nothing appears, and the batch stays open."""
        run = self.whole_run()
        run.open(0, atomicity="batch")
        good, bad = self.staged(run, 0, numbered(0)), self.staged(run, 1, numbered(1))
        if wrong == "missing":
            bad = Staged(1, "f" * 32, bad.fingerprint)
        elif wrong == "other rows":
            bad = Staged(1, bad.staging_id, Fingerprint(1, 7))
        else:
            run.open(0, atomicity="batch")
            run.sink.clear_staged("w")
        with pytest.raises(ReplayMismatchError):
            run.publish(good, bad)
        self.require()
        run.open(0, atomicity="batch")
        run.publish(self.staged(run, 0, numbered(0)))
        self.require(0)

    def test_lost_answers_to_stage_and_publish(self) -> None:
        """Both are done again, and the rows are there once."""
        run = self.whole_run()
        run.open(0, atomicity="batch")
        with self.lost_answer():
            staged = self.staged(run, 0, numbered(1, 2))
        with self.lost_answer():
            run.publish(staged)
        self.require(1, 2)

    def test_a_stopped_run_publishes_and_clears_nothing(self) -> None:
        """E8: B opens when A has staged all; A goes on, before and after B publishes."""
        a, b = self.whole_run("A"), self.whole_run("B")
        a.open(0, atomicity="batch")
        late = self.staged(a, 0, numbered(1))
        b.open(0, atomicity="batch")
        staged = self.staged(b, 0, numbered(1))
        for _ in range(2):
            with pytest.raises(FencedError):
                a.publish(late)
            assert refused(a.stage(1, numbered(2))[1], FencedError)
            a.sink.clear_staged("w")
            if staged:
                b.publish(staged)
                staged = None  # type: ignore[assignment]
        self.require(1)

    def test_a_half_applied_batch_is_not_published(self) -> None:
        """It was begun by partitions, and is completed by partitions."""
        run = self.whole_run()
        run.open(0)
        run.apply(0, numbered(1))
        run.open(0, atomicity="batch")
        staged = self.staged(run, 1, numbered(2))
        with pytest.raises(ReplayMismatchError):
            run.publish(staged)
        self.require(1)

    @pytest.mark.parametrize("step", ["stage", "publish"])
    def test_killed_at_every_line_of_stage_and_publish(self, killer: Killer, step: str) -> None:
        """All of the batch is there or nothing, and the next run ends in once."""
        first, line, killed = self.whole_run(), 0, True
        while killed:
            ids, batch_id, line = [4 * line + n for n in range(4)], line, line + 1
            run, again = first.restarted(f"run-{line}"), first.restarted(f"again-{line}")
            run.open(batch_id, atomicity="batch")
            killed = killer.killed_at(self.sink_files(), line, self._step(run, step, ids))
            there = len(self.rows_in_sink()) - 4 * batch_id
            decision = again.open(batch_id, atomicity="batch")
            if isinstance(decision, Open):
                assert there == 0, f"killed at line {line}"
                again.sink.clear_staged("w")
                again.publish(self.staged(again, 0, numbered(*ids)))
            else:
                assert step == "publish"
                assert len(self.rows_in_sink()) == 4 * batch_id + 4, f"killed at line {line}"
        assert line > 3, "sink_files() names no file that the step runs through"
        self.require(*range(4 * line))

    def _step(self, run: Run, step: str, ids: list[int]) -> Callable[[], object]:
        if step == "stage":
            return partial(run.stage, 0, numbered(*ids))
        return partial(run.publish, self.staged(run, 0, numbered(*ids)))

    def test_a_new_owner_opens_while_a_batch_is_published(self) -> None:
        """A is held at each line of its publish in turn, and B opens: A was first and B finds the
        batch complete, or A is refused and B publishes it."""
        first, line, held = self.whole_run(), 0, True
        while held:
            batch_id, line = line, line + 1
            a, b = first.restarted(f"A{line}"), first.restarted(f"B{line}")
            a.open(batch_id, atomicity="batch")
            task = Held(
                self.sink_files(), line, partial(a.publish, self.staged(a, 0, numbered(batch_id)))
            )
            held = task.reached
            opening = Held([], 1, partial(b.open, batch_id, atomicity="batch"), wait=0.05)
            ended, decision = task.go_on(), opening.go_on()
            if isinstance(decision, Compare):
                assert ended is None, f"held at line {line}"
            else:
                assert isinstance(ended, FencedError), f"held at line {line}: {ended}"
                b.publish(self.staged(b, 0, numbered(batch_id)))
        assert line > 3, "sink_files() names no file that the step runs through"
        self.require(*range(line))
