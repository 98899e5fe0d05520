"""Batch atomicity, what all sinks share: stage, then publish exactly what came back, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.errors import ConfigError, FencedError, ReplayMismatchError, SinkUnavailableError
from spark_eoc.sinks import task
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.entries import (
    Applied,
    Call,
    Control,
    Fingerprint,
    LedgerView,
    Outcome,
    Staged,
    Unit,
    UnitEntry,
)
from spark_eoc.sinks.ledger import (
    Close,
    Compare,
    Open,
    check_staged,
    decide_close,
    decide_open,
    decide_publish,
    decide_unit,
    is_left_over,
)
from spark_eoc.sinks.rows import HASH_COLUMN, Rows
from spark_eoc.sinks.store import CloseDecision, Column, OpenDecision, PublishDecision, Sink
from spark_eoc.sinks.writer import Writer, WriterOptions, _Batch
from tests.sinks.test_common import Memory


class Shelf(Sink):
    """A sink in memory with both atomicities: what its tasks stage is kept by id."""

    def __init__(self) -> None:
        self.control: Control | None = None
        self.history: dict[int, Any] = {}
        self.entries: dict[int, UnitEntry] = {}
        self.staged: dict[str, tuple[Unit, list[int]]] = {}
        self.target: list[int] = []

    def check(self, columns: Sequence[Column]) -> str:
        return "shelf"

    def check_batch(self) -> None:
        pass

    def _view(self) -> LedgerView:
        opened = None if self.control is None else self.control.open_batch
        units = [entry for entry in self.entries.values() if entry.batch_id == opened]
        return LedgerView(self.control, self.history, len(units), 0)

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        decision = decide(self._view())
        if isinstance(decision, Open):
            self.control = decision.control
        return decision

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        return [entry for entry in self.entries.values() if entry.batch_id == batch_id]

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        outcome = decide_unit(self.control, self.entries.get(unit.partition), unit)
        if isinstance(outcome, Applied):
            self.entries[unit.partition] = UnitEntry(
                unit.partition, unit.batch_id, unit.fingerprint
            )
            self.target += rows.table.column("n").to_pylist()
        return outcome

    def _close(self, decision: Close | None) -> None:
        if decision is not None:
            self.control = decision.control
            self.history[decision.completed.batch_id] = decision.completed

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        self._close(decide(self._view(), self.units(writer_id, batch_id)))

    def stage(self, unit: Unit, staging_id: str, rows: Rows) -> Outcome:
        outcome = decide_unit(self.control, None, unit)
        if isinstance(outcome, Applied):
            self.staged[staging_id] = (unit, rows.table.column("n").to_pylist())
        return outcome

    def publish(
        self, writer_id: str, batch_id: int, staged: Sequence[Staged], decide: PublishDecision
    ) -> None:
        decision = decide(self._view())
        if decision is None:
            return
        found = {
            name: replace(unit.fingerprint, rows=len(kept))
            for name, (unit, kept) in self.staged.items()
        }
        check_staged(batch_id, staged, found)
        for one in sorted(staged, key=lambda one: one.partition):
            self.target += self.staged[one.staging_id][1]
        self._close(decision)

    def clear_staged(self, writer_id: str) -> None:
        for name, (unit, _) in list(self.staged.items()):
            if is_left_over(self.control, unit.epoch, unit.batch_id):
                del self.staged[name]


class Frame:
    """Stands for a DataFrame whose partitions are lists of numbers; its tasks run right here.

    ``copies`` runs each task so often, of which the last copy's report comes back.
    """

    def __init__(self, *partitions: Sequence[int], copies: int = 1) -> None:
        self.partitions = partitions
        self.copies = copies
        self.sparkSession = SimpleNamespace()
        self.on_collected: Callable[[], None] = lambda: None

    def mapInArrow(self, run: Any, _: str) -> Any:
        return SimpleNamespace(collect=lambda: self._collect(run))

    def persist(self, _: Any) -> Frame:
        return self

    def unpersist(self, **_: Any) -> None:
        pass

    def _collect(self, run: Any) -> list[tuple[Any, ...]]:
        rows = []
        for number, numbers in enumerate(self.partitions):
            task.__dict__["_context"] = lambda n=number: SimpleNamespace(
                partitionId=lambda: n, stageId=lambda: 1, attemptNumber=lambda: 0
            )
            for _ in range(self.copies):
                (report,) = run(iter(_batches(numbers)))
            rows.append(tuple(report.to_pylist()[0].values()))
        self.on_collected()
        return rows


def _batches(numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
    if numbers:
        hashes = pa.array([n * 7919 for n in numbers], pa.int64())
        yield pa.record_batch({"c0": pa.array(numbers, pa.int64()), HASH_COLUMN: hashes})


@pytest.fixture(autouse=True)
def _context_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_context", task._context)


class Run:
    """One run of a query whose calls are made by hand."""

    def __init__(self, sink: Sink, run_id: str = "a", atomicity: str = "batch") -> None:
        self.sink, self.run_id, self.atomicity = sink, run_id, atomicity
        self.calls = 0

    def open(self, batch_id: int, frame: Any) -> Callable[[], None]:
        """Opens the batch; the result writes it."""
        call = Call(
            "w", "q", self.run_id, batch_id, f"{self.run_id}-{self.calls}", self.calls == 0,
            atomicity=self.atomicity,
        )  # fmt: skip
        self.calls += 1
        decision = self.sink.open_batch("w", batch_id, lambda view: decide_open(view, call))
        batch = _Batch(self.sink, call, frame, ("n",))
        if isinstance(decision, Compare):
            return lambda: batch.compute_only(decision)
        return lambda: batch.write(decision.control)

    def call(self, batch_id: int, frame: Any) -> None:
        self.open(batch_id, frame)()


def test_a_batch_appears_at_once_and_leaves_nothing_staged() -> None:
    """Partitions are published in their order; an empty one is none."""
    shelf = Shelf()
    seen: list[int] = []
    frame = Frame([1, 2], [], [3])
    frame.on_collected = lambda: seen.append(len(shelf.target))
    Run(shelf).call(0, frame)
    assert (seen, shelf.target, shelf.staged) == ([0], [1, 2, 3], {})
    done = shelf.history[0]
    assert (done.atomicity, done.partitions, done.fingerprint.rows) == ("batch", 3, 3)


def test_of_a_tasks_copies_exactly_the_one_that_came_back_is_published() -> None:
    """Speculation and retries stage each partition more than once."""
    shelf = Shelf()
    Run(shelf).call(0, Frame([1, 2], [3], copies=3))
    assert (shelf.target, shelf.staged) == ([1, 2, 3], {})


def test_an_empty_batch_is_completed() -> None:
    """A batch without rows stages nothing, and has its history."""
    shelf = Shelf()
    run = Run(shelf)
    run.call(0, Frame([], []))
    run.call(1, Frame([4]))
    assert (shelf.target, sorted(shelf.history)) == ([4], [0, 1])


def test_a_run_that_died_before_publishing_leaves_nothing_to_its_successor() -> None:
    """The next run computes anew, with any other content, and clears what was staged."""
    shelf = Shelf()
    dying = Frame([1], [2])
    dying.on_collected = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        Run(shelf).call(0, dying)
    assert len(shelf.staged) == 2
    Run(shelf, "b").call(0, Frame([5, 6, 7]))
    assert (shelf.target, shelf.staged) == ([5, 6, 7], {})


@pytest.mark.parametrize("late", ["before", "after"])
def test_a_run_that_was_taken_over_publishes_nothing(late: str) -> None:
    """A staged and was stopped; B takes over; A goes on before or after B has published. B's
    staged rows are not A's to delete."""
    shelf = Shelf()
    old, new = Run(shelf, "a"), Run(shelf, "b")
    write_new: list[Callable[[], None]] = []

    def take_over() -> None:
        write_new.append(new.open(0, Frame([1, 2])))
        if late == "after":
            write_new.pop()()

    frame = Frame([1], [2])
    frame.on_collected = take_over
    with pytest.raises(FencedError):
        old.call(0, frame)
    for write in write_new:
        write()
    assert (shelf.target, shelf.staged) == ([1, 2], {})


