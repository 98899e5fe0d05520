"""A model of the ledger's protocol, explored whole: the product's own decisions in a simulator.

The decisions of :mod:`spark_eoc.sinks.ledger` are pure, so this module runs them, not a copy,
against a ledger that is a value. It explores **every** interleaving of what may happen to a query,
within the bounds of a :class:`Scope`:

* a run, and other runs that begin while the first is alive (it was stopped, and continues);
* a crash of a run before and after every step, with a task of it that lives on (a straggler);
* a lost answer to a unit's commit, to the open and to the close, then the retry;
* a call that fails and is called again within the same run;
* another partitioning of the same rows in another run, or in the repeated call;
* batch atomicity in some of the partitionings: tasks stage, some twice, and the driver publishes.

In each state no row may be in the sink twice. Each state with nothing alive is finished by one run
without faults, after which no row may be missing. A run may end in a typed error; that is
*refused*. With one partitioning, or in batch atomicity alone, the finishing run itself must never
be refused.

:class:`Rules` names the decisions, so that a test can put a broken one in and see it caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_eoc.errors import SparkEocError
from spark_eoc.sinks.entries import (
    NO_BATCH,
    AlreadyApplied,
    Applied,
    Call,
    Completed,
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
    decide_after_error,
    decide_close,
    decide_open,
    decide_publish,
    decide_replay,
    decide_unit,
    is_left_over,
)

#: One partitioning: per partition the numbers of its rows within a batch.
Split = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Rules:
    """The decisions under test; the defaults are the product's.

    ``unit_steps`` says how a unit reaches the sink: ``atomic``; ``rows_then_entry`` (the ledger in
    a transaction of its own); ``check_then_write`` (a plain read at the start);
    ``control_then_write`` (a plain read of the control entry alone, before the commit).
    ``publishes_all`` takes everything that is staged for the batch, not what came back.
    """

    open: Callable[[LedgerView, Call], Open | Compare] = decide_open
    unit: Callable[[Control | None, UnitEntry | None, Unit], Outcome] = decide_unit
    after_error: Callable[[UnitEntry | None, Unit], Outcome | None] = decide_after_error
    replay: Callable[
        [Sequence[UnitEntry], Mapping[int, Fingerprint], Mapping[int, Fingerprint], str, str], bool
    ] = decide_replay
    close: Callable[
        [LedgerView, Sequence[UnitEntry], Mapping[int, Fingerprint], Call, int], Close | None
    ] = decide_close
    publish: Callable[[LedgerView, Sequence[Staged], Call, int], Close | None] = decide_publish
    left_over: Callable[[Control | None, int, int], bool] = is_left_over
    publishes_all: bool = False
    unit_steps: str = "atomic"
    token_per_call: bool = True
    unit_key: Callable[[int], int] = lambda partition: partition


@dataclass(frozen=True)
class Scope:
    """How much is explored. ``splits`` are the partitionings that runs and calls may use; those
    whose numbers are in ``whole`` are written in batch atomicity."""

    batches: int = 2
    splits: tuple[Split, ...] = (((0,), (1,)),)
    runs: int = 2
    alive: int = 2
    crashes: int = 1
    lost_answers: int = 1
    repeated_calls: int = 0
    whole: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        """Rows of one batch."""
        return sum(len(part) for part in self.splits[0])


@dataclass(frozen=True)
class Ledger:
    """What the sink holds: the ledger's entries, and how often each row of each batch."""

    control: Control | None
    units: tuple[tuple[int, UnitEntry], ...]
    history: tuple[Completed, ...]
    rows: tuple[int, ...]
    staged: frozenset[tuple[str, Task]] = frozenset()


@dataclass(frozen=True)
class Task:
    """One unit on its way; ``checked`` and ``written`` are for variants that split the step.

    With ``stage`` it is staged, under another id at each ``attempt``.
    """

    unit: Unit
    rows: tuple[int, ...]
    checked: bool = False
    written: bool = False
    unanswered: bool = False
    stage: bool = False
    attempt: int = 0

    @property
    def staging_id(self) -> str:
        """The same only for the same attempt of the same task."""
        return f"{self.unit.token}/{self.unit.partition}/{self.attempt}"


