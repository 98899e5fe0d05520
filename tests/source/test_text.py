"""Option encodingErrors: what becomes of bytes that are no UTF-8."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_eoc.errors import BadLineError
from spark_eoc.source.text import text_rule

GOOD = ["", "plain", "Zürich", "日本", "👩‍👩‍👧", "a\x00b", "\ufeffbom"]
BAD = [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"cut\xe2\x82"]


def lines(*values):
    return pa.array(values, pa.binary())


@pytest.mark.parametrize("rule", ["replace", "strict"])
def test_valid_text_is_unchanged(rule):
    text = text_rule(rule)(lines(*(value.encode() for value in GOOD)), 0)
    assert text.type == pa.string()
    assert text.to_pylist() == GOOD


@pytest.mark.parametrize("bad", BAD)
def test_replace_gives_valid_text_and_leaves_neighbours_alone(bad):
    """Spark passes invalid UTF-8 on unchecked, so it must not get that far."""
    text = text_rule("replace")(lines(b"before", bad, b"after"), 0)
    text.validate(full=True)
    assert text.to_pylist() == ["before", bad.decode("utf-8", "replace"), "after"]
    assert "\ufffd" in text.to_pylist()[1]


@pytest.mark.parametrize("bad", BAD)
def test_strict_names_the_offset(bad):
    with pytest.raises(BadLineError, match="line 102 ") as caught:
        text_rule("strict")(lines(b"a", b"b", bad, bad), 100)
    assert caught.value.facts == {"offset": 102}


def test_binary_keeps_the_bytes():
    kept = text_rule("binary")(lines(*BAD), 0)
    assert kept.type == pa.binary()
    assert kept.to_pylist() == BAD


def test_a_slice_of_a_larger_array_is_judged_alone():
    """A partition may begin in the middle of a frame: what others hold is not its business."""
    part = lines(b"\xff", b"ok", b"\xff").slice(1, 1)
    assert text_rule("strict")(part, 0).to_pylist() == ["ok"]