def test_a_zombie_clears_nothing_of_its_successor() -> None:
    """Stopped between its open and its clearing, while B stages."""
    shelf = Shelf()
    zombie = Run(shelf, "a").open(0, Frame([1]))
    frame = Frame([1], [2])

    def wake() -> None:
        with pytest.raises(FencedError):
            zombie()

    frame.on_collected = wake
    Run(shelf, "b").call(0, frame)
    assert shelf.target == [1, 2]


def test_a_complete_batch_run_again_is_computed_and_not_compared() -> None:
    """A plan that changes from run to run is exactly once in batch atomicity."""
    shelf = Shelf()
    Run(shelf).call(0, Frame([1, 2]))
    Run(shelf, "b").call(0, Frame([8, 9, 10]))
    assert shelf.target == [1, 2]


def test_a_batch_begun_by_partitions_is_completed_by_partitions() -> None:
    """atomicity changed in mid-batch: what is applied must fit, the rest follows, once."""
    shelf = Shelf()
    with pytest.raises(ReplayMismatchError):
        _failing_close(shelf, Frame([1]))
    assert shelf.target == [1]
    with pytest.raises(ReplayMismatchError, match="partly applied"):
        Run(shelf, "b").call(0, Frame([7], [1, 2]))
    Run(shelf, "c").call(0, Frame([1], [2]))
    assert shelf.target == [1, 2]
    assert shelf.history[0].atomicity == "partition"
    Run(shelf, "d").call(1, Frame([3], [4]))
    assert (shelf.target, shelf.history[1].atomicity) == ([1, 2, 3, 4], "batch")


