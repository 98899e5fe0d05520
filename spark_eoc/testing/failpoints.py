"""Each failpoint once for each sink, on real Spark: ``python -m spark_eoc.testing.failpoints``.

For every name in :data:`spark_eoc.failpoints.FAILPOINTS` the process that reaches it is SIGKILLed
there while lines flow; the query goes on; when all is in the sink, the checker compares. A kill of
a Python worker or of the source runner makes the query fail, and the script starts it again in
its warm session; a kill of the driver makes the supervisor start the script again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FAILPOINTS
from spark_eoc.testing import matrix, tiers
from spark_eoc.testing.checker import Verdict
from spark_eoc.testing.reaper import reaper
from spark_eoc.testing.rig import MYSQL, REDIS, Rig
from spark_eoc.testing.servers import MariaDB, Redis
from spark_eoc.testing.supervisor import Event, Supervisor
from spark_eoc.testing.tiers import Tier
from spark_eoc.testing.wait import WaitTimeoutError

#: Small segments and no retention, so that rolling and trimming happen within seconds; small
#: chunks, so that a unit of Redis has more than one.
_OPTIONS = {"segmentBytes": "4096", "retention": "1ms", "maxRowsPerTrigger": "2000"}
_WRITERS = {REDIS: {"chunk_rows": 20}}
#: What is reached in one atomicity alone.
_ONLY = {
    "partition": (
        "batch.before_close", "batch.after_close", "mysql.before_rows", "mysql.after_rows",
        "mysql.after_unit", "mysql.before_commit", "mysql.after_commit", "redis.before_chunk",
        "redis.after_chunk", "redis.after_unit",
    ),
    "batch": (
        "batch.before_publish", "batch.after_publish", "mysql.before_stage", "mysql.after_stage",
        "mysql.publish_after_rows", "mysql.publish_before_commit", "mysql.publish_after_commit",
        "redis.before_stage", "redis.after_stage",
    ),
}  # fmt: skip
_FIRE_TIMEOUT_S = 180.0
_SETTLE_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Result:
    """What happened at one failpoint: did a process die there, and was it exactly once after."""

    sink: str
    name: str
    fired: bool
    verdict: Verdict | None
    seconds: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """It fired, and the checker found nothing."""
        return self.fired and not self.problem and self.verdict is not None and self.verdict.clean

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "sink": self.sink,
            "failpoint": self.name,
            "passed": self.passed,
            "fired": self.fired,
            "seconds": round(self.seconds, 1),
            "problem": self.problem,
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }

    def __str__(self) -> str:
        state = "exactly once" if self.passed else "FAILED" if self.fired else "NOT REACHED"
        sizes = "" if self.verdict is None else f"{self.verdict.sizes['in_sink']:6} rows"
        text = f"{self.sink:6} {self.name:28} {state:13} {self.seconds:5.1f} s {sizes}"
        return text if self.passed else f"{text}\n    {self.problem or self.verdict}"


def names_for(sink: str, atomicity: str = "partition") -> list[str]:
    """The failpoints that a run into this sink reaches; those of the driver last.

    A kill of the driver costs a new JVM; what comes before it shares one.
    """
    other = {MYSQL: "redis.", REDIS: "mysql."}[sink]
    unreached = _ONLY["batch" if atomicity == "partition" else "partition"]
    names = [name for name in FAILPOINTS if not name.startswith(other) and name not in unreached]
    return sorted(names, key=lambda name: name.startswith(("batch.", "mysql.publish")))


class Campaign:
    """One sink's way through its failpoints, in one folder, on one checkpoint."""

    def __init__(
        self,
        folder: Path,
        *,
        mariadb: MariaDB | None = None,
        redis: Redis | None = None,
        atomicity: str = "partition",
        tell: Callable[[str], None] = print,
    ) -> None:
        """With exactly one server, whose sink it is."""
        self._atomicity = atomicity
        folder.mkdir(parents=True, exist_ok=True)
        self._armed = folder / "armed"
        self._fired = folder / "fired"
        self._fired.mkdir()
        self._tell = tell
        self._rig = Rig(
            folder / "rig",
            mariadb=mariadb,
            redis=redis,
            on_failure="restart",
            options=_OPTIONS,
            writers={
                sink: {"atomicity": atomicity, **_WRITERS.get(sink, {})} for sink in (MYSQL, REDIS)
            },
            per_second=100,  # the batch after a restart holds what piled up meanwhile
        )
        (self.sink,) = self._rig.targets

    def run(self, names: Sequence[str] | None = None) -> list[Result]:
        """Every failpoint in turn; never raises for what one of them brings to light."""
        environment = {ENVIRONMENT: f"@{self._armed}", DIRECTORY: str(self._fired)}
        results = []
        with (
            self._rig as rig,
            rig.supervise(env=environment, on_event=self._event) as supervisor,
        ):
            supervisor.until(lambda: rig.progress() > 0, timeout=240, what="the first batch")
            for name in names or names_for(self.sink, self._atomicity):
                with tiers.case(Tier.FAILPOINTS):
                    results.append(self._one(supervisor, name))
                self._tell(str(results[-1]))
        return results

    def _one(self, supervisor: Supervisor, name: str) -> Result:
        began = time.monotonic()
        fired = self._fired / f"{name}.fired"
        try:
            self._rig.feed()
            self._armed.write_text(f"{name}=kill")
            supervisor.until(fired.exists, timeout=_FIRE_TIMEOUT_S, what=f"{name} reached")
            verdict = self._rig.settle(supervisor, _SETTLE_TIMEOUT_S)[self.sink]
        except (AssertionError, OSError) as error:
            problem = str(error)
            took = time.monotonic() - began
            return Result(self.sink, name, fired.exists(), self._last_verdict(), took, problem)
        finally:
            self._armed.write_text("")
        return Result(self.sink, name, True, verdict, time.monotonic() - began)

    def _last_verdict(self) -> Verdict | None:
        try:
            return self._rig.verdict(self.sink)
        except (OSError, WaitTimeoutError):
            return None

    def _event(self, event: Event) -> None:
        if event.kind == "end":
            self._tell(f"{self.sink:6} at {event.at:5.1f} s {event.text}")


