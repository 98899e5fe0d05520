"""Contract: a batch from its open to its close, and what the ledger remembers of it."""

from __future__ import annotations

from typing import Any

import pytest

from spark_eoc.errors import (
    CheckpointMismatchError,
    ConfigError,
    ReplayMismatchError,
    SinkBehindError,
)
from spark_eoc.sinks.entries import HISTORY, Applied
from spark_eoc.sinks.ledger import Compare, Open
from spark_eoc.testing.contract.hooks import SinkHooks, numbered


class BatchContract(SinkHooks):
    """A batch from its open to its close, and what the ledger remembers of it."""

    def test_close_takes_exactly_what_was_reported(self) -> None:
        """A unit that no task reported is doubled rows, one that is missing is lost rows."""
        run = self.run()
        run.open(0)
        run.apply(0, numbered(1))
        run.apply(1, numbered(2))
        everything = dict(run.reported)
        for wrong in ({0: everything[0]}, {**everything, 2: everything[0]}, {}):
            run.reported = wrong
            with pytest.raises(ReplayMismatchError):
                run.close()
        run.reported = everything
        run.close()
        self.require(1, 2)

    def test_a_complete_batch_is_compared(self) -> None:
        """E1: the newest batch comes again in a new run; its history says what it was."""
        run = self.run()
        run.batch(0, numbered(1), offsets_digest="a" * 64)
        run.batch(1, numbered(2, 3), numbered(4), offsets_digest="b" * 64)
        again = self.run("run-2")
        decision = again.open(1, offsets_digest="b" * 64)
        assert isinstance(decision, Compare)
        done = decision.completed
        assert done.fingerprint == numbered(2, 3, 4).fingerprint()
        assert (done.batch_id, done.partitions, done.run_id) == (1, 2, "run-1")
        assert isinstance(again.open(0, offsets_digest="a" * 64), Compare)
        with pytest.raises(CheckpointMismatchError):
            again.open(1, offsets_digest="c" * 64)
        assert isinstance(again.open(2), Open)

    def test_an_empty_batch_is_complete_too(self) -> None:
        """E9: it leaves its history, and the next batch goes on, also in another run."""
        run = self.run()
        run.batch(0)
        assert isinstance(self.run("run-2").open(0), Compare)
        self.run("run-3").batch(1, numbered(1))
        self.require(1)

    def test_a_sink_that_is_behind_is_refused(self) -> None:
        """A later batch than the next one, or no ledger at all."""
        with pytest.raises(SinkBehindError):
            self.run().open(3)
        self.run().batch(0, numbered(1))
        with pytest.raises(SinkBehindError):
            self.run("run-2").open(2)
        self.require(1)

    def test_history_is_bounded(self) -> None:
        """100 batches are remembered, and an older one is refused."""
        run = self.run()
        for batch_id in range(HISTORY + 3):
            run.batch(batch_id, offsets_digest=f"{batch_id:064}")
        again = self.run("run-2")
        for batch_id in (3, HISTORY + 2):
            assert isinstance(again.open(batch_id, offsets_digest=f"{batch_id:064}"), Compare)
        with pytest.raises(CheckpointMismatchError):
            again.open(2, offsets_digest=f"{2:064}")
        assert self.history_entries() == HISTORY

    def test_another_query_is_refused_or_adopts(self) -> None:
        """E2: a wiped checkpoint. After adoption nothing of the old query's ledger is left."""
        self.run().batch(0, numbered(1), numbered(2))
        with pytest.raises(CheckpointMismatchError):
            self.run("run-2", query_id="query-2").open(0)
        stranger = self.run("run-3", query_id="query-2")
        decision = stranger.open(0, adopt=True)
        assert isinstance(decision, Open)
        assert decision.reset
        assert stranger.sink.units("w", 0) == []
        assert stranger.apply(0, numbered(1)) == Applied()
        stranger.close()
        assert stranger.batch(1, numbered(3)) == [Applied()]
        with pytest.raises(CheckpointMismatchError):
            self.run("run-4").open(1)
        self.require(1, 1, 2, 3)

    def test_adoption_waits_for_a_batch_that_is_half_applied(self) -> None:
        """The old query must complete it."""
        run = self.run()
        run.open(0)
        run.apply(0, numbered(1))
        stranger = self.run("run-2", query_id="query-2")
        with pytest.raises(CheckpointMismatchError):
            stranger.open(0, adopt=True)
        assert run.apply(1, numbered(2)) == Applied()
        run.close()
        assert isinstance(stranger.open(0, adopt=True), Open)

    def test_a_batch_that_was_begun_goes_on_with_its_options_only(self) -> None:
        """Others are refused with what changed, and nothing is written; where nothing of the batch
        is applied, they simply hold. What the ledger does not know goes with everything."""
        then, now = '{"options": {"o": "a"}}', '{"options": {"o": "b"}}'
        run = self.run()
        run.open(0, split=then)
        run.apply(0, numbered(1))
        with pytest.raises(ReplayMismatchError, match='o was "a", now "b"'):
            self.run("run-2").open(0, split=now)
        self.require(1)
        back = self.run("run-3")
        assert isinstance(back.open(0, split=then), Open)
        assert back.control.split == then
        assert back.apply(1, numbered(2)) == Applied()
        back.reported[0] = numbered(1).fingerprint()
        back.close()
        back.open(1, split=then)
        back.open(1, split=now)
        assert back.apply(0, numbered(3)) == Applied()
        assert isinstance(self.run("run-4").open(1, split="{}"), Open)
        with pytest.raises(ReplayMismatchError, match='o was "b", now "a"'):
            self.run("run-5").open(1, split=then)
        last = self.run("run-6")
        last.open(1, split=now)
        last.reported = {0: numbered(3).fingerprint()}
        last.close()
        last.open(2, split=then)
        self.require(1, 2, 3)

    def test_an_error_of_the_decision_stores_nothing(self) -> None:
        """It passes through, and the ledger is as before; close and open alike."""
        run = self.run()
        run.open(0)
        run.apply(0, numbered(1))

        def refuse(*_: Any) -> Any:
            raise ConfigError("no")

        other = self.make_sink()
        with pytest.raises(ConfigError, match="no"):
            other.open_batch("w", 0, refuse)
        with pytest.raises(ConfigError, match="no"):
            other.close_batch("w", 0, refuse)
        assert run.apply(1, numbered(2)) == Applied()
        run.close()
        self.require(1, 2)

    def test_lost_answers_to_open_and_close(self) -> None:
        """Both are done again and recognise themselves."""
        run = self.run()
        for batch_id in range(2):
            with self.lost_answer():
                assert isinstance(run.open(batch_id), Open)
            assert run.apply(0, numbered(batch_id)) == Applied()
            with self.lost_answer():
                run.close()
        self.require(0, 1)
