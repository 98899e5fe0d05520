"""The checker on made-up histories: clean ones pass, each kind of damage is named."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from spark_eoc.testing import checker
from spark_eoc.testing.checker import LedgerState, Line, Row, UnitState, check
from spark_eoc.testing.transcript import TranscribedProducer, Transcript, TranscriptWriter


def history() -> tuple[list[Transcript], list[Row], list[Line], LedgerState]:
    """Two producers, 40 lines, four batches of two partitions, the last one open."""
    transcripts = [
        Transcript.of("p", [b"p%d" % n for n in range(20)]),
        Transcript.of("q", [b"q%d" % n for n in range(20)]),
    ]
    lines = [
        line
        for pair in zip(*(each.announced.values() for each in transcripts), strict=True)
        for line in pair
    ]
    buffer = [Line(offset, value) for offset, value in enumerate(lines)]
    rows = [
        Row(line.value, line.offset // 10, line.offset % 10 // 5, line.offset, line.offset)
        for line in buffer
    ]
    ledger = LedgerState(
        last_complete=2,
        completed={0: 10, 1: 10, 2: 10},
        units=[UnitState(0, 3, 5), UnitState(1, 3, 5)],
        open_batch=3,
    )
    return transcripts, rows, buffer, ledger


def verdict(transcripts, rows, buffer, ledger):
    return check(transcripts, rows, buffer=buffer, ledger=ledger)


def test_a_clean_history_is_clean():
    """Nothing is found, and the sizes are told."""
    found = verdict(*history())
    found.require_clean()
    assert found.sizes == {"announced": 40, "acknowledged": 40, "in_sink": 40, "in_buffer": 40}


def test_announced_but_not_acknowledged_may_be_missing_but_not_twice():
    """A line that a killed producer was not told about may be there or not."""
    transcripts = [Transcript.of("p", [b"a", b"b", b"c"], acknowledged=2)]
    for there in ([b"a", b"b"], [b"a", b"b", b"c"]):
        check(transcripts, [Row(value) for value in there]).require_clean()
    assert check(transcripts, [Row(v) for v in (b"a", b"b", b"c", b"c")]).checks == {"twice"}


def test_durable_but_not_acknowledged_must_arrive():
    """What the buffer holds is due, also where the acknowledgement was lost."""
    transcripts = [Transcript.of("p", [b"a", b"b"], acknowledged=1)]
    buffer = [Line(0, b"a"), Line(1, b"b")]
    assert check(transcripts, [Row(b"a")], buffer=buffer).checks == {"lost"}


@pytest.mark.parametrize("there", [[b"a"], []])
def test_a_row_of_a_line_that_the_buffer_does_not_hold_is_one_too_many(there: list[bytes]):
    """Another line with the same text, sent and never durable, does not stand for it."""
    transcripts = [Transcript.of("p", [b"a", b"a"], acknowledged=len(there))]
    buffer = [Line(offset, value) for offset, value in enumerate(there)]
    rows = [Row(b"a")] * (len(there) + 1)
    assert check(transcripts, rows).clean
    assert check(transcripts, rows, buffer=buffer).checks == {"twice"}


def test_equal_counts_with_wrong_rows_are_seen():
    """One lost and one twice do not cancel out: multisets, never counts (case E4)."""
    transcripts, rows, _, _ = history()
    rows[7] = replace(rows[7], value=rows[8].value)
    assert check(transcripts, rows).checks == {"lost", "twice"}


DAMAGES = {
    "a row is missing": (lambda t, r, b, e: (t, r[1:], b, e), {"lost", "torn_unit"}),
    "a row is there twice": (
        lambda t, r, b, e: (t, [*r, replace(r[3], position=99)], b, e),
        {"twice", "rows_without_ledger", "order_broken"},
    ),
    "a row that nobody sent": (
        lambda t, r, b, e: (t, [*r, Row(b"x", 1, 0, 999, 999)], b, e),
        {"invented", "rows_without_ledger"},
    ),
    "a whole unit is missing, the ledger has it": (
        lambda t, r, b, e: (t, [x for x in r if (x.batch_id, x.partition) != (3, 1)], b, e),
        {"lost", "ledger_without_rows"},
    ),
    "a whole batch is missing, the ledger has it": (
        lambda t, r, b, e: (t, [x for x in r if x.batch_id != 1], b, e),
        {"lost", "ledger_without_rows"},
    ),
    "rows of the open batch without their unit": (
        lambda t, r, b, e: (t, r, b, replace(e, units=e.units[:1])),
        {"rows_without_ledger"},
    ),
    "rows of a batch beyond the ledger": (
        lambda t, r, b, e: (t, r, b, replace(e, units=(), last_complete=1, completed={1: 10})),
        {"rows_without_ledger"},
    ),
    "an acknowledged line is not in the buffer": (
        lambda t, r, b, e: (t, r, b[:-1], e),
        {"buffer_lost"},
    ),
    "a line is in the buffer twice": (
        lambda t, r, b, e: (t, r, [*b, Line(40, b[0].value)], e),
        {"buffer_twice", "lost"},
    ),
    "a line in the buffer that nobody sent": (
        lambda t, r, b, e: (t, r, [*b, Line(40, b"x")], e),
        {"buffer_invented", "lost"},
    ),
    "a producer's lines are swapped": (
        lambda t, r, b, e: (
            t,
            r,
            [replace(b[0], value=b[2].value), b[1], replace(b[2], value=b[0].value), *b[3:]],
            e,
        ),
        {"order_broken"},
    ),
    "a partition's rows are swapped": (
        lambda t, r, b, e: (
            t,
            [replace(r[0], position=1), replace(r[1], position=0), *r[2:]],
            b,
            e,
        ),
        {"order_broken"},
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_named(name: str):
    """Exactly the checks that the damage is about find something, and show it."""
    damage, expected = DAMAGES[name]
    found = verdict(*damage(*history()))
    if name == "a line is in the buffer twice":
        # The surplus copy would have been due in the sink too.
        assert found.checks == expected | {"order_broken"}
    else:
        assert found.checks == expected
    assert all(anomaly.evidence and anomaly.count for anomaly in found.anomalies)


def test_every_check_is_found_by_some_damage():
    """No name in CHECKS is dead."""
    assert set().union(*(expected for _, expected in DAMAGES.values())) == set(checker.CHECKS)


def test_any_single_loss_or_repeat_is_found(eoc_random: random.Random):
    """Whatever row is removed or doubled, it is counted exactly."""
    for _ in range(100):
        transcripts, rows, buffer, ledger = history()
        gone, again = eoc_random.sample(rows, 2)
        rows.remove(gone)
        rows.append(again)
        found = verdict(transcripts, rows, buffer, ledger)
        assert (found.count("lost"), found.count("twice")) == (1, 1)


def test_counters_are_compared_by_totals_with_the_ledger():
    """Rows without tags (a Redis counter): sums over the whole history."""
    transcripts = [Transcript.of("p", [b"a", b"a", b"b"])]
    rows = [Row(b"a"), Row(b"a"), Row(b"b")]
    check(transcripts, rows, ledger=LedgerState(1, {0: 2, 1: 1})).require_clean()
    assert check(transcripts, rows, ledger=LedgerState(1, {0: 2, 1: 2})).checks == {"torn_unit"}
    pruned = LedgerState(200, {200: 1})
    check(transcripts, rows, ledger=pruned).require_clean()


def test_a_verdict_says_what_it_found():
    """The text has sizes, the check's name and meaning, and the evidence."""
    found = check([Transcript.of("p", [b"a", b"b"])], [Row(b"a")])
    assert "lost: 1 (a line that was acknowledged" in str(found)
    assert "b'b' 1 times not in the sink" in str(found)
    assert found.to_json()["clean"] is False
    with pytest.raises(AssertionError, match="lost: 1"):
        found.require_clean("seed 7")


class InstantProducer:
    """Acknowledges on flush."""

    def __init__(self) -> None:
        self.sent = self.acknowledged = 0

    def send(self, line: bytes | str) -> int:
        self.sent += 1
        return self.sent

    def flush(self, timeout_s: float | None = None) -> int:
        self.acknowledged = self.sent
        return self.sent


def test_a_transcript_announces_before_it_sends_and_reads_back(tmp_path: Path):
    """Any bytes; a half-written last entry is left out, as after a kill."""
    path = tmp_path / "transcript"
    writer = TranscriptWriter(path, "p")
    producer = TranscribedProducer(InstantProducer(), writer)
    lines = [b"", b"\xff\x00\"'\\", "é".encode()]
    for line in lines:
        producer.send(line)
    producer.flush()
    producer.send(b"after")
    writer.close()
    with path.open("ab") as file:
        file.write(b"[5, ")
    read = Transcript.read(path)
    assert (read.producer, read.acknowledged) == ("p", 3)
    assert list(read.announced.values()) == [*lines, b"after"]
