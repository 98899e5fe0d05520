"""A schedule of kills from one seed: the same seed gives the same kinds and instants.

    schedule = KillSchedule(seed, count=10, kinds=[Kill.JVM, Kill.MARIADB])
    for strike in schedule:
        ...                      # wait until the run has made progress for strike.after_s seconds

:class:`spark_eoc.testing.supervisor.Supervisor` carries a schedule out.
"""

from __future__ import annotations

import difflib
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_eoc.errors import ConfigError
from spark_eoc.testing.processes import Part


class Kill(str, Enum):
    """What is done to a running query."""

    DRIVER_PYTHON = "driver_python"
    JVM = "jvm"
    SOURCE_RUNNER = "source_runner"
    PYTHON_WORKER = "python_worker"
    MARIADB = "mariadb"
    REDIS = "redis"
    TAKEOVER = "takeover"
    EXECUTOR = "executor"
    NETWORK = "network"
    SPARK_WORKER = "spark_worker"
    RECEIVER = "receiver"
    PRODUCER = "producer"
    FULL = "full"
    CLOCK = "clock"

    def __str__(self) -> str:
        return self.value

    @property
    def part(self) -> Part | None:
        """The part of the script that is SIGKILLed; None for the other kinds."""
        return Part(self.value) if self.value in _PARTS else None

    @property
    def ends_run(self) -> bool:
        """Whether the script itself is hit."""
        return self.part is not None or self is Kill.TAKEOVER

    @property
    def is_server(self) -> bool:
        """Whether a server is SIGKILLed, held down for ``hold_s``, and restarted."""
        return self in (Kill.MARIADB, Kill.REDIS, Kill.SPARK_WORKER) or self.is_daemon

    @property
    def is_daemon(self) -> bool:
        """Whether it is a process of the pipeline itself: started again whenever it has ended."""
        return self in DAEMON_KILLS

    @classmethod
    def named(cls, name: str) -> Kill:
        """The kind of that name; ConfigError with the nearest one, and all."""
        try:
            return cls(name)
        except ValueError:
            near = difflib.get_close_matches(name, [kind.value for kind in cls], n=1)
            raise ConfigError(
                f"{name!r} is no kind of kill{f', did you mean {near[0]!r}?' if near else ''}",
                applied="nothing was started",
                next_step=f"use some of {', '.join(cls)}",
            ) from None


_PARTS = frozenset(part.value for part in Part)

#: Of what feeds the query where they are processes of their own: ``spark-eoc receive``, and the
#: producer that sends to it.
DAEMON_KILLS: tuple[Kill, ...] = (Kill.RECEIVER, Kill.PRODUCER)

#: SIGKILLs of the script's own processes that every script has.
PROCESS_KILLS: tuple[Kill, ...] = (
    Kill.DRIVER_PYTHON,
    Kill.JVM,
    Kill.SOURCE_RUNNER,
    Kill.PYTHON_WORKER,
)
#: What a schedule draws from unless it is told otherwise. EXECUTOR and SPARK_WORKER need a
#: cluster, NETWORK a proxy in each connection, RECEIVER and PRODUCER daemons, FULL a server that
#: can be filled up, CLOCK a clock to be set.
USUAL_KILLS: tuple[Kill, ...] = (*PROCESS_KILLS, Kill.MARIADB, Kill.REDIS, Kill.TAKEOVER)


@dataclass(frozen=True)
class Strike:
    """One kill of a schedule.

    It falls ``after_s`` seconds after the run started (``while_starting``) or after the run made
    its first progress. A server stays down or full, and a run that is taken over stays stopped, for
    at least ``hold_s`` seconds.
    """

    number: int
    kind: Kill
    after_s: float
    while_starting: bool
    hold_s: float

    def draw(self) -> random.Random:
        """A generator of this strike's own, for what else has to be chosen."""
        return random.Random(f"{self.number} {self.after_s} {self.hold_s}")

    def __str__(self) -> str:
        since = "its start" if self.while_starting else "its first progress"
        return f"kill {self.number}: {self.kind} {self.after_s:.2f} s after {since}"


@dataclass(frozen=True)
class Instants:
    """From where the instants of a schedule are drawn, all uniform and in seconds.

    [0, ``spread_s``) after progress; a share ``starting`` of the process kills falls into the
    run's start instead, [0, ``start_spread_s``), where recovery itself is hit.
    """

    spread_s: float = 3.0
    starting: float = 0.1
    start_spread_s: float = 8.0
    hold_s: tuple[float, float] = (0.2, 2.0)


class KillSchedule(Sequence[Strike]):
    """``count`` strikes of the given kinds, in random order, reproducible from ``seed``.

    Every kind comes at least once where ``count`` allows it; else the seed says which. Without
    a seed a new one is drawn: print ``.seed``.
    """

    def __init__(
        self,
        seed: int | None = None,
        *,
        count: int,
        kinds: Sequence[Kill] = USUAL_KILLS,
        instants: Instants | None = None,
    ) -> None:
        if count < 0 or not kinds:
            raise ValueError("a schedule needs a count of 0 or more, and at least one kind")
        self.seed = secrets.randbelow(2**32) if seed is None else seed
        random_ = random.Random(self.seed)
        chosen = list(kinds) if count >= len(kinds) else random_.sample(list(kinds), count)
        chosen += random_.choices(list(kinds), k=count - len(chosen))
        random_.shuffle(chosen)
        self._strikes = tuple(
            _strike(number, kind, random_, instants or Instants())
            for number, kind in enumerate(chosen, 1)
        )

    def __len__(self) -> int:
        return len(self._strikes)

    def __getitem__(self, index: int | slice) -> Strike | Sequence[Strike]:  # type: ignore[override]
        return self._strikes[index]

    def __iter__(self) -> Iterator[Strike]:
        return iter(self._strikes)

    def __repr__(self) -> str:
        return f"KillSchedule(seed={self.seed}, count={len(self)})"


def _strike(number: int, kind: Kill, random_: random.Random, instants: Instants) -> Strike:
    # Every draw is made for every kind, so that one strike does not shift the next one's.
    while_starting = random_.random() < instants.starting and kind.part is not None
    fraction, hold = random_.random(), random_.uniform(*instants.hold_s)
    after = fraction * (instants.start_spread_s if while_starting else instants.spread_s)
    return Strike(number, kind, round(after, 3), while_starting, round(hold, 3))
