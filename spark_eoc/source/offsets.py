"""Offsets as Spark stores them: made and read in this one place.

Spark compares offsets by their text, so one function makes them, with a fixed order of keys::

    {"buffer": id, "epoch": e, "offset": N, "partitions": P}           the usual one
    {"buffer": id, "epoch": e, "offset": N, "partitions": P, "from": S}  end of the first batch
    {"startingOffsets": "symbolic"}                                    what initialOffset returns

``offset`` is the next record to read: a batch covers ``[start.offset, end.offset)``. ``epoch`` is
that of the record before it. ``partitions`` fixes how the batch that ends here is split, so that
a replay splits the same after options have changed.

Spark doesn't store the initial offset and asks for it again when batch 0 is run again. A number
resolved from ``startingOffsets`` would be another one then, so the initial offset is a symbol, and
the resolved start travels as ``from`` in the end offset of the first batch, which Spark stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError

_SYMBOL = {"startingOffsets": "symbolic"}
_REQUIRED = ("buffer", "epoch", "offset", "partitions")


@dataclass(frozen=True)
class SourceOffset:
    """The next record to read, and how the batch that ends here is split; see the module."""

    buffer_id: str
    epoch: int
    offset: int
    partitions: int
    from_offset: int | None = None


def initial_symbol() -> dict[str, Any]:
    """The constant that ``initialOffset`` returns: "wherever this query first started"."""
    return dict(_SYMBOL)


def is_initial(offset: Mapping[str, Any]) -> bool:
    """Whether ``offset`` is the symbol, which stands before any batch."""
    return dict(offset) == _SYMBOL


def encode_offset(offset: SourceOffset) -> dict[str, Any]:
    """What Spark stores; the order of the keys is part of the format."""
    encoded: dict[str, Any] = {
        "buffer": offset.buffer_id,
        "epoch": offset.epoch,
        "offset": offset.offset,
        "partitions": offset.partitions,
    }
    if offset.from_offset is not None:
        encoded["from"] = offset.from_offset
    return encoded


def decode_offset(encoded: Mapping[str, Any]) -> SourceOffset:
    """Reads what :func:`encode_offset` made; raises ConfigError for anything else."""
    keys = tuple(encoded)
    numbers = [encoded.get(name) for name in keys if name != "buffer"]
    if (
        set(keys) - {"from"} != set(_REQUIRED)
        or not isinstance(encoded.get("buffer"), str)
        or not all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise ConfigError(
            f"the checkpoint holds the offset {dict(encoded)!r}, which replayable_socket "
            "did not write",
            next_step="start this query with the checkpointLocation that belongs to it",
            offset=dict(encoded),
        )
    return SourceOffset(
        buffer_id=encoded["buffer"],
        epoch=encoded["epoch"],
        offset=encoded["offset"],
        partitions=encoded["partitions"],
        from_offset=encoded.get("from"),
    )
