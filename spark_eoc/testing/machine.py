"""Any sequence of batches, deaths, repeats, other splits, stragglers and zombies, as a hypothesis
state machine: the product's own writer, without Spark, against a model of what the sink must hold.

    class Tried(ExactlyOnce):
        def make_target(self, mode): ...

    run_state_machine_as_test(Tried)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from spark_eoc.errors import ConfigError, FencedError, ReplayMismatchError
from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import NO_BATCH, Applied, LedgerView, Outcome, Refused
from spark_eoc.sinks.task import FingerprintPass, Report
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.lines import dropped_at
from spark_eoc.testing.local import JobFailedError, LocalFrame, LocalTask, local_run
from spark_eoc.testing.matrix import failing, failpoints_of, offered
from spark_eoc.testing.modes import CONDITIONS, KEYS, Mode, Row, Target


@dataclass(frozen=True)
class Trouble:
    """How an attempt dies; nothing of it: it doesn't. ``line`` is one of the sink's own code."""

    failpoint: str | None = None
    hit: int = 1
    line: int | None = None
    task: int | None = None


@dataclass
class Attempt:
    """One call of a run, and what its tasks were."""

    writer: Writer
    run: str
    parts: int
    tasks: list[LocalTask] = field(default_factory=list)


@dataclass
class Pending:
    """The batch that comes next; ``begun`` is the split of the attempt that applied some unit."""

    rows: list[Row]
    parts: int
    begun: int | None = None


class _PeekError(Exception):
    """Lets nothing be stored."""


class ExactlyOnce(RuleBasedStateMachine):
    """Subclass it with ``make_target``, ``modes`` and ``files``.

    ``files`` are those at whose lines an attempt is dropped. Whenever a batch is complete, the
    sink holds exactly what the model says; what may not write changes nothing.
    """

    modes: ClassVar[Sequence[Mode]] = ()
    atomicities: ClassVar[Sequence[str]] = ("partition", "batch")
    files: ClassVar[Sequence[str]] = ()

    def make_target(self, mode: Mode) -> Target:
        """An empty target."""
        raise NotImplementedError

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        """A mode and an atomicity."""
        mode = data.draw(st.sampled_from(list(self.modes)), "mode")
        self.atomicity = data.draw(st.sampled_from(list(self.atomicities)), "atomicity")
        self.mode, self.target = mode, self.make_target(mode)
        assume(offered(self.target, self.atomicity))
        self.expected = self.target.content()
        self.pending: Pending | None = None
        self.newest: Pending | None = None
        self.batch_id, self.rows_before, self.runs = 0, 0, 0
        self.attempts: list[Attempt] = []
        self.writer, self.run = self._new_run()

    # -- what happens

    @precondition(lambda self: self.pending is None)
    @rule(
        numbers=st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(0, 40)), max_size=12),
        parts=st.integers(1, 4),
    )
    def a_batch_comes(self, numbers: list[tuple[int, int]], parts: int) -> None:
        """From Spark, with any rows."""
        self.pending = Pending(self.mode.rows(numbers, self.rows_before), parts)
        self.rows_before += len(numbers)

    @precondition(lambda self: self.pending is not None)
    @rule(data=st.data(), same_run=st.booleans(), seed=st.integers(0, 99))
    def an_attempt_in_trouble(self, data: Any, same_run: bool, seed: int) -> None:
        """It dies at a failpoint, at a line, or before a task; this run or a new one goes on."""
        trouble = data.draw(self._trouble(), "trouble")
        self._attempt(trouble, same_run=same_run, parts=self._begun(), seed=seed)

    @precondition(lambda self: self.pending is not None)
    @rule(parts=st.integers(1, 4), seed=st.integers(0, 99))
    def an_attempt_split_otherwise(self, parts: int, seed: int) -> None:
        """Other cores or settings: once, or refused while the batch is half applied."""
        self._attempt(Trouble(), same_run=False, parts=parts, seed=seed)

    @precondition(lambda self: self.pending is not None)
    @rule(same_run=st.booleans(), seed=st.integers(0, 99))
    def an_attempt(self, same_run: bool, seed: int) -> None:
        """It goes well."""
        self._attempt(Trouble(), same_run=same_run, parts=self._begun(), seed=seed)

    @precondition(lambda self: self.pending is not None)
    @rule(task=st.integers(0, 3))
    def an_attempt_is_overtaken(self, task: int) -> None:
        """Before one of its tasks another run does the whole batch; then it goes on."""
        pending = self.pending
        assert pending is not None
        overtaken: list[int] = []
        old, run = self._new_run()

        def overtake(partition: int) -> None:
            if partition == task and not overtaken:
                overtaken.append(partition)
                self._attempt(Trouble(), same_run=False, parts=self._begun(), seed=0)
                assert self.pending is None, "the new run completes it"

        attempt = Attempt(old, run, self._begun())
        self.attempts.append(attempt)
        frame: Any = self._frame(pending.rows, attempt, 0, overtake)
        try:
            old(frame, self.batch_id)
        except FencedError:
            assert overtaken
            self._check("after the overtaken run")
        else:
            assert not overtaken, "an overtaken run is told so"
            self.writer, self.run = old, run
            self._complete()

    @precondition(lambda self: bool(self.attempts))
    @rule(number=st.integers(0, 5))
    def a_straggler(self, number: int) -> None:
        """A task of an earlier attempt runs once more."""
        tasks = [(task, attempt) for attempt in self.attempts[-4:] for task in attempt.tasks]
        assume(tasks)
        task, attempt = tasks[number % len(tasks)]
        before, mine = self.target.content(), self._owns(task.run)
        outcome = _again(task)
        if outcome == Applied():
            assert mine, "a straggler without the token applied its unit"
            self._note_units(attempt.parts)
        elif isinstance(outcome, Refused):
            assert outcome.error == "FencedError", outcome
        if outcome != Applied() or self.atomicity == "batch":
            assert self.target.content() == before, "what wrote nothing changed something"

    @precondition(lambda self: len(self.attempts) > 1)
    @rule(number=st.integers(0, 3))
    def a_zombie(self, number: int) -> None:
        """An earlier run that owned the writer once goes on with the batch, or with the newest."""
        old = [a for a in self.attempts if a.run != self._owner() and self._has_opened(a.writer)]
        batch = self.pending or self.newest
        assume(old and batch is not None and self._owner())
        assert batch is not None
        zombie, before = old[number % len(old)], self.target.content()
        batch_id = self.batch_id if self.pending else self.batch_id - 1
        frame: Any = self._frame(batch.rows, Attempt(zombie.writer, zombie.run, batch.parts), 0)
        complete = self._last_complete() >= batch_id
        try:
            zombie.writer(frame, batch_id)
            assert complete, "a zombie went through"
        except FencedError:
            assert not complete
        except ConfigError:
            assert complete, "only its own batch is refused so"
        assert self.target.content() == before, "a zombie wrote"

    @precondition(lambda self: self.pending is None and self.newest is not None)
    @rule(other=st.booleans())
    def the_newest_batch_again(self, other: bool) -> None:
        """Spark forgot its commit: compared and not written; other rows are refused, or, in batch
        atomicity, not looked at."""
        newest = self.newest
        assert newest is not None
        rows = [*newest.rows[1:], *self.mode.rows([(1, 1)], self.rows_before)]
        writer, run = self._new_run()
        frame: Any = self._frame(rows if other else newest.rows, Attempt(writer, run, 2), 0)
        try:
            writer(frame, self.batch_id - 1)
            assert not other or self.atomicity == "batch" or rows == newest.rows
        except ReplayMismatchError:
            assert other
        self._check("after the newest batch again")

    def teardown(self) -> None:
        """Whatever was left is completed."""
        if getattr(self, "pending", None) is not None:
            self._attempt(Trouble(), same_run=False, parts=self._begun(), seed=0)
            assert self.pending is None

    # -- how

    def _trouble(self) -> st.SearchStrategy[Trouble]:
        names = failpoints_of(self.mode.sink)
        return st.one_of(
            st.builds(Trouble, failpoint=st.sampled_from(names), hit=st.integers(1, 4)),
            st.builds(Trouble, line=st.integers(1, 90)),
            st.builds(Trouble, task=st.integers(0, 3)),
        )

    def _new_run(self) -> tuple[Writer, str]:
        self.runs += 1
        run = f"run-{self.runs}"
        return local_run(self.target.writer(self.atomicity), "query", run), run

    def _attempt(self, trouble: Trouble, *, same_run: bool, parts: int, seed: int) -> None:
        pending = self.pending
        assert pending is not None
        if not same_run:
            self.writer, self.run = self._new_run()
        before = self.target.content()
        attempt = Attempt(self.writer, self.run, parts)
        self.attempts.append(attempt)
        frame: Any = self._frame(pending.rows, attempt, seed, partial(_fail_at, trouble.task))
        try:
            died = _run_in_trouble(trouble, self.files, partial(self.writer, frame, self.batch_id))
        except ReplayMismatchError:
            assert pending.begun not in (None, parts), "the same split is never refused"
            assert self.target.content() == before, "refused, and yet something was written"
            self.writer, self.run = self._new_run()
            return
        except ConfigError:
            assert same_run
            assert self._last_complete() == self.batch_id
            self.writer, self.run = self._new_run()
            return
        if died:
            self._note_units(parts)
        else:
            self._complete()

    def _frame(
        self,
        rows: Sequence[Row],
        attempt: Attempt,
        seed: int,
        before_task: Callable[[int], None] = lambda _: None,
    ) -> LocalFrame:
        split, shuffled = self.mode.split(rows, attempt.parts), Random(seed)
        if not self.mode.ordered and self.mode.name not in ("rpush", "xadd"):
            split = [shuffled.sample(part, len(part)) for part in split]
        order = shuffled.sample(range(len(split)), len(split))
        frame = LocalFrame(split, self.mode.schema, CONDITIONS, before_task, order)
        frame.tasks = attempt.tasks
        return frame

    def _complete(self) -> None:
        pending = self.pending
        assert pending is not None
        self.expected = self.mode.expected(pending.rows, self.expected)
        self._check(f"batch {self.batch_id} is complete")
        self.expected = {**self.expected, **self.target.refill()}
        self.newest, self.pending = pending, None
        self.batch_id += 1

    def _check(self, when: str) -> None:
        found = self.target.content()
        assert found == self.expected, f"{when}: the sink holds {found}, not {self.expected}"

    def _begun(self) -> int:
        assert self.pending is not None
        return self.pending.begun or self.pending.parts

    def _note_units(self, parts: int) -> None:
        pending, writer = self.pending, self.target.writer(self.atomicity)
        if pending is not None and pending.begun is None:
            begun = writer._sink.units(self._writer_id(), self.batch_id)
            pending.begun = parts if begun else None

    def _writer_id(self) -> str:
        ids = [run.writer_id for a in self.attempts for run in a.writer._runs.values()]
        return ids[0] if ids else ""

    def _view(self) -> LedgerView:
        seen: list[LedgerView] = []

        def peek(view: LedgerView) -> Any:
            seen.append(view)
            raise _PeekError

        with suppress(_PeekError):
            sink = self.target.writer(self.atomicity)._sink
            sink.open_batch(self._writer_id(), self.batch_id, peek)
        return seen[0]

    def _last_complete(self) -> int:
        control = self._view().control
        return NO_BATCH if control is None else control.last_complete

    def _owner(self) -> str:
        control = self._view().control if self._writer_id() else None
        return "" if control is None else control.run_id

    def _has_opened(self, writer: Writer) -> bool:
        return any(run.opened for run in writer._runs.values())

    def _owns(self, task: Any) -> bool:
        control = self._view().control
        return control is not None and control.token == getattr(task, "token", None)


class OptionsChange(ExactlyOnce):
    """The same, and a writer's options change while a batch is begun."""

    @precondition(lambda self: self.pending is not None)
    @rule(task=st.integers(0, 3), seed=st.integers(0, 99))
    def options_change(self, task: int, seed: int) -> None:
        """After an attempt that dies: they hold where nothing is applied; else they are refused."""
        self._attempt(Trouble(task=task), same_run=False, parts=self._begun(), seed=seed)
        pending = self.pending
        if pending is None:
            return
        begun, before = pending.begun, self.target.content()
        self.writer, self.run = self._new_run()
        _change_options(self.writer)
        attempt = Attempt(self.writer, self.run, self._begun())
        frame: Any = self._frame(pending.rows, attempt, seed)
        try:
            self.writer(frame, self.batch_id)
        except ReplayMismatchError:
            assert begun is not None, "refused, and nothing is applied"
            assert self.target.content() == before, "refused, and yet something was written"
        else:
            assert begun is None, "a batch was written with two kinds of options"
            self._complete()
        self.writer, self.run = self._new_run()


def _change_options(writer: Writer) -> None:
    """So that the ledger takes all of them for others; what is written is the same."""
    kind = type(writer._sink)
    others = dict.fromkeys(writer._sink.options(), "another")
    other = type(f"Other{kind.__name__}", (kind,), {"options": lambda _: others})
    object.__setattr__(writer._sink, "__class__", other)


def _fail_at(wanted: int | None, partition: int) -> None:
    if partition == wanted:
        raise JobFailedError(f"task {partition}")


def _run_in_trouble(trouble: Trouble, files: Sequence[str], call: Callable[[], Any]) -> bool:
    with ExitStack() as stack:
        if trouble.failpoint is not None:
            stack.enter_context(failing(f"{trouble.failpoint}:{trouble.hit}=raise"))
        try:
            if trouble.line is not None:
                return dropped_at(files, trouble.line, call)
            call()
        except (FailpointError, JobFailedError):
            return True
        return False


def _again(task: LocalTask) -> Outcome | None:
    if isinstance(task.run, FingerprintPass):
        return None
    (row,) = task.again()
    return Report.of_row(row).outcome