def _failing_close(shelf: Shelf, half: Frame) -> None:
    """Applies what ``half`` computes, in partition atomicity, and dies before the close."""

    def no_close(*_: Any) -> None:
        raise ReplayMismatchError("killed")

    shelf.close_batch = no_close  # type: ignore[method-assign]
    try:
        Run(shelf, "a", "partition").call(0, half)
    finally:
        del shelf.close_batch  # type: ignore[method-assign]


def test_a_batch_begun_whole_can_be_done_by_partitions() -> None:
    """The other way: nothing of it was in the target."""
    shelf = Shelf()
    dying = Frame([1], [2])
    dying.on_collected = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        Run(shelf).call(0, dying)
    Run(shelf, "b", "partition").call(0, Frame([1, 2]))
    assert shelf.target == [1, 2]


def test_after_a_repeated_stage_nothing_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partitions that came back may be of two computations that do not fit, and a second pass
    would read the same shuffle files; the restarted query computes anew."""
    shelf = Shelf()
    with monkeypatch.context() as patched:
        patched.setattr(StageWatch, "repeated", lambda _: True)
        with pytest.raises(ReplayMismatchError, match=r"twice.*restart the query"):
            Run(shelf).call(0, Frame([1], [1]))
    assert shelf.target == []
    Run(shelf, "b").call(0, Frame([1], [2]))
    assert (shelf.target, shelf.staged) == ([1, 2], {})


def test_left_overs_that_cannot_be_deleted_stop_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are logged, and deleted with the next batch's."""
    shelf = Shelf()

    def locked(_: str) -> None:
        raise SinkUnavailableError("locked")

    monkeypatch.setattr(shelf, "clear_staged", locked)
    Run(shelf).call(0, Frame([1]))
    assert shelf.target == [1]
    assert "locked" in caplog.text


def test_a_sink_without_batch_atomicity_refuses_it_when_the_writer_is_built() -> None:
    """By name, before anything is started."""
    with pytest.raises(ConfigError, match="Memory has no batch atomicity"):
        Writer(Memory(), WriterOptions(atomicity="batch"))
    with pytest.raises(ConfigError, match='does not go with atomicity="batch" in Shelf'):
        Writer(Shelf(), WriterOptions(atomicity="batch", on_bad_row="dead_letter"))
    Writer(Shelf(), WriterOptions(atomicity="batch"))


F1, F2 = Fingerprint(10, 7), Fingerprint(20, 49)
STAGED = [Staged(0, "a" * 32, F1), Staged(2, "b" * 32, F2)]
CALL = Call("w", "q", "run-a", 6, "token", first=False, offsets_digest="d6", atomicity="batch")
OWNED = Control("q", "run-a", 5, "token", 6, 5)


def view(control: Control | None, units: int = 0) -> LedgerView:
    return LedgerView(control, {}, units, 0)


def test_publishing_completes_the_batch() -> None:
    """Control and history are those of a close."""
    close = decide_publish(view(OWNED), STAGED, CALL, 3)
    units = [UnitEntry(0, 6, F1), UnitEntry(2, 6, F2)]
    assert close == decide_close(view(OWNED), units, {0: F1, 2: F2}, CALL, 3)
    assert close is not None
    assert close.completed.atomicity == "batch"


def test_publishing_by_a_fenced_call_is_refused_and_a_lost_answer_is_recognised() -> None:
    """Only the owner publishes, and only once."""
    for control in (None, replace(OWNED, token="another")):
        with pytest.raises(FencedError, match="not published"):
            decide_publish(view(control), STAGED, CALL, 3)
    done = replace(OWNED, open_batch=None, last_complete=6)
    assert decide_publish(view(done), STAGED, CALL, 3) is None


def test_nothing_is_published_beside_applied_partitions_or_twice() -> None:
    """Either would double rows."""
    with pytest.raises(ReplayMismatchError):
        decide_publish(view(OWNED, units=1), STAGED, CALL, 3)
    with pytest.raises(ReplayMismatchError):
        decide_publish(view(OWNED), [*STAGED, STAGED[0]], CALL, 3)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a" * 32: F1},
        {"a" * 32: F1, "b" * 32: F1},
        {"a" * 32: F1, "b" * 32: replace(F2, rows=19)},
    ],
)
def test_staged_rows_that_are_not_as_they_were_are_not_published(
    found: dict[str, Fingerprint],
) -> None:
    """Lost by the server, or deleted by a hand."""
    with pytest.raises(ReplayMismatchError, match="partition 2"):
        check_staged(6, STAGED, {**found, **({} if found else {"a" * 32: F1})})
    check_staged(6, STAGED, {"a" * 32: F1, "b" * 32: F2, "c" * 32: F1})


@pytest.mark.parametrize(
    ("epoch", "batch_id", "left_over"),
    [(5, 6, False), (4, 6, True), (5, 5, True), (6, 7, False)],
)
def test_what_nobody_can_publish_is_left_over(epoch: int, batch_id: int, left_over: bool) -> None:
    """Older epochs and complete batches; never what a successor stages."""
    assert is_left_over(OWNED, epoch, batch_id) is left_over
    assert is_left_over(None, epoch, batch_id)
