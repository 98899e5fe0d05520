"""Anybody's query script under kills, and the verdict over what it left in its sink.

The script stays as it is. The harness gives it input, starts it, kills it and its servers at the
instants of a schedule, starts it again as a service manager would, waits until it has nothing left
to do, and compares the sink's rows with the lines that were given, as multisets.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.testing.checker import LOST, Row, Verdict, check
from spark_eoc.testing.history import History
from spark_eoc.testing.inputs import Input
from spark_eoc.testing.kills import Instants, Kill, KillSchedule, Strike
from spark_eoc.testing.processes import Part, send
from spark_eoc.testing.report import ChaosReport
from spark_eoc.testing.rows import Rows, text_of
from spark_eoc.testing.servers import Server
from spark_eoc.testing.supervisor import Event, NoProgressError, Supervisor, or_none
from spark_eoc.testing.transcript import Transcript
from spark_eoc.testing.wait import WaitTimeoutError

#: What is done to a script unless the caller says otherwise; servers are added where there are any.
SCRIPT_KILLS = (Kill.DRIVER_PYTHON, Kill.JVM, Kill.PYTHON_WORKER)

#: A line as the value that the sink should hold for it (bytes, a str, or a tuple of columns), or
#: None if it should hold none.
Expect = Callable[[bytes], Any]

_COUNT_EVERY_S = 0.3
_QUIET_S = 2.0
#: How much longer than its pace says the input may take, where what it goes to is killed.
_GIVEN_S = 600.0
#: The share of strikes for each of two aims, and how long one may be put off for it.
_SHARE = 0.4
_AIM_S = 10.0
#: How long a part of the script is waited for: the run has moved on, so that it works.
_PART_S = 10.0
#: What ends a run at once, so that what it was caught at is what the next one finds.
_SUDDEN = (Kill.JVM, Kill.DRIVER_PYTHON)
_ATTEMPTS = 6
_AIM_TICK_S = 0.01


class Aim(Enum):
    """Where in a query's course a strike falls."""

    ANYWHERE = "anywhere"
    IN_BATCH = "somewhere within a batch"
    BEFORE_COMMIT = "rows of a batch are in the sink, and Spark has not written its commit"


@dataclass(frozen=True)
class Chaos:
    """One script under kills.

    ``rows`` reads its sink, ``input`` feeds it. ``expect`` turns a line into the value that the
    sink should hold for it, or into None if it should hold none; without it, into itself.
    ``checkpoints`` names the queries' checkpoints, for the timeline and to see when they are idle.
    ``servers`` are private ones, to be killed; never a user's own. ``progress_s`` is how long a run
    may take to bring a new row, ``settle_s`` how long the sink may stand still in the end.
    """

    command: Sequence[str]
    folder: Path
    input: Input
    rows: Rows
    kills: int = 5
    kinds: Sequence[Kill] = SCRIPT_KILLS
    seed: int | None = None
    servers: Mapping[Kill, Server] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)
    expect: Expect | None = None
    settle_s: float = 90.0
    progress_s: float = 180.0
    instants: Instants = field(default_factory=lambda: Instants(spread_s=2.0))
    on_event: Callable[[Event], None] = lambda event: None

    def run(self) -> ChaosReport:
        """Carries it out. The report is also given when the script can't go on: it says so.

        ConfigError, before anything is started, for a kind whose process isn't there, for too few
        lines, and for a sink that holds rows.
        """
        return _Course(self).run()


