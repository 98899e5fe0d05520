"""What the demo prints: a bar and events while it runs, a table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed
from rich.table import Table

if TYPE_CHECKING:
    from spark_eoc.cli.demo_show import Report

#: "again" counts batches that Spark handed over again: skipped where they were applied already.
_COLUMNS = ("sent", "acked", "in sink", "lost", "twice", "again", "refused", "kills")
_COLORS = {"mysql": "cyan", "redis": "magenta"}


class View:
    """Events and bars on stderr; the table on stdout, unless stdout is for JSON."""

    def __init__(self, seed: int, ledger: bool, *, table: bool) -> None:
        self._errors = Console(stderr=True, highlight=False)
        self._output = Console(highlight=False) if table else self._errors
        self._begun = time.monotonic()
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rows, {task.fields[sent]:,} sent"),
            Elapsed(),
            console=self._errors,
            transient=True,
            # Where nobody watches, the events are all there is to see.
            disable=not self._errors.is_terminal,
        )
        writes = "with the ledger" if ledger else "plain foreachBatch writes, without a ledger"
        self._errors.print(f"seed {seed}, {writes} (again: spark-eoc demo --seed {seed})")

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bars away; may be called twice."""
        self._progress.stop()

    def add(self, sink: str, title: str, rows: int, kills: int) -> None:
        """A bar for the sink."""
        label = f"[{_COLORS[sink]}]{title}[/]"
        self._bars[sink] = self._progress.add_task(label, total=rows, sent=0)
        self.event(sink, f"{rows:,} rows, {kills} kills to come")

    def event(self, sink: str, text: str) -> None:
        color = _COLORS.get(sink, "white")
        seconds = time.monotonic() - self._begun
        self._progress.console.print(
            f"{seconds:6.1f} s  [{color}]{sink:5}[/]  {text}", soft_wrap=True
        )

    def progress(self, sink: str, done: int, sent: int) -> None:
        self._progress.update(self._bars[sink], completed=done, sent=sent)

    def report(self, report: Report) -> None:
        """The final table, and in one line what it means."""
        table = Table(title=f"seed {report.settings.seed}, {report.seconds:.0f} s")
        table.add_column("sink")
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for name, sink in report.sinks.items():
            verdict, replays = sink.verdict, sink.replays
            table.add_row(
                name,
                *(f"{n:,}" for n in (sink.sent, sink.acknowledged, verdict.in_sink)),
                *(f"[{'red' if n else 'green'}]{n:,}[/]" for n in (verdict.lost, verdict.twice)),
                *(f"{n:,}" for n in (replays.again, sum(replays.refused.values()))),
                f"{sum(sink.kills.values()):,}",
            )
        self._output.print(table)
        for name, sink in report.sinks.items():
            self._output.print(f"{name}: {sink.starts} starts; killed: {_listed(sink.kills)}")
            if sink.replays.refused:
                self._output.print(f"{name}: refused: {_listed(sink.replays.refused)}")
        self._output.print(_conclusion(report), soft_wrap=True)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _conclusion(report: Report) -> str:
    differences = [
        f"{name}: {sink.verdict.difference}"
        for name, sink in report.sinks.items()
        if sink.verdict.difference
    ]
    if report.exact:
        return f"[green]{report.kills} kills, nothing lost, nothing twice[/], row for row."
    text = "\n".join([f"[red]{report.kills} kills, and not exact:[/]", *differences])
    if not report.settings.ledger:
        text += "\nThat is what --without-ledger is to show, and why the exit code is 1."
    return text
