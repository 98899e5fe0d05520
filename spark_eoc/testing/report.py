"""What a run under kills found, as text, as JSON, and as one HTML page."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_eoc.testing.checker import Verdict
from spark_eoc.testing.history import BatchLife, History
from spark_eoc.testing.kills import Strike

#: How far one seed goes; printed with it.
REPRODUCES = (
    "The seed reproduces the kinds of kills, their order, and their instants after the run's "
    "progress, not what the operating system schedules in between"
)


@dataclass(frozen=True)
class ChaosReport:
    """The outcome. ``stuck`` says why the script could not go on; None if it could. ``notes`` say
    what may have to do with it."""

    seed: int
    verdict: Verdict
    history: History
    strikes: tuple[Strike, ...]
    missed: tuple[Strike, ...]
    starts: int
    unexpected: tuple[str, ...]
    command: tuple[str, ...]
    folder: str
    stuck: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def exactly_once(self) -> bool:
        """Nothing lost, nothing twice, nothing invented, and the script went on to the end."""
        return self.verdict.clean and self.stuck is None

    @property
    def kills(self) -> Mapping[str, int]:
        """How often each kind was carried out."""
        return dict(sorted(Counter(str(strike.kind) for strike in self.strikes).items()))

    @property
    def misses(self) -> str | None:
        """A sentence on those that found nothing to kill; None where each found something."""
        if not self.missed:
            return None
        counts = sorted(Counter(str(strike.kind) for strike in self.missed).items())
        kinds = ", ".join(f"{n} {name}" for name, n in counts)
        return f"{len(self.missed)} kills found no such process: {kinds}"

    @property
    def repeated(self) -> Mapping[str, list[BatchLife]]:
        """By query, the batches that more than one run worked on."""
        return {
            name: [life for life in watch.batches.values() if life.repeated]
            for name, watch in self.history.watches.items()
        }

    @property
    def summary(self) -> str:
        """One line."""
        sizes = self.verdict.sizes
        found = "exactly once" if self.exactly_once else "NOT exactly once"
        if self.verdict.clean and self.stuck is not None:
            found = "could not go on"
        return (
            f"{found}: {sizes['announced']:,} lines sent, {sizes['acknowledged']:,} acknowledged, "
            f"{sizes['in_sink']:,} rows in the sink, {len(self.strikes)} kills, "
            f"{self.starts} starts, {self.history.seconds:.0f} s"
        )

    def require_exactly_once(self) -> None:
        """Raises AssertionError with everything that was found."""
        if not self.exactly_once:
            raise AssertionError(str(self))

    def to_json(self) -> dict[str, object]:
        """Plain values; the keys are part of the promise of ``spark-eoc chaos --json``."""
        return {
            "exactly_once": self.exactly_once,
            "seed": self.seed,
            "kills": self.kills,
            "missed": len(self.missed),
            "starts": self.starts,
            "stuck": self.stuck,
            "notes": list(self.notes),
            "verdict": self.verdict.to_json(),
            "history": self.history.to_json(),
        }

    def __str__(self) -> str:
        kills = ", ".join(f"{n} {name}" for name, n in self.kills.items()) or "none"
        lines = [self.summary, f"seed {self.seed}; killed: {kills}"]
        if self.misses:
            lines.append(f"  {self.misses}")
        if self.stuck is not None:
            lines.append(f"  the script could not go on: {self.stuck}")
        lines += [f"  {anomaly}" for anomaly in self.verdict.anomalies]
        for name, lives in self.repeated.items():
            if lives:
                listed = ", ".join(str(life.batch_id) for life in lives)
                lines.append(f"  {name}: Spark ran again batch {listed}")
        lines += [f"  {note}" for note in self.notes]
        lines.append(f"{REPRODUCES}.")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page for a name that ends in ``.html``, JSON for ``.json``, else text."""
        from spark_eoc.testing.page import page  # noqa: PLC0415  it draws this very class

        target = Path(path)
        if target.suffix == ".html":
            target.write_text(page(self), encoding="utf-8")
        elif target.suffix == ".json":
            target.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")
        else:
            target.write_text(f"{self}\n", encoding="utf-8")
        return target
