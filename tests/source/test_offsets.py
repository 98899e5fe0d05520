"""Offsets as text that Spark stores and compares."""

from __future__ import annotations

import json

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.source.offsets import (
    SourceOffset,
    decode_offset,
    encode_offset,
    initial_symbol,
    is_initial,
)

OFFSET = SourceOffset("b1", 3, 17, 2)


def test_the_text_is_fixed():
    """Spark compares text: the order of keys is part of the format."""
    assert json.dumps(encode_offset(OFFSET)) == (
        '{"buffer": "b1", "epoch": 3, "offset": 17, "partitions": 2}'
    )
    first = SourceOffset("b1", 3, 17, 2, from_offset=5)
    assert json.dumps(encode_offset(first)) == (
        '{"buffer": "b1", "epoch": 3, "offset": 17, "partitions": 2, "from": 5}'
    )


@pytest.mark.parametrize("offset", [OFFSET, SourceOffset("b1", 0, 0, 1, from_offset=0)])
def test_it_goes_round(offset):
    """What was stored is what is read."""
    assert decode_offset(json.loads(json.dumps(encode_offset(offset)))) == offset


def test_the_initial_offset_is_a_constant_symbol():
    """It tells nothing about the log, and no stored offset is taken for it."""
    assert initial_symbol() == initial_symbol()
    assert is_initial(initial_symbol())
    assert not is_initial(encode_offset(OFFSET))


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"offset": 1},
        {"buffer": 1, "epoch": 0, "offset": 0, "partitions": 1},
        {"buffer": "b", "epoch": 0, "offset": -1, "partitions": 1},
        {"buffer": "b", "epoch": 0, "offset": 1.5, "partitions": 1},
        {"buffer": "b", "epoch": 0, "offset": True, "partitions": 1},
        {"buffer": "b", "epoch": 0, "offset": 0, "partitions": 1, "more": 1},
    ],
)
def test_offsets_of_others_are_refused(strange):
    """A checkpoint of another source is named, not guessed at."""
    with pytest.raises(ConfigError, match="did not write"):
        decode_offset(strange)
