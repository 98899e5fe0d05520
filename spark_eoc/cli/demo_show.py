"""The demo from start to end: servers, both queries under fire, and the comparison with the CSV."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_eoc.cli.demo_data import flights
from spark_eoc.cli.demo_job import Job
from spark_eoc.cli.demo_plan import plan
from spark_eoc.cli.demo_progress import Replays
from spark_eoc.cli.demo_run import QueryUnderFire
from spark_eoc.cli.demo_sinks import SINKS, MySQLSink, RedisSink, Verdict
from spark_eoc.cli.demo_view import View
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.reaper import reaper

#: Batches between two kills, about; enough that an instant is somewhere within one.
_BATCHES_PER_WINDOW = 12


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    rows: int
    kills: int
    seed: int
    sinks: tuple[str, ...]
    ledger: bool


@dataclass(frozen=True)
class SinkReport:
    """One line of the final table."""

    title: str
    sent: int
    acknowledged: int
    verdict: Verdict
    replays: Replays
    starts: int
    kills: dict[str, int]


@dataclass(frozen=True)
class Report:
    """The outcome; ``exact`` when nothing is lost and nothing twice in any sink."""

    settings: Settings
    seconds: float
    sinks: dict[str, SinkReport] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return all(
            not (sink.verdict.lost or sink.verdict.twice or sink.verdict.difference)
            for sink in self.sinks.values()
        )

    @property
    def kills(self) -> int:
        return sum(sum(sink.kills.values()) for sink in self.sinks.values())

    def as_json(self) -> dict[str, Any]:
        """For ``--json``; the keys are part of the command's promise."""
        return {
            "seed": self.settings.seed,
            "kills": self.kills,
            "rows": self.settings.rows,
            "ledger": self.settings.ledger,
            "exact": self.exact,
            "seconds": round(self.seconds, 1),
            "sinks": {name: _sink_json(sink) for name, sink in self.sinks.items()},
        }


def _sink_json(sink: SinkReport) -> dict[str, Any]:
    return {
        "sent": sink.sent,
        "acknowledged": sink.acknowledged,
        "in_sink": sink.verdict.in_sink,
        "lost": sink.verdict.lost,
        "twice": sink.verdict.twice,
        "difference": sink.verdict.difference,
        "replays": sink.replays.again,
        "replays_accepted": sink.replays.accepted,
        "refused": sink.replays.refused,
        "starts": sink.starts,
        "kills": sink.kills,
    }


def show(settings: Settings, folder: Path, *, table: bool, keep: bool) -> Report:
    """Runs it in ``folder``, which is deleted afterwards unless ``keep``; prints as it goes."""
    folder.mkdir(parents=True, exist_ok=True)
    if not keep:
        reaper().folder(str(folder))
    log = _log_to(folder / "demo.log")
    try:
        with View(settings.seed, settings.ledger, table=table) as view:
            report = _show(settings, folder.resolve(), view)
            view.close()
            view.report(report)
            return report
    finally:
        logging.getLogger("spark_eoc").removeHandler(log)
        log.close()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
            reaper().forget(str(folder))


def _log_to(path: Path) -> logging.Handler:
    """What the producers say of lost connections is expected here, and would hide the events."""
    handler = logging.FileHandler(path, encoding="utf-8")
    logger = logging.getLogger("spark_eoc")
    logger.addHandler(handler)
    logger.propagate = False
    return handler


def _show(settings: Settings, folder: Path, view: View) -> Report:
    begun = time.monotonic()
    lines = flights(settings.rows)
    plans = plan(settings.seed, settings.sinks, settings.kills, len(lines))
    with ExitStack() as stack:
        queries = []
        for name in settings.sinks:
            view.event(name, "starting its server")
            sink = SINKS[name](folder / "servers")
            stack.callback(sink.server.close)
            job = _job(settings, sink, folder, len(lines) // (len(plans[name]) + 1))
            queries.append(QueryUnderFire(sink, job, lines, plans[name], view))
            view.add(name, sink.title, len(lines), len(plans[name]))
        _run_all(queries)
        view.event("", "comparing with the CSV")
        sinks = {query.sink.name: _sink_report(query, lines) for query in queries}
    return Report(settings, time.monotonic() - begun, sinks)


def _job(settings: Settings, sink: MySQLSink | RedisSink, folder: Path, window: int) -> Job:
    return Job(
        sink=sink.name,
        sink_url=sink.url,
        listen=f"127.0.0.1:{free_port()}",
        folder=str(folder / sink.name),
        rows_per_batch=min(5000, max(10, window // _BATCHES_PER_WINDOW)),
        ledger=settings.ledger,
    )


def _run_all(queries: list[QueryUnderFire]) -> None:
    """All queries at once; the first failure ends them all and is raised here."""
    failures: list[BaseException] = []

    def run(query: QueryUnderFire) -> None:
        try:
            query.run()
        except BaseException as error:  # noqa: BLE001  it is raised again, in the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(query,), daemon=True) for query in queries]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not failures:
            for thread in threads:
                thread.join(0.2)  # not for ever at once: Ctrl-C has to come through
    finally:
        for query in queries:
            query.stop()
        for thread in threads:
            thread.join(30)
    if failures:
        raise failures[0]


def _sink_report(query: QueryUnderFire, lines: list[str]) -> SinkReport:
    return SinkReport(
        title=query.sink.title,
        sent=query.sent,
        acknowledged=query.acknowledged,
        verdict=query.sink.verdict(lines),
        replays=Replays.read(query.job.transcript),
        starts=query.supervisor.starts,
        kills=query.kills,
    )
