"""Bytes to lines: whatever way they arrive cut, the same lines come out."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_eoc.receiver.lines import LineFramer, cut_lines, drop_first

RULES = ("error", "truncate", "skip")

AWKWARD = [
    pytest.param(b"a\nb\n", [b"a", b"b"], id="plain"),
    pytest.param(b"a\r\nb\r\n", [b"a", b"b"], id="CRLF"),
    pytest.param(b"a\rb\n\rc\n", [b"a\rb", b"\rc"], id="lone CR"),
    pytest.param(b"a\r\r\n", [b"a\r"], id="two CRs"),
    pytest.param(b"\n\n\r\n", [b"", b"", b""], id="empty lines"),
    pytest.param(b"\0\n\xef\xbb\xbfbom\n", [b"\0", b"\xef\xbb\xbfbom"], id="NUL and BOM"),
    pytest.param(b"\xff\xfe\xc3\n\xc3\x28\n", [b"\xff\xfe\xc3", b"\xc3("], id="invalid UTF-8"),
    pytest.param("ü€😀\n".encode(), ["ü€😀".encode()], id="characters of many bytes"),
]


def as_list(whole: bytes) -> list[bytes]:
    data, offsets, count = cut_lines(whole)
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, data]).to_pylist()


def by_hand(data: bytes, limit: int, rule: str, ended: bool) -> list[bytes]:
    """The line rules, one line after the other."""
    *parts, rest = data.split(b"\n")
    lines = [part[:-1] if part.endswith(b"\r") else part for part in parts]
    lines += [rest] if ended and rest else []
    kept = []
    for line in lines:
        if len(line) <= limit:
            kept.append(line)
        elif rule == "error":
            break
        elif rule == "truncate":
            kept.append(line[:limit])
    return kept


@pytest.mark.parametrize(("data", "lines"), AWKWARD)
def test_a_line_ends_at_a_newline_and_loses_one_carriage_return(data, lines):
    """B8: everything else is data, as it came."""
    assert as_list(data) == lines


@pytest.mark.parametrize(("data", "lines"), AWKWARD)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_lines_are_the_same_however_reads_cut_them(data, lines, step):
    """B8: one byte at a time, also in the middle of a character or of CRLF."""
    framer = LineFramer(100, "error")
    pieces = [framer.feed(data[i : i + step]) for i in range(0, len(data), step)]
    assert as_list(b"".join(piece.data for piece in pieces)) == lines
    assert sum(piece.records for piece in pieces) == len(lines)


def test_random_streams_give_the_lines_that_the_rules_say(eoc_seed):
    """All rules, limits and cuts at once, against the rules written out; memory stays bounded."""
    for round_ in range(3000):
        rng = random.Random(f"{eoc_seed} {round_}")
        data = bytes(rng.choice(b"ab\r\n\r\n") for _ in range(rng.randrange(80)))
        limit, rule = rng.choice([1, 2, 3, 5, 100]), rng.choice(RULES)
        framer, stored, records, place = LineFramer(limit, rule), b"", 0, 0
        while place < len(data):
            step = rng.randrange(1, rng.choice([2, 4, 20]))
            piece = framer.feed(data[place : place + step])
            stored, records, place = stored + piece.data, records + piece.records, place + step
            assert framer.held <= limit + 2
        ended = rng.random() < 0.5
        if ended:
            piece = framer.finish()
            stored, records = stored + piece.data, records + piece.records
        context = (eoc_seed, round_, data, limit, rule)
        assert as_list(stored) == by_hand(data, limit, rule, ended), context
        assert records == len(as_list(stored)), context


def test_after_an_oversize_error_nothing_more_comes_out():
    """The lines before it are kept; what follows could be anything."""
    framer = LineFramer(3, "error")
    lines = framer.feed(b"ab\nabcd\nx\n")
    assert (lines.data, lines.records, lines.oversize) == (b"ab\n", 1, True)
    assert framer.feed(b"y\n").records == 0
    assert framer.finish().records == 0


def test_first_lines_can_be_dropped():
    """Repeats of a producer."""
    assert drop_first(b"a\nb\nc\n", 2) == b"c\n"
    assert drop_first(b"a\nb\n", 2) == b""