def run_all(
    folder: Path,
    names: Sequence[str] | None = None,
    sinks: Sequence[str] = (MYSQL, REDIS),
    tell: Callable[[str], None] = print,
    atomicity: str = "partition",
) -> list[Result]:
    """All failpoints for the given sinks, each sink with a server of its own, side by side."""

    def one(sink: str) -> list[Result]:
        ordered = [n for n in names_for(sink, atomicity) if not names or n in names]
        how: dict[str, Any] = {"atomicity": atomicity, "tell": tell}
        if sink == MYSQL:
            with MariaDB.start() as mariadb:
                return Campaign(folder / sink, mariadb=mariadb, **how).run(ordered)
        with Redis.start() as redis:
            return Campaign(folder / sink, redis=redis, **how).run(ordered)

    with ThreadPoolExecutor(len(sinks)) as pool:
        return [result for results in pool.map(one, sinks) for result in results]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if any failpoint was not reached or did not end in exactly once."""
    parser = argparse.ArgumentParser(prog="python -m spark_eoc.testing.failpoints")
    parser.add_argument("names", nargs="*", help="only these failpoints")
    parser.add_argument("--sink", choices=(MYSQL, REDIS), action="append", help="only this sink")
    parser.add_argument("--atomicity", choices=("partition", "batch"), default="partition")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", metavar="FOLDER", help="leave logs and buffers there")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(FAILPOINTS)
    if unknown:
        parser.error(f"no failpoint {', '.join(sorted(unknown))}")
    out = sys.stderr if options.json else sys.stdout

    def tell(text: str) -> None:
        print(text, file=out, flush=True)

    deaths = [] if options.names else matrix.run_all(tell, options.sink or (MYSQL, REDIS))
    with tempfile.TemporaryDirectory(prefix="eoc-failpoints-") as temporary:
        reaper().folder(temporary)
        results = run_all(
            Path(options.keep or temporary),
            options.names or None,
            options.sink or (MYSQL, REDIS),
            tell,
            options.atomicity,
        )
    failed = sum(not result.passed for result in results)
    wrong = sum(not death.once for death in deaths)
    if options.json:
        found = {"failed": failed + wrong, "results": [r.to_json() for r in results]}
        print(json.dumps({**found, "modes": [death.to_json() for death in deaths]}))  # noqa: T201
    else:
        print(f"{len(deaths)} deaths in every mode, {wrong} not exactly once")  # noqa: T201
        print(f"{len(results)} kills on Spark, {failed} not exactly once")  # noqa: T201
        print("\n".join(tiers.lines()))  # noqa: T201
    return 1 if failed + wrong else 0


if __name__ == "__main__":
    sys.exit(main())