@dataclass(frozen=True)
class Run:
    """One run of the query; ``step`` is open, units, apply, close, publish, commit, ended or
    refused. ``staged`` is what its tasks reported, in batch atomicity."""

    number: int
    began: int
    batch: int
    split: int
    step: str = "open"
    opened: bool = False
    call: Call | None = None
    tasks: tuple[Task, ...] = ()
    reported: tuple[tuple[int, Fingerprint], ...] = ()
    whole: bool = False
    staged: tuple[Staged, ...] = ()


@dataclass(frozen=True)
class State:
    """Everything that there is; hashable, so that no state is explored twice."""

    ledger: Ledger
    committed: int
    runs: tuple[Run, ...]
    stragglers: frozenset[Task]
    clock: int = 1
    calls: int = 0
    crashes: int = 0
    lost: int = 0
    repeated: int = 0


_Parents = dict[State, "tuple[State, str] | None"]


@dataclass
class Exploration:
    """What was found: ``states`` seen, endings ``refused``, and per anomaly how often.

    ``twice`` and ``lost`` are rows; ``stuck`` is a query with one partitioning that no run can
    finish; ``usurped`` is an older run that took the writer from a younger one.

    ``example`` holds the trace of the first anomaly, one line a step.
    """

    states: int = 0
    refused: int = 0
    twice: int = 0
    lost: int = 0
    stuck: int = 0
    usurped: int = 0
    example: tuple[str, ...] = field(default_factory=tuple)

    @property
    def clean(self) -> bool:
        """No anomaly of any kind."""
        return not (self.twice or self.lost or self.stuck or self.usurped)


def explore(
    scope: Scope, rules: Rules | None = None, *, stop_at_first: bool = False
) -> Exploration:
    """Explores every interleaving within ``scope``, depth first, each state once."""
    return _Explorer(scope, rules or Rules(), stop_at_first).run()


