"""Keeps a query script running while a schedule kills it, as a service manager would.

    supervisor = Supervisor(
        [sys.executable, "query.py"],
        folder=tmp,                                # the runs' logs
        progress=lambda: rows_in_sink(),           # grows while the run works
        servers={Kill.MARIADB: mariadb},
    )
    with supervisor:
        supervisor.carry_out(KillSchedule(seed, count=10, kinds=PROCESS_KILLS))
        supervisor.until(lambda: rows_in_sink() >= sent, timeout=60, what="all rows in the sink")
    supervisor.strikes, supervisor.starts, supervisor.unexpected

A run that ends is started again. It may end because it was killed, or because its query failed
(a killed Python worker or source runner does that, and a database that stays away). So is a
receiver or producer of :mod:`spark_eoc.testing.daemons`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from spark_eoc.errors import ConfigError
from spark_eoc.testing import tiers
from spark_eoc.testing.clock import Clock
from spark_eoc.testing.faults import clock_jump, network_fault
from spark_eoc.testing.kills import DAEMON_KILLS, Kill, Strike
from spark_eoc.testing.processes import Part, ScriptRun, send
from spark_eoc.testing.proxy import Proxy
from spark_eoc.testing.servers import Server
from spark_eoc.testing.tiers import Tier
from spark_eoc.testing.wait import WaitTimeoutError

T = TypeVar("T")

#: What a script may well live through.
_SURVIVED = (Kill.PYTHON_WORKER, Kill.EXECUTOR)

#: How long a part of a script that starts is waited for.
_STARTING_S = 60.0

#: So many ends without progress end it: of a script that never got anywhere, and of all else.
_HOPELESS, _ENDS = 3, 6

#: What gives a kind something to be done to.
_NEEDED = {
    Kill.FULL: "give a Redis, or a server with disk_mib=",
    Kill.CLOCK: "give clock=Clock(folder)",
    Kill.NETWORK: "give the proxies of its connections",
    Kill.RECEIVER: "let a receiver of its own fill the buffer that the query reads (feed='buffer')",
    Kill.PRODUCER: "let lines be sent to it (feed='listen' or feed='buffer')",
    Kill.SPARK_WORKER: "give the worker of a standalone cluster",
}


class NoProgressError(AssertionError):
    """Run after run ended, or one run stood still; the message ends with the newest log."""


@dataclass(frozen=True)
class Event:
    """What the supervisor did or saw, ``at`` seconds after it began: for progress displays.

    ``kind`` is one of start, progress, kill, missed (no such process at that instant), end,
    fenced (a run that was taken over has ended by itself).
    """

    at: float
    kind: str
    text: str
    strike: Strike | None = None

    def __str__(self) -> str:
        return f"{self.at:6.1f} s {self.kind}: {self.text}"


class Supervisor:
    """Starts the script, restarts it whenever it ends, and carries out strikes on it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: str | os.PathLike[str],
        progress: Callable[[], int],
        env: Mapping[str, str] | None = None,
        servers: Mapping[Kill, Server | Sequence[Server]] | None = None,
        links: Sequence[Proxy] = (),
        clock: Clock | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
        progress_timeout_s: float = 240.0,
        part_timeout_s: float = 60.0,
        instead: Kill | None = None,
        tick: Callable[[], None] = lambda: None,
        aim: Callable[[Strike], None] = lambda strike: None,
    ) -> None:
        """``progress()`` is asked about 20 times a second and may raise while a server is down
        (that counts as no progress). Of several ``servers`` of a kind a strike hits one. NETWORK
        disturbs one of ``links`` for a while; CLOCK sets ``clock``, by which the script lives.
        A part that isn't there once the script works is waited for ``part_timeout_s``, then the
        strike is missed, and ``instead`` is killed in its place.
        ``tick`` is called as often: for a display. ``aim`` is called when a strike is due and may
        put it off a little, to an instant that matters."""
        self.command = list(command)
        self.folder = Path(folder)
        self.env = {**(env or {}), **(clock.environment if clock is not None else {})}
        self.clock = clock
        self.servers = {
            kind: (given,) if isinstance(given, Server) else tuple(given)
            for kind, given in (servers or {}).items()
        }
        self.links = tuple(links)
        self.starts = 0
        self.strikes: list[Strike] = []
        self.missed: list[Strike] = []
        self.unexpected: list[str] = []
        self.fenced: list[str] = []
        self.run: ScriptRun | None = None
        self._runs: list[ScriptRun] = []
        self._progress = progress
        self._on_event = on_event
        self._tick = tick
        self._aim = aim
        self._progress_timeout_s = progress_timeout_s
        self._part_timeout_s = part_timeout_s
        self._instead = instead
        self._began = time.monotonic()
        self._started_at = 0.0
        #: The number of the newest run that has moved ``progress`` on.
        self.moved_on = 0
        self._slowest_start_s = 0.0
        self._ended_log: Path | None = None
        self._ends_without_progress = 0
        self._progress_at_end = 0
        self._counted = 0

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> ScriptRun:
        """Starts the next run; its log is ``run-NNN.log`` in the folder."""
        self.starts += 1
        log = self.folder / f"run-{self.starts:03}.log"
        self.run = ScriptRun.start(self.command, log=log, env=self.env)
        self._runs.append(self.run)
        self._started_at = time.monotonic()
        self._tell("start", f"run {self.starts} started")
        return self.run

    def close(self) -> None:
        """Kills whatever is left of every run. What it did counts for the third tier."""
        tiers.went(Tier.RANDOM, len(self.strikes) - self._counted, time.monotonic() - self._began)
        self._counted = len(self.strikes)
        for run in self._runs:
            run.kill_all()

    def carry_out(self, strikes: Iterable[Strike]) -> None:
        """Every strike in turn; on return the newest run has been started and may be starting.

        ConfigError for a kind whose process isn't there.
        """
        for strike in strikes:
            self.require(strike.kind)
            self._await_instant(strike)
            self._strike(strike)

    def require(self, *kinds: Kill) -> None:
        """ConfigError, naming it, where one of the kinds would find nothing to be done to."""
        for kind in kinds:
            if not self._has(kind):
                raise ConfigError(
                    f"kill {kind}: there is nothing of this kind beside the script",
                    applied="nothing was done to it",
                    next_step=_NEEDED.get(kind, "give the server that may be killed"),
                )

    def _has(self, kind: Kill) -> bool:
        if kind is Kill.NETWORK:
            return bool(self.links)
        if kind is Kill.FULL:
            return bool(self._fillable)
        if kind is Kill.CLOCK:
            return self.clock is not None
        return not kind.is_server or bool(self.servers.get(kind))

    @property
    def _fillable(self) -> list[Server]:
        return [server for each in self.servers.values() for server in each if server.can_fill]

    def until(self, condition: Callable[[], T], *, timeout: float, what: str) -> T:
        """Waits for a condition while runs that end are started again; WaitTimeoutError."""
        deadline = time.monotonic() + timeout
        while True:
            value = or_none(condition)
            if value:
                return value
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"{what}: not within {timeout:g} s, last seen {value!r}")
            self._pause()
            self._restart_if_ended()

    def pass_time(self, seconds: float) -> None:
        """Lets the script work for so long; runs that end are started again."""
        self._sleep_until(time.monotonic() + seconds, restart=True)

    @property
    def due_at(self) -> float:
        """When the newest run should work, if it is as slow as the slowest so far, on
        ``time.monotonic()``'s clock."""
        return self._started_at + self._slowest_start_s

    # instants

    def _await_instant(self, strike: Strike) -> None:
        if strike.while_starting:
            self._sleep_until(self._started_at + strike.after_s, restart=False)
            return
        self._await_progress()
        self._sleep_until(time.monotonic() + strike.after_s, restart=True)
        self._aim(strike)

    def _await_progress(self, timeout: float | None = None, *, required: bool = True) -> None:
        """Waits until this run, or one that replaced it, has moved ``progress`` on."""
        seen = or_none(self._progress)
        deadline = time.monotonic() + (timeout or self._progress_timeout_s)
        while True:
            now = or_none(self._progress)
            if seen is None:
                seen = now
            elif now is not None and now > seen:
                self._note_progress()
                self._tell("progress", f"{now} so far")
                return
            if time.monotonic() > deadline:
                if not required:
                    return
                raise NoProgressError(
                    f"no progress beyond {seen or 0} rows in {self._progress_timeout_s:g} s; "
                    f"{self._last_words()}"
                )
            self._pause()
            self._restart_if_ended()

    def _note_progress(self) -> None:
        if self.moved_on != self.starts:  # the first of this run
            self.moved_on = self.starts
            took = time.monotonic() - self._started_at
            self._slowest_start_s = max(self._slowest_start_s, took)

    def _sleep_until(self, instant: float, *, restart: bool) -> None:
        while time.monotonic() < instant:
            self._pause(min(0.05, max(0.001, instant - time.monotonic())))
            if restart:
                self._restart_if_ended()

    # strikes

    def _strike(self, strike: Strike) -> None:
        run = self._running()
        if strike.kind is Kill.TAKEOVER:
            self._take_over(run, strike)
        elif strike.kind.is_server:
            self._kill_server(strike)
        elif strike.kind is Kill.FULL:
            self._fill_up(strike)
        elif strike.kind is Kill.CLOCK:
            self._set_clock(strike)
        elif strike.kind is Kill.NETWORK:
            self._disturb(strike)
        else:
            self._kill_part(run, strike)

    def _running(self) -> ScriptRun:
        return self.run if self.run is not None else self.start()

    def _kill_part(self, run: ScriptRun, strike: Strike) -> None:
        pids = self._kill_when_there(run, strike)
        if not pids:
            self._miss(run, strike)
            return
        self.strikes.append(strike)
        self._tell("kill", f"{strike}, pid {', '.join(map(str, pids))}", strike)
        # Workers that were idle at that instant are not missed; a busy one takes its query along.
        # An executor is replaced, and its tasks are done again.
        self._await_end(run, 3.0 if strike.kind in _SURVIVED else 30.0)

    def _miss(self, run: ScriptRun, strike: Strike) -> None:
        self.missed.append(strike)
        other = None if strike.kind is self._instead else self._instead
        what = f"no such process, {other} instead" if other else "no such process"
        self._tell("missed", f"{strike}: {what}", strike)
        if other is not None:
            self._kill_part(run, replace(strike, kind=other))

    def _kill_when_there(self, run: ScriptRun, strike: Strike) -> list[int]:
        """While a run starts, its parts come one after the other: waits a while for this one."""
        wait_s = _STARTING_S if strike.while_starting else self._part_timeout_s
        deadline = time.monotonic() + wait_s
        while not (pids := _kill_now(run, strike)) and run.running:
            if time.monotonic() > deadline:
                break
            self._pause()
        return pids

    def _disturb(self, strike: Strike) -> None:
        name, link, rules = network_fault(strike, self.links)
        link.set(rules)
        self.strikes.append(strike)
        self._tell("kill", f"{strike}: {name}, for {strike.hold_s:.1f} s", strike)
        self._hold(strike, link.set)

    def _kill_server(self, strike: Strike) -> None:
        server = strike.draw().choice(self.servers[strike.kind])
        server.kill()
        self.strikes.append(strike)
        self._tell("kill", f"{strike}, down for {strike.hold_s:.1f} s", strike)
        self._hold(strike, server.restart)

    def _fill_up(self, strike: Strike) -> None:
        server = strike.draw().choice(self._fillable)
        server.fill()
        self.strikes.append(strike)
        self._tell("kill", f"{strike}: {server.name}, for {strike.hold_s:.1f} s", strike)
        self._hold(strike, server.free)

    def _hold(self, strike: Strike, give_back: Callable[[], None]) -> None:
        """Also when the run fails for good meanwhile: its sink is to be read, and others use it."""
        try:
            self._sleep_until(time.monotonic() + strike.hold_s, restart=True)
        finally:
            give_back()

    def _set_clock(self, strike: Strike) -> None:
        assert self.clock is not None
        ahead = clock_jump(strike)
        self.clock.set(ahead)
        self.strikes.append(strike)
        self._tell("kill", f"{strike}: {ahead / 3600:+.1f} hours off", strike)

    def _take_over(self, old: ScriptRun, strike: Strike) -> None:
        old.stop_all()
        self.strikes.append(strike)
        self._tell("kill", f"{strike}, all processes stopped", strike)
        self.start()
        try:
            # A stopped run still holds the buffer's lock and port, so that the new one gets on
            # only as far as lines were durable; there may be none.
            self._await_progress(45.0, required=False)
            self._sleep_until(time.monotonic() + strike.hold_s, restart=True)
        finally:
            old.continue_all()
        # The old run finds out at its next write; where it has nothing to write it may live on.
        self._await_end(old, 60.0)
        if old.running:
            old.kill_all()
        self.fenced.append(old.log)
        self._tell("fenced", f"the run that was stopped ended with {old.exit_code}", strike)

    def _await_end(self, run: ScriptRun, timeout: float) -> None:
        """Waits for the run to be gone, then starts the next one if it was the current one.

        A script may survive: an idle worker was killed, or it restarts its query by itself.
        """
        deadline = time.monotonic() + timeout
        while run.running and time.monotonic() < deadline:
            self._pause()
        if run.running:
            return
        run.kill_all()  # a JVM outlives its Python for a second or two
        if run is self.run:
            self.start()

    def _restart_if_ended(self) -> None:
        self._restart_daemons()
        run = self.run
        if run is None or run.running:
            return
        self._ended_log = run.log_path
        self._note_end(run.log_path.name, run.exit_code)
        run.kill_all()
        self.start()

    def _restart_daemons(self) -> None:
        for kind in DAEMON_KILLS:
            for server in self.servers.get(kind, ()):
                if server.ended:
                    self._note_end(server.name, server.exit_code, server.log)
                    server.restart()

    def _note_end(self, name: str, exit_code: int | None, log: str | None = None) -> None:
        now = or_none(self._progress)
        if now is not None and now > self._progress_at_end:
            self._ends_without_progress, self._progress_at_end = 0, now
        self._ends_without_progress += 1
        self.unexpected.append(f"{name} ended with {exit_code}")
        self._tell("end", f"{name} ended by itself with {exit_code}")
        # A script that fails before it ever got anywhere, and twice more, will not get better.
        moved = self.moved_on or self._progress_at_end
        hopeless = log is None and exit_code != 0 and not moved
        if self._ends_without_progress >= (_HOPELESS if hopeless else _ENDS):
            words = f"{name} said:\n{log}" if log is not None else self._last_words()
            raise NoProgressError(f"{self._ends_without_progress} ends without progress; {words}")

    def _pause(self, seconds: float = 0.05) -> None:
        self._tick()
        time.sleep(seconds)

    def _last_words(self) -> str:
        """Of the last run that ended by itself, since that says why; else of the newest run."""
        path = self._ended_log or (self.run.log_path if self.run is not None else None)
        text = path.read_text(errors="replace")[-4000:].strip() if path is not None else ""
        if path is None or not text:
            return f"{path.name if path else 'no run'} has written nothing"
        return f"{path.name} ends with:\n{text}"

    def _tell(self, kind: str, text: str, strike: Strike | None = None) -> None:
        self._on_event(Event(time.monotonic() - self._began, kind, text, strike))


def _kill_now(run: ScriptRun, strike: Strike) -> list[int]:
    part = strike.kind.part
    assert part is not None
    if part is not Part.EXECUTOR:
        return run.kill(part)
    # One of them: a cluster goes on with the others.
    executors = run.pids(part)
    chosen = strike.draw().choice(executors) if executors else None
    return [chosen] if chosen and send(chosen, signal.SIGKILL) else []


def or_none(ask: Callable[[], T]) -> T | None:
    """None while a server is down; that it can never work, a ConfigError, passes through."""
    try:
        return ask()
    except ConfigError:
        raise
    except Exception:  # noqa: BLE001  whatever the caller's driver raises means: not now
        return None
