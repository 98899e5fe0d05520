"""Contract: the process is killed between any two lines of the sink's own code."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial

import pytest

from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.ledger import Open
from spark_eoc.testing.contract.hooks import SinkHooks, numbered
from spark_eoc.testing.lines import Killer


class CrashContract(SinkHooks):
    """A kill -9 at each line in turn; then a new run goes on."""

    def test_killed_at_every_line_of_a_unit(self, killer: Killer) -> None:
        """E7: rows and ledger agree once the next run has opened, and it ends in once. The rows
        come back in another order, as after a shuffle. Each line has a partition of its own."""
        run, ids, shuffled = self.run(), dict[int, list[int]](), random.Random(1)
        run.open(0)
        killed = True
        while killed:
            line = len(ids) + 1
            ids[line] = [100 * line + number for number in range(12)]
            step = partial(run.apply, line, numbered(*ids[line]))
            killed = killer.killed_at(self.sink_files(), line, step)
        assert len(ids) > 3, "sink_files() names no file that the unit runs through"
        again = run.restarted("run-2")
        again.open(0)
        done = {entry.partition: entry.rows_done for entry in again.sink.units("w", 0)}
        there = Counter(number // 100 for number in self.rows_in_sink())
        assert done == there, "rows by line, in the ledger and in the sink"
        for line, numbers in ids.items():
            outcome = again.apply(line, numbered(*shuffled.sample(numbers, 12)))
            assert outcome in (Applied(), AlreadyApplied()), f"killed at line {line}"
        again.close()
        self.require(*(number for numbers in ids.values() for number in numbers))

    @pytest.mark.parametrize("step", ["open", "close"])
    def test_killed_at_every_line_of_a_step_of_the_driver(self, killer: Killer, step: str) -> None:
        """The next run opens the batch again, or finds it complete."""
        first, line, killed = self.run(), 0, True
        while killed:
            batch_id, line = line, line + 1
            run = first.restarted(f"run-{line}")
            if step == "close":
                run.open(batch_id)
            call = run.close if step == "close" else partial(run.open, batch_id)
            killed = killer.killed_at(self.sink_files(), line, call)
            again = first.restarted(f"again-{line}")
            if isinstance(again.open(batch_id), Open):
                again.close()
        assert line > 3, "sink_files() names no file that the step runs through"