class _Course:
    """One :class:`Chaos` on its way."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.history = History(chaos.checkpoints)
        self.schedule = KillSchedule(
            chaos.seed, count=chaos.kills, kinds=chaos.kinds, instants=chaos.instants
        )
        self._aims = aims(list(self.schedule), self.schedule.seed)
        self._counted_at = 0.0
        self._count: int | None = None
        self._moved_in = 0
        self.supervisor = Supervisor(
            chaos.command,
            folder=chaos.folder,
            progress=self._progress,
            env=chaos.env,
            servers=chaos.servers,
            on_event=self._on_event,
            progress_timeout_s=chaos.progress_s,
            part_timeout_s=_PART_S,
            instead=next((kind for kind in _SUDDEN if kind in chaos.kinds), None),
            tick=self._tick,
            aim=self._aim,
        )
        self.supervisor.require(*chaos.kinds)
        require_lines(len(chaos.input.lines), chaos.kills)
        require_empty(chaos.rows)

    def run(self) -> ChaosReport:
        stuck: str | None = None
        self.chaos.input.start()
        try:
            with self.supervisor:
                try:
                    self.supervisor.carry_out(self._strikes())
                    self._settle()
                except (NoProgressError, WaitTimeoutError) as error:
                    stuck = str(error)
                values, unread = self._values()
                self.history.close()
            transcript = self.chaos.input.transcript()
        finally:
            self.chaos.input.close()
        return self._report(transcript, values, "; ".join(filter(None, (stuck, unread))) or None)

    def _tick(self) -> None:
        self.history.look()
        error = self.chaos.input.error
        if error is not None:
            raise NoProgressError(f"the input ended: {type(error).__name__}: {error}") from error

    def _strikes(self) -> Iterator[Strike]:
        """Each strike with half of its share of the lines before it; the rest once it is due."""
        for number, strike in enumerate(self.schedule):
            self._release(number + 0.5)
            yield strike
        self._release(len(self.schedule) + 1)

    def _release(self, shares: float) -> None:
        lines = len(self.chaos.input.lines)
        self.chaos.input.release(int(lines * shares / (len(self.schedule) + 1)))

    def _aim(self, strike: Strike) -> None:
        """To the instants where a query that is not exactly once shows it."""
        seen = any(watch.batches for watch in self.history.watches.values())
        aim = self._aims[strike.number] if seen else Aim.ANYWHERE
        if aim is Aim.BEFORE_COMMIT:
            for attempt in range(1, _ATTEMPTS + 1):
                # A few lines for each attempt, so that there is another batch for the next one.
                self._release(strike.number - 0.5 + attempt / 2 / _ATTEMPTS)
                if self._caught_before_commit(strike):
                    return
        self._release(strike.number)
        if aim is Aim.IN_BATCH:
            self._wait(lambda: self.history.under_way)
            self.supervisor.pass_time(strike.draw().random() * self.history.usual_batch_s)

    def _caught_before_commit(self, strike: Strike) -> bool:
        """Whether the run is at that instant now.

        The JVM is stopped for each look, so that what is seen is what the kill meets; and left so
        where the kill ends it anyway.
        """
        before = self._counted_now(0)
        self._wait(lambda: self.history.under_way)
        deadline = time.monotonic() + _AIM_S
        while self.history.under_way and time.monotonic() < deadline:
            # Asked again for each look: the run may have ended, and its number be another's.
            run = self.supervisor.run
            pids = run.pids(Part.JVM) if run is not None else []
            if not pids:
                return False
            _signal(pids, signal.SIGSTOP)
            caught = self._counted_now(before) > before and self.history.under_way
            if not caught or strike.kind not in _SUDDEN:
                _signal(pids, signal.SIGCONT)
            if caught:
                return True
            self.supervisor.pass_time(_AIM_TICK_S)
        return False

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _AIM_S
        while not condition() and time.monotonic() < deadline:
            self.supervisor.pass_time(_AIM_TICK_S)

    def _counted_now(self, last: int) -> int:
        self._counted_at = 0.0
        return self._count_or(last)

    def _settle(self) -> None:
        """Until every row that is due is there, and the script is at rest.

        A sink that stands still for ``settle_s`` before that has lost rows: the verdict says which.
        A run that was just started has as long before that as the slowest run has needed.
        Rows are compared, not counted: doubled ones would stand for those still on their way.
        """
        supervisor, chaos = self.supervisor, self.chaos
        timeout = _GIVEN_S + chaos.input.takes_s
        supervisor.until(lambda: chaos.input.flushed, timeout=timeout, what="all input given")
        due = Counter(expected(chaos.input.transcript(), chaos.expect).announced.values())
        self._while_moving(lambda found: bool(due - found))
        if chaos.checkpoints:
            self._while_moving(lambda _: not self.history.idle)
            if self.history.under_way:
                raise WaitTimeoutError(
                    f"a batch was planned, and has no commit after {chaos.settle_s:g} s without a "
                    f"new row: the query doesn't get through it"
                )
        supervisor.pass_time(_QUIET_S)

    def _while_moving(self, unsettled: Callable[[Counter[bytes]], bool]) -> None:
        """While it is unsettled, and what it looks at has changed in the last ``settle_s``."""
        last, moved = or_none(self.chaos.rows.values), time.monotonic()
        while time.monotonic() - max(moved, self.supervisor.due_at) < self.chaos.settle_s:
            now = or_none(self.chaos.rows.values)
            found = last if now is None else now
            if not unsettled(found or Counter()):
                return
            if found != last:
                last, moved, self._moved_in = found, time.monotonic(), self.supervisor.starts
            self.supervisor.pass_time(0.2)

    def _values(self) -> tuple[Counter[bytes] | None, str | None]:
        """What is in the sink, or why that is not known."""
        try:
            return self.chaos.rows.values(), None
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  whatever the reader's driver raises
            return None, f"the sink can't be read: {type(error).__name__}: {error}"

    def _progress(self) -> int:
        """Rows in the sink, asked for a few times a second."""
        if self._count is None or time.monotonic() - self._counted_at > _COUNT_EVERY_S:
            self._count = self.chaos.rows.values().total()
            self._counted_at = time.monotonic()
        return self._count

    def _count_or(self, last: int) -> int:
        found = or_none(self._progress)
        return last if found is None else found

    def _on_event(self, event: Event) -> None:
        self.history.note(event)
        self.chaos.on_event(event)

    def _report(
        self, transcript: Transcript, values: Counter[bytes] | None, stuck: str | None
    ) -> ChaosReport:
        found = verdict(expected(transcript, self.chaos.expect), values or Counter())
        # Nothing is known to be lost in a sink that nobody can read, or where nothing ever came.
        judged = values is not None and not (stuck and not values)
        return ChaosReport(
            seed=self.schedule.seed,
            verdict=found if judged else replace(found, anomalies=()),
            history=self.history,
            strikes=tuple(self.supervisor.strikes),
            missed=tuple(self.supervisor.missed),
            starts=self.supervisor.starts,
            unexpected=tuple(self.supervisor.unexpected),
            command=tuple(self.chaos.command),
            folder=str(self.chaos.folder),
            stuck=stuck,
            notes=tuple(self._notes(given_up=found.count(LOST) > 0 and stuck is None)),
        )

    def _notes(self, *, given_up: bool) -> Iterator[str]:
        starts = self.supervisor.starts
        if given_up and max(self._moved_in, self.supervisor.moved_on) < starts:
            yield (
                f"run {starts} had brought no new row when it was given up after "
                f"{self.chaos.settle_s:g} s: if it was only slow, raise settle_s"
            )
        for name, watch in self.history.watches.items():
            if not watch.batches:
                yield (
                    f"{name}: no checkpoint was seen at {watch.path}; without it Spark begins anew "
                    "at each start"
                )


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        send(pid, number)


def aims(strikes: Sequence[Strike], seed: int) -> dict[int, Aim]:
    """An aim for each strike, by its number: two in five for each of two, the others anywhere.

    Where there is a strike at all that ends a run at once, one of these is :attr:`BEFORE_COMMIT`:
    no other shows as surely that a batch is written twice.
    """
    random_ = random.Random(f"aims {seed}")
    order = random_.sample(list(strikes), len(strikes))
    sudden = (one for one in order if one.kind in _SUDDEN and not one.while_starting)
    first = next(sudden, None)
    order.sort(key=lambda strike: strike is not first)
    share = math.ceil(len(order) * _SHARE)
    return {
        strike.number: Aim.BEFORE_COMMIT
        if place < share
        else (Aim.IN_BATCH if place < 2 * share else Aim.ANYWHERE)
        for place, strike in enumerate(order)
    }


def verdict(transcript: Transcript, values: Counter[bytes]) -> Verdict:
    """The checker's verdict over values and how often each is there."""
    return check([transcript], (Row(value) for value in values.elements()))


def require_lines(lines: int, kills: int) -> None:
    """ConfigError where there would be nothing to do when a kill falls, or nothing at all."""
    least = 2 * (kills + 1)
    if lines < least:
        raise ConfigError(
            f"{lines} lines are too few for {kills} kills: each needs new ones before and after it",
            applied="nothing was started",
            next_step=f"give at least {least} lines, or ask for fewer kills",
        )


def require_empty(rows: Rows) -> None:
    """ConfigError for a sink that holds rows: no verdict could tell them from those to come.

    One that can't be read has none yet: many a query makes its table itself. But what it could
    never be read with, such as a SELECT that is none, is refused.
    """
    there = or_none(lambda: rows.values().total())
    if there:
        raise ConfigError(
            f"{there} rows are in the sink before the query is started",
            applied="nothing was started",
            next_step="empty it, or use another table, key or file for each call",
        )


def expected(transcript: Transcript, expect: Expect | None) -> Transcript:
    """The lines as the sink should show them."""
    if expect is None:
        return transcript
    values = {n: expect(line) for n, line in transcript.announced.items()}
    due = {n: text_of(value) for n, value in values.items() if value is not None}
    return replace(transcript, announced=due)
