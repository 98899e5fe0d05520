"""How far each reader of a buffer has come; the log is trimmed to the lowest.

One small file per consumer name, which its holder has under flock. Two queries under one name would
trim each other's data: the second finds the lock taken, reads, and never moves the position.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from spark_eoc.buffer.files import Files
from spark_eoc.buffer.layout import Layout
from spark_eoc.buffer.lock import try_flock
from spark_eoc.buffer.refuse import refusing
from spark_eoc.buffer.slots import SlotWriter, read_slots
from spark_eoc.errors import ConfigError

LOG = logging.getLogger("spark_eoc.buffer")

CONSUMERS_NAME = "consumers"
POSITION_MAGIC = b"EOCP"
_SUFFIX = ".position"
_MAX_NAME_BYTES = 200
_POSITION = Layout("<QQ")


@dataclass(frozen=True)
class Position:
    """Records below ``committed`` are never asked for again; those below ``handed_out`` were
    planned into a batch. Both are offsets; ``committed <= handed_out``."""

    committed: int
    handed_out: int


class ConsumerPosition:
    """The position of one consumer. Use it from one thread at a time.

    Positions only go forward, but for :meth:`rewind`. They are not synced: after a power cut an
    older one may come back, which keeps more than is needed, never less.
    """

    def __init__(self, name: str, slots: SlotWriter, position: Position, held: bool) -> None:
        self.name = name
        self._slots = slots
        self._position = position
        self._held = held

    @classmethod
    def open(
        cls, path: str | Path, name: str = "default", *, files: Files | None = None
    ) -> ConsumerPosition:
        """Position of consumer ``name`` in the buffer at ``path``, made durable if it is new.

        Where another reader holds it, ``held`` is false and nothing is ever moved until that one
        is gone. Raises ConfigError for a name that is empty or too long, or for a path that can't
        be used.
        """
        encoded = quote(name, safe="")
        if not name or len(encoded) > _MAX_NAME_BYTES:
            raise ConfigError(
                f"consumer name {name!r} is empty or too long", next_step="use a short name"
            )
        used = files or Files()
        directory = Path(path) / CONSUMERS_NAME
        slots = SlotWriter(directory / (encoded + _SUFFIX), POSITION_MAGIC, used)
        with refusing(directory.parent):
            used.make_directory(directory)
            opened = cls(name, slots, _unpack(slots.open()), held=False)
        opened._acquire()
        return opened

    @property
    def committed(self) -> int:
        """Records below are never asked for again by this consumer."""
        return self._position.committed

    @property
    def handed_out(self) -> int:
        """One past the last record that was planned into a batch."""
        return self._position.handed_out

    @property
    def held(self) -> bool:
        """True if this reader holds the consumer's lock; tries to take it if it is free."""
        return self._acquire()

    def hand_out(self, offset: int) -> bool:
        """Records below ``offset`` are planned; False, and nothing done, if it isn't held."""
        return self._advance(Position(self._position.committed, offset))

    def commit(self, offset: int) -> bool:
        """Records below ``offset`` are done with; False, and nothing done, if it isn't held."""
        return self._advance(Position(offset, offset))

    def rewind(self, offset: int) -> bool:
        """Records from ``offset`` on are asked for again, though they were committed: by a restored
        checkpoint, or a new one. False, and nothing done, if it isn't held."""
        if not self._acquire():
            return False
        if offset < self._position.committed:
            # Durable, unlike a move forward: an older, higher one would let go of what is needed.
            moved = Position(offset, self._position.handed_out)
            self._slots.write(_pack(moved), sync=True)
            self._position = moved
        return True

    def close(self) -> None:
        """Lets go of the lock; the position stays."""
        self._held = False
        self._slots.close()

    def _acquire(self) -> bool:
        if not self._held and self._slots.fileno() >= 0 and try_flock(self._slots.fileno()):
            # The one who held it may have moved it since we looked.
            content = self._slots.refresh()
            self._position = _unpack(content)
            self._held = True
            if content is None:
                self._slots.write_both(_pack(self._position))
        return self._held

    def _advance(self, wanted: Position) -> bool:
        if not self._acquire():
            return False
        now = self._position
        moved = Position(
            max(now.committed, wanted.committed), max(now.handed_out, wanted.handed_out)
        )
        if moved != now:
            self._slots.write(_pack(moved))
            self._position = moved
        return True


def _pack(position: Position) -> bytes:
    return _POSITION.pack(position.committed, position.handed_out)


def _unpack(content: bytes | None) -> Position:
    if content is None:
        return Position(0, 0)
    return Position(*_POSITION.unpack(content[: _POSITION.size]))


def read_positions(path: str | Path) -> dict[str, Position]:
    """Every consumer's position. One whose file is damaged counts as 0: it holds everything."""
    found = {}
    for file in sorted((Path(path) / CONSUMERS_NAME).glob(f"*{_SUFFIX}")):
        record = read_slots(file, POSITION_MAGIC)
        name = unquote(file.name[: -len(_SUFFIX)])
        found[name] = _unpack(record.content if record else None)
    return found


def lowest_position(path: str | Path) -> Position:
    """The lowest of all consumers' positions, each of both numbers by itself; 0 without any."""
    positions = read_positions(path).values()
    return Position(
        min((position.committed for position in positions), default=0),
        min((position.handed_out for position in positions), default=0),
    )


def remove_consumer(path: str | Path, name: str, *, files: Files | None = None) -> bool:
    """Forgets a consumer, so that it holds nothing back any more; False if there was none.

    Refuses with ConfigError while a reader holds it.
    """
    used = files or Files()
    file = Path(path) / CONSUMERS_NAME / (quote(name, safe="") + _SUFFIX)
    if not file.exists():
        return False
    descriptor = used.open(file)
    try:
        if not try_flock(descriptor):
            raise ConfigError(
                f"consumer {name!r} is in use", next_step="stop the query that reads with it"
            )
        used.unlink(file)
        used.sync_directory(file.parent)
    finally:
        used.close(descriptor)
    return True
