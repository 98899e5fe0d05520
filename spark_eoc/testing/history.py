"""What happened in a run under kills: the harness's events, and each batch of each query.

A batch is seen where Spark itself keeps it, in the checkpoint's ``offsets/`` and ``commits/``. The
harness looks while the run works, since Spark purges old entries, and after a kill the same batch
appears a second time only in what the next run does.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from spark_eoc.testing.supervisor import Event

_LOOK_EVERY_S = 0.2


@dataclass
class BatchLife:
    """One batch of a query, in seconds since the history began.

    ``offsets`` is what the sources offered, as Spark wrote it, one line a source. ``again`` lists
    the starts of runs that found it without a commit, and so ran it a second time.
    """

    batch_id: int
    planned: float
    offsets: tuple[str, ...] = ()
    committed: float | None = None
    again: list[float] = field(default_factory=list)
    other_offsets: tuple[str, ...] | None = None

    @property
    def repeated(self) -> bool:
        """Whether more than one run worked on it."""
        return bool(self.again)


@dataclass(frozen=True)
class RunLife:
    """One run of the script: [``began``, ``ended``), and how it ended."""

    number: int
    began: float
    ended: float | None
    end: str


class CheckpointWatch:
    """Follows one checkpoint on a local disk; it may not exist yet."""

    def __init__(self, path: str | os.PathLike[str], began: float) -> None:
        self.path = Path(path)
        self.batches: dict[int, BatchLife] = {}
        self._began = began

    def look(self) -> None:
        """Takes in what is new; cheap when nothing is."""
        for batch_id, file in _numbered(self.path / "offsets"):
            life = self.batches.get(batch_id)
            if life is None or life.committed is None:
                self._offered(batch_id, file)
        for batch_id, file in _numbered(self.path / "commits"):
            life = self.batches.get(batch_id)
            if life is not None and life.committed is None:
                life.committed = self._since(file)

    def run_began(self, at: float) -> None:
        """A run starts: what has offsets and no commit, it does again."""
        self.look()
        for life in self.batches.values():
            if life.committed is None:
                life.again.append(at)

    @property
    def idle(self) -> bool:
        """Whether the newest batch that was planned is committed, and there is one."""
        planned = [batch_id for batch_id, _ in _numbered(self.path / "offsets")]
        committed = [batch_id for batch_id, _ in _numbered(self.path / "commits")]
        return bool(planned) and bool(committed) and max(planned) == max(committed)

    @property
    def under_way(self) -> bool:
        """Whether the newest batch that was planned is not committed."""
        planned = [batch_id for batch_id, _ in _numbered(self.path / "offsets")]
        return bool(planned) and not (self.path / "commits" / str(max(planned))).exists()

    def _offered(self, batch_id: int, file: Path) -> None:
        try:
            # "v1", metadata, and one line a source.
            offsets = tuple(file.read_text(errors="replace").splitlines()[2:])
        except OSError:
            return
        life = self.batches.get(batch_id)
        if life is None:
            self.batches[batch_id] = BatchLife(batch_id, self._since(file), offsets)
        elif offsets and not life.offsets:
            life.offsets = offsets
        elif offsets and offsets != life.offsets:
            life.other_offsets = offsets

    def _since(self, file: Path) -> float:
        try:
            return max(0.0, file.stat().st_mtime - self._began)
        except OSError:
            return max(0.0, time.time() - self._began)


class History:
    """Events and batches of one run under kills.

    ``checkpoints`` names each query's checkpoint. Give :meth:`note` to a supervisor as
    ``on_event`` and :meth:`look` as ``tick``.
    """

    def __init__(
        self,
        checkpoints: Mapping[str, str | os.PathLike[str]] | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.began = clock()
        self.events: list[Event] = []
        self.watches = {
            name: CheckpointWatch(path, self.began) for name, path in (checkpoints or {}).items()
        }
        self.ended: float | None = None
        self._clock = clock
        self._looked = 0.0

    def note(self, event: Event) -> None:
        """Takes in what a supervisor did or saw."""
        event = Event(self.now(), event.kind, event.text, event.strike)
        self.events.append(event)
        if event.kind == "start":
            for watch in self.watches.values():
                watch.run_began(event.at)

    def look(self) -> None:
        """Looks at the checkpoints, five times a second at most."""
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            for watch in self.watches.values():
                watch.look()

    def close(self) -> None:
        """The last look; afterwards the history is complete."""
        for watch in self.watches.values():
            watch.look()
        self.ended = self.now()

    def now(self) -> float:
        """Seconds since the history began."""
        return self._clock() - self.began

    @property
    def seconds(self) -> float:
        """How long it took, or takes so far."""
        return self.now() if self.ended is None else self.ended

    @property
    def runs(self) -> list[RunLife]:
        """Every run of the script, in the order in which they were started."""
        found: list[RunLife] = []
        end: tuple[float, str] | None = None
        for event in self.events:
            if event.kind == "start":
                _ended(found, end or (event.at, "replaced"))
                found.append(RunLife(len(found) + 1, event.at, None, "running"))
                end = None
            elif _ends_a_run(event):
                end = (event.at, str(event.strike.kind) if event.strike else "by itself")
        if self.ended is not None:
            _ended(found, (self.ended, "the end"))
        return found

    @property
    def under_way(self) -> bool:
        """Whether some query works on a batch now."""
        return any(watch.under_way for watch in self.watches.values())

    @property
    def usual_batch_s(self) -> float:
        """The median time from plan to commit of the batches that ran once; 0.3 without any."""
        lives = [life for watch in self.watches.values() for life in watch.batches.values()]
        times = [
            life.committed - life.planned
            for life in lives
            if life.committed is not None and not life.repeated
        ]
        return statistics.median(times) if times else 0.3

    @property
    def idle(self) -> bool:
        """Whether no query has a batch under way, as far as checkpoints are known."""
        return all(watch.idle for watch in self.watches.values())

    def to_json(self) -> dict[str, object]:
        """Plain values: events, runs, and batches by query."""
        return {
            "seconds": round(self.seconds, 3),
            "events": [
                {"at": round(event.at, 3), "kind": event.kind, "text": event.text}
                for event in self.events
            ],
            "runs": [asdict(run) for run in self.runs],
            "batches": {
                name: [asdict(life) for life in watch.batches.values()]
                for name, watch in self.watches.items()
            },
        }


def _ends_a_run(event: Event) -> bool:
    if event.kind == "kill":
        return event.strike is not None and event.strike.kind.ends_run
    return event.kind == "end"


def _ended(runs: list[RunLife], end: tuple[float, str]) -> None:
    """The newest run ends there, if there is one."""
    if runs:
        runs[-1] = replace(runs[-1], ended=end[0], end=end[1])


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Files named by a batch id, in order; a folder that isn't there has none."""
    try:
        names = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
    return [(number, folder / str(number)) for number in sorted(map(int, names))]
