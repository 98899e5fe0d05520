"""Nothing lost, nothing twice, ledger and rows agree both ways, order kept.

Pure: from transcripts, the buffer's lines, the sink's rows and the ledger to a verdict of named
anomalies with evidence. :mod:`spark_eoc.testing.evidence` reads these from real systems.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from spark_eoc.testing.transcript import Transcript

LOST = "lost"
TWICE = "twice"
INVENTED = "invented"
BUFFER_LOST = "buffer_lost"
BUFFER_TWICE = "buffer_twice"
BUFFER_INVENTED = "buffer_invented"
TORN_UNIT = "torn_unit"
LEDGER_WITHOUT_ROWS = "ledger_without_rows"
ROWS_WITHOUT_LEDGER = "rows_without_ledger"
ORDER_BROKEN = "order_broken"

#: Every check by name, with what an anomaly of it means.
CHECKS: dict[str, str] = {
    LOST: "a line that was acknowledged, or is in the buffer, is not in the sink",
    TWICE: "a line is in the sink more often than it was sent, or was durable",
    INVENTED: "a line is in the sink that nobody sent",
    BUFFER_LOST: "an acknowledged line is not in the buffer",
    BUFFER_TWICE: "a line is in the buffer more often than it was sent",
    BUFFER_INVENTED: "a line is in the buffer that nobody sent",
    TORN_UNIT: "some rows of a unit that the ledger shows are missing, others are there",
    LEDGER_WITHOUT_ROWS: "the ledger shows a unit or batch of which no row is there",
    ROWS_WITHOUT_LEDGER: "rows are in the sink of which the ledger does not know",
    ORDER_BROKEN: "lines of one producer or partition are in another order than they were sent",
}

_SHOWN = 5


@dataclass(frozen=True)
class Line:
    """A line of the buffer: its offset and its bytes as stored."""

    offset: int
    value: bytes


@dataclass(frozen=True)
class Row:
    """A row of the sink. What it is not tagged with is None.

    ``position`` is where it stands in the order of writing (an AUTO_INCREMENT column, the index
    in a Redis list); only rows of one (batch, partition) are compared by it.
    """

    value: bytes
    batch_id: int | None = None
    partition: int | None = None
    offset: int | None = None
    position: int | None = None


@dataclass(frozen=True)
class UnitState:
    """A unit entry: the newest batch of a partition, and how many rows of it are applied."""

    partition: int
    batch_id: int
    rows: int


@dataclass(frozen=True)
class LedgerState:
    """One writer's ledger: ``completed`` maps remembered batches to their rows."""

    last_complete: int
    completed: Mapping[int, int]
    units: Sequence[UnitState] = ()
    open_batch: int | None = None


@dataclass(frozen=True)
class Anomaly:
    """What one check found: how many rows, lines or units, and the first of them in words."""

    check: str
    count: int
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        more = "" if self.count <= len(self.evidence) else ", ..."
        return (
            f"{self.check}: {self.count} ({CHECKS[self.check]}): {'; '.join(self.evidence)}{more}"
        )