class _Explorer:
    def __init__(self, scope: Scope, rules: Rules, stop_at_first: bool) -> None:
        self.scope = scope
        self.rules = rules
        self.stop_at_first = stop_at_first
        self.found = Exploration()
        self._programs: dict[str, Callable[[State, Run], Iterator[tuple[str, State]]]] = {
            "open": self._open,
            "reopen": self._reopen,
            "units": self._units,
            "apply": self._apply_all,
            "close": self._close,
            "publish": self._publish,
            "commit": self._commit,
        }

    def run(self) -> Exploration:
        start = State(
            Ledger(None, (), (), (0,) * (self.scope.batches * self.scope.rows)),
            NO_BATCH,
            (Run(0, 0, 0, 0),),
            frozenset(),
        )
        # Every state seen, with the step that led there first; hashing is the whole cost here.
        parents: _Parents = {start: None}
        stack = [start]
        while stack:
            state = stack.pop()
            self.found.states += 1
            if not self._sound(state, parents):
                if self.stop_at_first:
                    break
                continue
            if self._usurped(state):
                self.found.usurped += 1
                self._report(state, parents, "an older run took over from a younger one")
                if self.stop_at_first:
                    break
                continue
            for label, following in self._steps(state):
                known = len(parents)
                parents.setdefault(following, (state, label))
                if len(parents) > known:
                    stack.append(following)
        return self.found

    # -- what must hold ------------------------------------------------------------------------

    def _sound(self, state: State, parents: _Parents) -> bool:
        verdict = self._verdict(state)
        if verdict is None:
            return True
        return self._report(state, parents, verdict)

    def _verdict(self, state: State) -> str | None:
        """What is wrong with a state, or with its finish where nothing in it is alive."""
        if max(state.ledger.rows) > 1:
            self.found.twice += 1
            return "a row is in the sink twice"
        if any(run.step not in ("ended", "refused") for run in state.runs) or state.stragglers:
            return None
        last = self._finish(state)
        if max(last.ledger.rows) > 1:
            self.found.twice += 1
            return "the finishing run wrote a row twice"
        if last.runs[-1].step == "refused":
            return self._refused()
        if min(last.ledger.rows) < 1:
            self.found.lost += 1
            return "a row is lost"
        return None

    def _refused(self) -> str | None:
        self.found.refused += 1
        if len(self.scope.splits) > max(1, len(self.scope.whole)):
            return None
        self.found.stuck += 1
        return "no run can finish"

    def _usurped(self, state: State) -> bool:
        """Whether the owner began before a run that has opened and was alive to go on."""
        control = state.ledger.control
        if control is None:
            return False
        owner = next(run for run in state.runs if f"run{run.number}" == control.run_id)
        return any(
            run.began > owner.began and run.opened and run.call is not None
            for run in state.runs
            if run.step in ("units", "apply", "close", "publish")
        )

    def _report(self, state: State, parents: _Parents, verdict: str) -> bool:
        if not self.found.example:
            lines = [verdict]
            step = parents[state]
            while step is not None:
                lines.append(step[1])
                step = parents[step[0]]
            self.found.example = tuple(reversed(lines))
        return False

    def _finish(self, state: State) -> State:
        """One more run, with the first split, alone and without faults."""
        number = len(state.runs)
        run = Run(number, state.clock, state.committed + 1, 0)
        state = replace(state, runs=(*state.runs, run), clock=state.clock + 1)
        if run.batch >= self.scope.batches:
            return replace(state, runs=(*state.runs[:-1], replace(run, step="ended")))
        while state.runs[-1].step not in ("ended", "refused"):
            _, state = next(iter(self._advance(state, state.runs[-1])))
        return state

    # -- what may happen -----------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        alive = [run for run in state.runs if run.step not in ("ended", "refused")]
        for run in alive:
            yield from self._advance(state, run)
            yield from self._faults(state, run)
        for task in state.stragglers:
            for label, ledger, after, _ in self._apply(state.ledger, task):
                rest = state.stragglers - {task}
                rest = rest if after is None else rest | {after}
                yield (
                    f"straggler: {label}",
                    replace(state, ledger=ledger, stragglers=rest),
                )
        if len(state.runs) < self.scope.runs and len(alive) < self.scope.alive:
            batch = state.committed + 1
            if batch < self.scope.batches:
                for split in range(len(self.scope.splits)):
                    run = Run(len(state.runs), state.clock, batch, split)
                    yield (
                        f"run {run.number} begins with split {split} at batch {batch}",
                        replace(state, runs=(*state.runs, run), clock=state.clock + 1),
                    )

    def _faults(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        if state.crashes < self.scope.crashes:
            dead = _ended(run)
            gone = replace(_with(state, dead), crashes=state.crashes + 1)
            yield f"run {run.number} crashes", gone
            if run.tasks:
                yield (
                    f"run {run.number} crashes, its task {run.tasks[0].unit.partition} lives on",
                    replace(gone, stragglers=state.stragglers | {run.tasks[0]}),
                )
        if run.step == "apply" and run.tasks and state.repeated < self.scope.repeated_calls:
            for split in range(len(self.scope.splits)):
                again = replace(_ended(run), step="open", split=split, call=run.call)
                yield (
                    f"run {run.number}: the call fails, a task lives on, called again "
                    f"with split {split}",
                    replace(
                        _with(state, again),
                        stragglers=state.stragglers | {run.tasks[0]},
                        repeated=state.repeated + 1,
                    ),
                )

    def _advance(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        step = self._programs[run.step]
        try:
            for label, following in step(state, run):
                yield f"run {run.number}: {label}", following
        except SparkEocError as error:
            yield f"run {run.number}: {type(error).__name__}", _with(state, _ended(run))

    def _open(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        call = run.call
        calls = state.calls
        if call is None or call.batch_id != run.batch or run.opened:
            token = f"{run.number}.{calls}" if self.rules.token_per_call else f"{run.number}"
            call = Call(
                "w",
                "q",
                f"run{run.number}",
                run.batch,
                token,
                first=not run.opened,
                offsets_digest=f"digest{run.batch}",
                split=str(run.split),
                atomicity="batch" if run.split in self.scope.whole else "partition",
            )
            calls += 1
        view = self._view(state, run)
        decision = self.rules.open(view, replace(call, age_us=state.clock - run.began))
        if isinstance(decision, Compare):
            yield (
                f"batch {run.batch} is complete",
                replace(_with(state, replace(run, step="commit", call=None)), calls=calls),
            )
            return
        ledger = replace(state.ledger, control=decision.control)
        opened = replace(run, step="units", call=call, opened=True)
        after = replace(_with(state, opened), ledger=ledger, clock=state.clock + 1, calls=calls)
        yield f"opens batch {run.batch}, epoch {decision.control.epoch}", after
        if state.lost < self.scope.lost_answers:
            lost = replace(run, call=call, step="reopen")
            yield (
                f"opens batch {run.batch}, the answer is lost",
                replace(_with(after, lost), lost=state.lost + 1),
            )

    def _reopen(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        assert run.call is not None
        call = replace(run.call, age_us=state.clock - run.began)
        decision = self.rules.open(self._view(state, run), call)
        if isinstance(decision, Compare):
            yield "complete", _with(state, replace(run, step="commit", call=None, opened=True))
            return
        ledger = replace(state.ledger, control=decision.control)
        after = _with(state, replace(run, step="units", opened=True))
        yield "opens again", replace(after, ledger=ledger, clock=state.clock + 1)

    def _units(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        assert run.call is not None
        assert state.ledger.control is not None
        parts = self._partitions(run)
        stored = [entry for _, entry in state.ledger.units if entry.batch_id == run.batch]
        if run.split in self.scope.whole and not stored:
            yield self._stage_all(state, run, parts)
            return
        computed = {p: _fingerprint(rows) for p, rows in parts.items()}
        todo = parts
        reported = computed
        if stored:
            split = state.ledger.control.split
            if self.rules.replay(stored, computed, {}, split, str(run.split)):
                done = {entry.partition for entry in stored}
                todo = {p: rows for p, rows in parts.items() if p not in done}
            else:
                todo = {}
                reported = {entry.partition: entry.fingerprint for entry in stored}
        epoch = state.ledger.control.epoch
        tasks = tuple(
            Task(Unit("w", p, run.batch, epoch, run.call.token, computed[p]), rows)
            for p, rows in todo.items()
        )
        # Begun by partitions, it is completed by partitions.
        call = replace(run.call, atomicity="partition")
        told = tuple(sorted(reported.items()))
        after = replace(run, step="apply", call=call, tasks=tasks, reported=told)
        yield f"finds {len(stored)} units, writes {len(tasks)}", _with(state, after)

    def _stage_all(
        self, state: State, run: Run, parts: Mapping[int, tuple[int, ...]]
    ) -> tuple[str, State]:
        """Clears what dead runs have staged, and sends out the tasks."""
        control, call = state.ledger.control, run.call
        assert call is not None
        assert control is not None
        kept = frozenset(
            (name, task)
            for name, task in state.ledger.staged
            if not self.rules.left_over(control, task.unit.epoch, task.unit.batch_id)
        )
        tasks = tuple(
            Task(
                Unit("w", p, run.batch, control.epoch, call.token, _fingerprint(rows)),
                rows,
                stage=True,
            )
            for p, rows in parts.items()
        )
        after = _with(state, replace(run, step="apply", tasks=tasks, whole=True))
        ledger = replace(state.ledger, staged=kept)
        return f"clears, stages {len(tasks)}", replace(after, ledger=ledger)

    def _apply_step(self, state: State, run: Run, task: Task) -> Iterator[tuple[str, State]]:
        others = tuple(other for other in run.tasks if other is not task)
        for label, ledger, after, outcome in self._apply(state.ledger, task):
            if after is None and not isinstance(outcome, Applied | AlreadyApplied):
                # Spark lets the other tasks of the stage run to their end.
                ended = _ended(run)
                rest = state.stragglers | set(others)
                yield label, replace(_with(state, ended), ledger=ledger, stragglers=rest)
                continue
            tasks = others if after is None else (after, *others)
            staged = run.staged
            if task.stage:
                told = Staged(task.unit.partition, task.staging_id, task.unit.fingerprint)
                staged = tuple(sorted((*staged, told), key=lambda one: one.partition))
            done = replace(run, tasks=tasks, staged=staged)
            yield label, replace(_with(state, done), ledger=ledger)
            if after is None and state.lost < self.scope.lost_answers:
                again = (
                    replace(task, attempt=task.attempt + 1)
                    if task.stage
                    else replace(task, unanswered=True, checked=False, written=False)
                )
                lost = _with(state, replace(run, tasks=(again, *others)))
                yield (
                    f"{label}, the answer is lost",
                    replace(lost, ledger=ledger, lost=state.lost + 1),
                )

    def _close(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        assert run.call is not None
        stored = [entry for _, entry in state.ledger.units if entry.batch_id == run.batch]
        view = self._view(state, run)
        closed = self.rules.close(
            view, stored, dict(run.reported), run.call, len(self.scope.splits[run.split])
        )
        ledger = state.ledger
        if closed is not None:
            ledger = replace(
                ledger, control=closed.control, history=(*ledger.history, closed.completed)
            )
        done = replace(run, step="commit", tasks=(), reported=(), call=None)
        yield f"closes batch {run.batch}", replace(_with(state, done), ledger=ledger)
        if closed is not None and state.lost < self.scope.lost_answers:
            yield (
                f"closes batch {run.batch}, the answer is lost",
                replace(state, ledger=ledger, lost=state.lost + 1),
            )

    def _publish(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        assert run.call is not None
        closed = self.rules.publish(
            self._view(state, run), run.staged, run.call, len(self.scope.splits[run.split])
        )
        ledger = state.ledger
        if closed is not None:
            ledger = self._published(ledger, run, closed)
        done = replace(_ended(run), step="commit")
        yield f"publishes batch {run.batch}", replace(_with(state, done), ledger=ledger)
        if closed is not None and state.lost < self.scope.lost_answers:
            yield (
                f"publishes batch {run.batch}, the answer is lost",
                replace(state, ledger=ledger, lost=state.lost + 1),
            )

    def _published(self, ledger: Ledger, run: Run, closed: Close) -> Ledger:
        there = dict(ledger.staged)
        check_staged(
            run.batch, run.staged, {name: task.unit.fingerprint for name, task in there.items()}
        )
        chosen = [there[one.staging_id] for one in run.staged]
        if self.rules.publishes_all:
            chosen = [task for task in there.values() if task.unit.batch_id == run.batch]
        for task in chosen:
            ledger = self._rows(ledger, task)
        return replace(ledger, control=closed.control, history=(*ledger.history, closed.completed))

    def _commit(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        if state.committed >= run.batch:
            yield "Spark's commit log is taken", _with(state, replace(run, step="refused"))
            return
        step = "open" if run.batch + 1 < self.scope.batches else "ended"
        following = replace(run, step=step, batch=run.batch + 1)
        yield (
            f"Spark commits batch {run.batch}",
            replace(_with(state, following), committed=run.batch),
        )

    # -- the sink ------------------------------------------------------------------------------

    def _apply(
        self, ledger: Ledger, task: Task
    ) -> Iterator[tuple[str, Ledger, Task | None, Outcome | None]]:
        """Each next step of one task: its label, the ledger, the task if not done, its outcome."""
        if task.stage:
            yield self._stage(ledger, task)
            return
        unit = task.unit
        name = f"unit {unit.partition} of batch {unit.batch_id}"
        key = self.rules.unit_key(unit.partition)
        entry = dict(ledger.units).get(key)
        if task.unanswered:
            outcome = self.rules.after_error(entry, unit)
            if outcome is not None:
                yield f"{name} after an error: {type(outcome).__name__}", ledger, None, outcome
                return
        if task.written:
            yield f"{name}: entry", _entered(ledger, key, unit), None, Applied()
            return
        steps = self.rules.unit_steps
        if task.checked:
            later = (
                Applied()
                if steps == "check_then_write"
                else self.rules.unit(_claimed(ledger.control, unit), entry, unit)
            )
        else:
            later = self.rules.unit(ledger.control, entry, unit)
            if steps in ("check_then_write", "control_then_write") and isinstance(later, Applied):
                yield f"{name}: checked", ledger, replace(task, checked=True), None
                return
        if not isinstance(later, Applied):
            yield f"{name}: {type(later).__name__}", ledger, None, later
            return
        wrote = self._rows(ledger, task)
        if steps == "rows_then_entry":
            yield f"{name}: rows", wrote, replace(task, written=True), None
            return
        yield f"{name}: Applied", _entered(wrote, key, unit), None, later

    def _stage(self, ledger: Ledger, task: Task) -> tuple[str, Ledger, Task | None, Outcome | None]:
        outcome = self.rules.unit(ledger.control, None, task.unit)
        if isinstance(outcome, Applied):
            ledger = replace(ledger, staged=ledger.staged | {(task.staging_id, task)})
        name = f"partition {task.unit.partition} of batch {task.unit.batch_id}"
        return f"stages {name}: {type(outcome).__name__}", ledger, None, outcome

    def _rows(self, ledger: Ledger, task: Task) -> Ledger:
        rows = list(ledger.rows)
        for row in task.rows:
            rows[task.unit.batch_id * self.scope.rows + row] += 1
        return replace(ledger, rows=tuple(rows))

    def _partitions(self, run: Run) -> dict[int, tuple[int, ...]]:
        return {p: rows for p, rows in enumerate(self.scope.splits[run.split]) if rows}

    def _view(self, state: State, run: Run) -> LedgerView:
        control = state.ledger.control
        open_batch = None if control is None else control.open_batch
        return LedgerView(
            control,
            {completed.batch_id: completed for completed in state.ledger.history},
            sum(1 for _, entry in state.ledger.units if entry.batch_id == open_batch),
            state.clock,
        )

    def _apply_all(self, state: State, run: Run) -> Iterator[tuple[str, State]]:
        if not run.tasks:
            step = "publish" if run.whole else "close"
            yield "all units reported", _with(state, replace(run, step=step))
        for task in run.tasks:
            yield from self._apply_step(state, run, task)


def _ended(run: Run) -> Run:
    """Without anything of its call."""
    return replace(run, step="refused", tasks=(), call=None, reported=(), whole=False, staged=())


def _with(state: State, run: Run) -> State:
    runs = tuple(run if other.number == run.number else other for other in state.runs)
    return replace(state, runs=runs)


def _entered(ledger: Ledger, key: int, unit: Unit) -> Ledger:
    units = dict(ledger.units)
    units[key] = UnitEntry(unit.partition, unit.batch_id, unit.fingerprint)
    return replace(ledger, units=tuple(sorted(units.items())))


def _claimed(control: Control | None, unit: Unit) -> Control | None:
    """The control entry as a plain read would have shown it a moment ago."""
    if control is None:
        return None
    return replace(control, token=unit.token, open_batch=unit.batch_id)


def _fingerprint(rows: tuple[int, ...]) -> Fingerprint:
    # One bit a row: two sets of rows never meet.
    return Fingerprint(len(rows), sum(1 << row for row in rows))
