"""The report as one HTML page that needs nothing else: no script, no font, no picture to fetch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from html import escape

from spark_eoc.testing.checker import CHECKS, Anomaly
from spark_eoc.testing.history import BatchLife, RunLife
from spark_eoc.testing.page_style import STYLE
from spark_eoc.testing.report import REPRODUCES, ChaosReport
from spark_eoc.testing.supervisor import Event

#: Marks on the time axis, about; and the steps in seconds that they may have.
_MARKS = 6
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
#: More bars than this in one lane can't be told apart; the newest are listed below it all the same.
_BARS = 400


def page(report: ChaosReport) -> str:
    """The whole document."""
    title = "Exactly once" if report.exactly_once else "Not exactly once"
    if report.verdict.clean and report.stuck is not None:
        title = "Could not go on"
    parts = [
        _head(report, title),
        _figures(report),
        _findings(report),
        _timeline(report),
        _kills(report),
        _batches(report),
        _again(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}, seed {report.seed}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n{''.join(parts)}</main>\n</body>\n</html>\n"
    )


def _head(report: ChaosReport, title: str) -> str:
    kind = "good" if report.exactly_once else "bad"
    kills = ", ".join(f"{n} {name}" for name, n in report.kills.items()) or "nothing was killed"
    missed = f" {report.misses}." if report.misses else ""
    return (
        f'<header class="{kind}"><h1>{title}</h1>'
        f"<p>{len(report.strikes)} kills in {report.history.seconds:.0f} seconds: "
        f"{escape(kills)}.{escape(missed)}</p></header>\n"
    )


def _figures(report: ChaosReport) -> str:
    verdict = report.verdict
    figures = [
        ("sent", verdict.sizes["announced"], ""),
        ("acknowledged", verdict.sizes["acknowledged"], ""),
        ("in the sink", verdict.sizes["in_sink"], ""),
        ("lost", verdict.count("lost"), "bad" if verdict.count("lost") else "good"),
        ("twice", verdict.count("twice"), "bad" if verdict.count("twice") else "good"),
        ("batches run again", sum(map(len, report.repeated.values())), ""),
    ]
    cells = "".join(
        f'<div class="{kind}"><b>{number:,}</b><span>{name}</span></div>'
        for name, number, kind in figures
    )
    return f'<section class="figures">{cells}</section>\n'


def _findings(report: ChaosReport) -> str:
    found = "".join(_finding(anomaly) for anomaly in report.verdict.anomalies)
    if report.stuck is not None:
        found += (
            '<article class="bad"><h3>stuck</h3><p>The script could not go on.</p>'
            f"<pre>{escape(report.stuck)}</pre></article>"
        )
    found += "".join(f"<article><p>{escape(note)}</p></article>" for note in report.notes)
    if not found:
        return ""
    return f"<section><h2>What was found</h2>{found}</section>\n"


def _finding(anomaly: Anomaly) -> str:
    more = anomaly.count - len(anomaly.evidence)
    items = "".join(f"<li><code>{escape(text)}</code></li>" for text in anomaly.evidence)
    if more > 0:
        items += f"<li>and {more:,} more</li>"
    return (
        f'<article class="bad"><h3>{escape(anomaly.check)} <b>{anomaly.count:,}</b></h3>'
        f"<p>{escape(CHECKS[anomaly.check])}</p><ul>{items}</ul></article>"
    )


# --- the timeline -----------------------------------------------------------------------------


def _timeline(report: ChaosReport) -> str:
    whole = max(report.history.seconds, 0.001)
    lanes = [_lane("runs", (_run(run, whole) for run in report.history.runs))]
    for name, watch in report.history.watches.items():
        newest = list(watch.batches.values())[-_BARS:]
        lanes.append(_lane(name, (_bar(life, whole) for life in newest)))
    lanes.append(_lane("kills", (_kill(event, whole) for event in _struck(report)), "points"))
    return (
        "<section><h2>Timeline</h2>"
        f'<p class="key">{_key()}</p>'
        f'<div class="chart">{_axis(whole)}{"".join(lanes)}</div></section>\n'
    )


def _key() -> str:
    kinds = {
        "run": "a run of the script",
        "batch": "a batch, planned to committed",
        "again": "run again, from each mark on",
        "open": "never committed",
        "kill": "a kill",
    }
    return " ".join(f'<span><i class="{kind}"></i>{text}</span>' for kind, text in kinds.items())


def _lane(name: str, marks: Iterable[str], kind: str = "") -> str:
    return f'<div class="lane {kind}"><span>{escape(name)}</span><div>{"".join(marks)}</div></div>'


def _axis(whole: float) -> str:
    step = next((step for step in _STEPS if whole / step <= _MARKS), _STEPS[-1])
    marks = "".join(
        f'<i style="left:{_percent(at, whole)}"><b>{_seconds(at)}</b></i>'
        for at in range(0, int(whole) + 1, step)
    )
    return f'<div class="lane axis"><span></span><div>{marks}</div></div>'


def _run(run: RunLife, whole: float) -> str:
    ended = whole if run.ended is None else run.ended
    title = f"run {run.number}: {run.began:.1f} to {ended:.1f} s, ended by {run.end}"
    return _span("run", run.began, ended, whole, title)


def _bar(life: BatchLife, whole: float) -> str:
    ended = whole if life.committed is None else life.committed
    kind = "open" if life.committed is None else "again" if life.repeated else "batch"
    title = f"batch {life.batch_id}: planned {life.planned:.1f} s, " + (
        "never committed" if life.committed is None else f"committed {life.committed:.1f} s"
    )
    if life.repeated:
        title += f", run again at {', '.join(f'{at:.1f}' for at in life.again)} s"
    marks = "".join(f'<i class="mark" style="left:{_percent(at, whole)}"></i>' for at in life.again)
    return _span(kind, life.planned, ended, whole, title) + marks


def _kill(event: Event, whole: float) -> str:
    return (
        f'<i class="kill" style="left:{_percent(event.at, whole)}" '
        f'title="{escape(f"{event.at:.1f} s: {event.text}")}"></i>'
    )


def _span(kind: str, began: float, ended: float, whole: float, title: str) -> str:
    width = max(min(ended, whole) - began, 0.0) / whole * 100
    return (
        f'<i class="{kind}" style="left:{_percent(began, whole)};width:{width:.3f}%" '
        f'title="{escape(title)}"></i>'
    )


def _percent(at: float, whole: float) -> str:
    return f"{min(at, whole) / whole * 100:.3f}%"


def _seconds(at: int) -> str:
    return f"{at} s" if at < 120 else f"{at // 60}:{at % 60:02} min"


# --- tables -----------------------------------------------------------------------------------


def _struck(report: ChaosReport) -> Iterator[Event]:
    return (event for event in report.history.events if event.kind == "kill")


def _kills(report: ChaosReport) -> str:
    rows = "".join(
        f"<tr><td>{event.at:.1f}</td><td>{escape(event.kind)}</td>"
        f"<td>{escape(event.text)}</td></tr>"
        for event in report.history.events
        if event.kind != "progress"
    )
    return (
        "<section><details><summary>Everything that the harness did and saw</summary>"
        f'<div class="wide"><table><tr><th>second</th><th>event</th><th></th></tr>{rows}</table>'
        "</div></details></section>\n"
    )


def _batches(report: ChaosReport) -> str:
    return "".join(
        "<section><details><summary>"
        f"{escape(name)}: {len(watch.batches)} batches</summary>"
        '<div class="wide"><table><tr><th>batch</th><th>planned</th><th>committed</th>'
        f"<th>run again</th><th>offsets</th></tr>{''.join(map(_batch, watch.batches.values()))}"
        "</table></div></details></section>\n"
        for name, watch in report.history.watches.items()
    )


def _batch(life: BatchLife) -> str:
    offsets = "<br>".join(f"<code>{escape(text[:200])}</code>" for text in life.offsets)
    if life.other_offsets is not None:
        other = "<br>".join(f"<code>{escape(text[:200])}</code>" for text in life.other_offsets)
        offsets += f'<br><b class="bad">later:</b> {other}'
    committed = "never" if life.committed is None else f"{life.committed:.1f}"
    return (
        f"<tr><td>{life.batch_id}</td><td>{life.planned:.1f}</td><td>{committed}</td>"
        f"<td>{', '.join(f'{at:.1f}' for at in life.again)}</td><td>{offsets}</td></tr>"
    )


def _again(report: ChaosReport) -> str:
    return (
        "<section><h2>Again</h2>"
        f"<p>Seed <code>{report.seed}</code>. {escape(REPRODUCES)}.</p>"
        f"<pre>{escape(shlex.join(map(_masked, report.command)))}</pre></section>\n"
    )


def _masked(word: str) -> str:
    """Without the password of a URL; what else is secret in it nobody can know."""
    return re.sub(r"(://[^:@/\s]*:)\S+@", r"\1***@", word)
