"""What a receiver counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Written by the socket thread; a reader on another thread may be one event behind."""

    accepted: int = 0
    lines: int = 0
    line_bytes: int = 0
    flushes: int = 0
    repeated_lines: int = 0
    oversize_lines: int = 0
    dropped_unfinished: int = 0
    refused: int = 0
    unfinished_bytes: int = 0


@dataclass(frozen=True)
class ReceiverStats:
    """Counts since the start of one receiver; a snapshot.

    ``accepted`` connections in all and ``connections`` now; ``lines``, ``line_bytes`` and
    ``flushes`` are durable ones; ``repeated_lines`` of producers and unfinished lines
    (``dropped_unfinished``) were not stored; ``oversize_lines`` met the option's rule.
    ``waiting_for_room``: the buffer or its disk is full, and sockets are not read for long.
    """

    connections: int
    accepted: int
    lines: int
    line_bytes: int
    flushes: int
    repeated_lines: int
    oversize_lines: int
    dropped_unfinished: int
    refused: int
    pending_bytes: int
    unfinished_bytes: int
    waiting_for_room: bool