@dataclass(frozen=True)
class Verdict:
    """All anomalies, and the sizes of what was compared (all of them multisets)."""

    anomalies: tuple[Anomaly, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """No check found anything."""
        return not self.anomalies

    @property
    def checks(self) -> set[str]:
        """Names of the checks that found something."""
        return {anomaly.check for anomaly in self.anomalies}

    def count(self, check: str) -> int:
        """How much the named check found."""
        return sum(anomaly.count for anomaly in self.anomalies if anomaly.check == check)

    def to_json(self) -> dict[str, object]:
        """Plain values, for ``--json``."""
        return {"clean": self.clean, **self.sizes, "anomalies": [asdict(a) for a in self.anomalies]}

    def __str__(self) -> str:
        sizes = ", ".join(f"{size} {name}" for name, size in self.sizes.items())
        found = "\n".join(f"  {anomaly}" for anomaly in self.anomalies)
        return f"{sizes}: {'clean' if self.clean else 'NOT exactly once'}" + (
            f"\n{found}" if found else ""
        )

    def require_clean(self, context: str = "") -> None:
        """Raises AssertionError with everything that was found."""
        if not self.clean:
            raise AssertionError(f"{self}\n{context}".rstrip())


def check(
    transcripts: Sequence[Transcript],
    rows: Iterable[Row],
    *,
    buffer: Sequence[Line] | None = None,
    ledger: LedgerState | None = None,
) -> Verdict:
    """The verdict over a drained sink: the query has nothing left to write.

    Without ``buffer`` (trimmed, or another source) lines are compared with transcripts only; give
    it whole or not at all. Tags of rows (batch, partition, position) are checked where they are
    there.
    """
    stored = list(rows)
    values = Counter(row.value for row in stored)
    anomalies = [*_delivery(transcripts, values, buffer)]
    sizes = {
        "announced": sum(len(each.announced) for each in transcripts),
        "acknowledged": sum(each.acknowledged for each in transcripts),
        "in_sink": len(stored),
    }
    if buffer is not None:
        anomalies += _buffer(transcripts, buffer)
        sizes["in_buffer"] = len(buffer)
    if ledger is not None:
        anomalies += _ledger(stored, ledger)
    order = [*_order_in_partitions(stored)]
    if buffer is not None:
        order += _order_of_producers(transcripts, buffer)
    anomalies += _found(ORDER_BROKEN, order)
    return Verdict(tuple(_merged(anomalies)), sizes)


# --- multisets --------------------------------------------------------------------------------


def _announced(transcripts: Sequence[Transcript]) -> Counter[bytes]:
    return Counter(line for each in transcripts for line in each.announced.values())


def _acknowledged(transcripts: Sequence[Transcript]) -> Counter[bytes]:
    return Counter(
        line
        for each in transcripts
        for number, line in each.announced.items()
        if number <= each.acknowledged
    )


def _delivery(
    transcripts: Sequence[Transcript], values: Counter[bytes], buffer: Sequence[Line] | None
) -> Iterator[Anomaly]:
    announced = _announced(transcripts)
    due = _acknowledged(transcripts)
    if buffer is not None:
        # What is durable must arrive, also where the producer died before it was told.
        due |= Counter(line.value for line in buffer)
    yield from _missing(LOST, due - values, "not in the sink")
    extra = values - announced
    if buffer is not None:
        # The query read nothing else: a line that was sent and is not durable stands for no row.
        extra |= values - due
    yield from _missing(INVENTED, _only(extra, lambda value: value not in announced), "in the sink")
    yield from _missing(TWICE, _only(extra, lambda value: value in announced), "too often")


def _buffer(transcripts: Sequence[Transcript], buffer: Sequence[Line]) -> Iterator[Anomaly]:
    announced = _announced(transcripts)
    there = Counter(line.value for line in buffer)
    yield from _missing(BUFFER_LOST, _acknowledged(transcripts) - there, "not in the buffer")
    extra = there - announced
    yield from _missing(
        BUFFER_INVENTED, _only(extra, lambda value: value not in announced), "in the buffer"
    )
    yield from _missing(BUFFER_TWICE, _only(extra, lambda value: value in announced), "too often")


def _only(counter: Counter[bytes], wanted: Callable[[bytes], bool]) -> Counter[bytes]:
    return Counter({value: n for value, n in counter.items() if wanted(value)})


def _missing(name: str, counter: Counter[bytes], what: str) -> Iterator[Anomaly]:
    if counter:
        shown = [f"{value[:80]!r} {n} times {what}" for value, n in counter.most_common(_SHOWN)]
        yield Anomaly(name, counter.total(), tuple(shown))


# --- ledger and rows --------------------------------------------------------------------------


def _ledger(rows: Sequence[Row], ledger: LedgerState) -> list[Anomaly]:
    tagged = [row for row in rows if row.batch_id is not None]
    if len(tagged) != len(rows):
        return _totals(len(rows), ledger)
    batches = Counter(row.batch_id or 0 for row in tagged)
    units = Counter((row.batch_id or 0, row.partition or 0) for row in tagged)
    known = {(unit.batch_id, unit.partition): unit.rows for unit in ledger.units}
    findings = [
        _compare(f"batch {batch_id}", batches[batch_id], in_ledger)
        for batch_id, in_ledger in ledger.completed.items()
    ]
    findings += [
        _compare(f"batch {batch_id} partition {partition}", units[batch_id, partition], in_ledger)
        for (batch_id, partition), in_ledger in known.items()
    ]
    findings += [
        (ROWS_WITHOUT_LEDGER, n, f"batch {batch_id} partition {partition}: {n} rows, no unit")
        for (batch_id, partition), n in units.items()
        if batch_id > ledger.last_complete and (batch_id, partition) not in known
    ]
    return _grouped(findings)


def _totals(in_sink: int, ledger: LedgerState) -> list[Anomaly]:
    """For rows that carry no tags: sums, as long as the history goes back to batch 0."""
    if set(ledger.completed) < set(range(ledger.last_complete + 1)):
        return []
    open_units = [unit.rows for unit in ledger.units if unit.batch_id > ledger.last_complete]
    return _grouped(
        [_compare("all batches", in_sink, sum(ledger.completed.values()) + sum(open_units))]
    )


def _compare(what: str, in_sink: int, in_ledger: int) -> tuple[str, int, str]:
    text = f"{what}: {in_sink} rows in the sink, {in_ledger} in the ledger"
    if in_sink > in_ledger:
        return ROWS_WITHOUT_LEDGER, in_sink - in_ledger, text
    name = TORN_UNIT if in_sink else LEDGER_WITHOUT_ROWS
    return name, in_ledger - in_sink, text


def _grouped(findings: Iterable[tuple[str, int, str]]) -> list[Anomaly]:
    grouped: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, count, text in findings:
        if count:
            grouped[name].append((count, text))
    return [
        Anomaly(name, sum(n for n, _ in found), tuple(text for _, text in found[:_SHOWN]))
        for name, found in grouped.items()
    ]


# --- order ------------------------------------------------------------------------------------


def _order_in_partitions(rows: Iterable[Row]) -> Iterator[str]:
    """Within a (batch, partition), offsets grow in the order in which the sink was written."""
    units: dict[tuple[int | None, int | None], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.offset is not None and row.position is not None:
            units[row.batch_id, row.partition].append((row.position, row.offset))
    for (batch_id, partition), unit in units.items():
        offsets = [offset for _, offset in sorted(unit)]
        for before, after in itertools.pairwise(offsets):
            if after < before:
                yield f"batch {batch_id} partition {partition}: offset {after} after {before}"


def _order_of_producers(transcripts: Sequence[Transcript], buffer: Sequence[Line]) -> Iterator[str]:
    """Lines that one producer alone sent, once, lie in the buffer in the order of their numbers."""
    senders = _announced(transcripts)
    numbers = {
        line: (each.producer, number)
        for each in transcripts
        for number, line in each.announced.items()
        if senders[line] == 1
    }
    newest: dict[str, int] = {}
    for line in sorted(buffer, key=lambda each: each.offset):
        if line.value not in numbers:
            continue
        producer, number = numbers[line.value]
        if number < newest.get(producer, 0):
            yield f"{producer}: number {number} after {newest[producer]}, offset {line.offset}"
        newest[producer] = max(number, newest.get(producer, 0))


def _found(name: str, texts: Sequence[str]) -> list[Anomaly]:
    return [Anomaly(name, len(texts), tuple(texts[:_SHOWN]))] if texts else []


def _merged(anomalies: Iterable[Anomaly]) -> Iterator[Anomaly]:
    """One anomaly a check, in the order of CHECKS."""
    by_name: dict[str, list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        by_name[anomaly.check].append(anomaly)
    for name in CHECKS:
        if found := by_name.get(name):
            texts = tuple(text for anomaly in found for text in anomaly.evidence)
            yield Anomaly(name, sum(anomaly.count for anomaly in found), texts[:_SHOWN])
