"""Producers whose number was forgotten: their names are remembered, so that nothing is guessed.

To a producer that comes back after its number expired, the buffer can't say which of its lines it
holds. Taken for a new one it would send them all again, so it is told instead. Of an expired name
a digest of 8 bytes stays in the table of producers, under a key that no producer can have, with
sequence number 0. There is room for :data:`MOST_EXPIRED` of them; beyond that nothing expires.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from spark_eoc.buffer.block import ProducerState

LOG = logging.getLogger("spark_eoc.buffer")

#: They cost about 40 bytes each, in every segment.
MOST_EXPIRED = 50_000

_PREFIX = b"\0expired\0"
_MARK = ProducerState(0, 0)


@dataclass(frozen=True)
class Expiry:
    """The table after an expiry: so many were ``expired``, and so many would have been, but for
    the room (``not_expired``)."""

    table: dict[bytes, ProducerState]
    expired: int
    not_expired: int


def expire(
    table: Mapping[bytes, ProducerState], before_us: int, most: int = MOST_EXPIRED
) -> Expiry:
    """Forgets the producers that sent nothing since ``before_us``, the most silent ones first."""
    kept = dict(table)
    room = max(0, most - count_expired(table))
    idle = sorted(
        (state.last_time_us, name)
        for name, state in table.items()
        if not _is_mark(name) and state.last_time_us < before_us
    )
    for _, name in idle[:room]:
        del kept[name]
        kept[_mark_of(name)] = _MARK
    return Expiry(kept, len(idle[:room]), len(idle[room:]))


def warn_of_room(expiry: Expiry) -> None:
    """Says so if not all could expire."""
    if expiry.not_expired:
        LOG.warning(
            "%d idle producers stay: there is room for the names of %d expired ones",
            expiry.not_expired,
            MOST_EXPIRED,
        )


def has_expired(table: Mapping[bytes, ProducerState], name: bytes) -> bool:
    """Whether the number of this producer was forgotten, and none has come since."""
    return name not in table and _mark_of(name) in table


def known_producers(table: Mapping[bytes, ProducerState]) -> dict[bytes, ProducerState]:
    """The table without what stands for expired names."""
    return {name: state for name, state in table.items() if not _is_mark(name)}


def count_expired(table: Mapping[bytes, ProducerState]) -> int:
    """How many expired names are remembered."""
    return sum(map(_is_mark, table))


def _mark_of(name: bytes) -> bytes:
    return _PREFIX + blake2b(name, digest_size=8).digest()


def _is_mark(name: bytes) -> bool:
    return name.startswith(_PREFIX)
