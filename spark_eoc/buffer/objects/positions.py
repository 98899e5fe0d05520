"""Consumers' positions in an object store: a row of versions each, the highest counts.

There is no lock that a killed reader would let go of, so the newest reader of a name has it: it
creates the next version, and whoever had it before finds that version taken and moves nothing any
more. On a disk it is the other way round, the first one keeps it.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from urllib.parse import quote, unquote

from spark_eoc.buffer.consumers import Position
from spark_eoc.buffer.objects.store import Objects
from spark_eoc.errors import ConfigError

LOG = logging.getLogger("spark_eoc.buffer")

FOLDER = "consumers"
_MAX_NAME_BYTES = 200
#: Old versions are deleted this many at a time.
_SWEEP = 16


class ObjectPosition:
    """The position of one consumer; from one thread. Every move is durable on return."""

    def __init__(self, objects: Objects, name: str) -> None:
        """Takes the position over. Raises ConfigError for a name that is empty or too long, OSError
        where the store can't be reached."""
        encoded = quote(name, safe="")
        if not name or len(encoded) > _MAX_NAME_BYTES:
            raise ConfigError(
                f"consumer name {name!r} is empty or too long", next_step="use a short name"
            )
        self.name = name
        self._objects = objects
        self._folder = f"{FOLDER}/{encoded}"
        self._owner = secrets.token_hex(16)
        self._held = True
        self._take()

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
        """True until a newer reader is seen to have taken the name."""
        return self._held

    def hand_out(self, offset: int) -> bool:
        """Records below ``offset`` are planned; False, and nothing done, if it isn't held."""
        now = self._position
        return self._move(Position(now.committed, max(now.handed_out, offset)))

    def commit(self, offset: int) -> bool:
        """Records below ``offset`` are done with; False, and nothing done, if it isn't held."""
        now = self._position
        return self._move(Position(max(now.committed, offset), max(now.handed_out, offset)))

    def rewind(self, offset: int) -> bool:
        """Records from ``offset`` on are asked for again; False if it isn't held."""
        now = self._position
        moved = self._move(Position(min(now.committed, offset), now.handed_out))
        self._held = moved and self._is_newest()
        return self._held

    def close(self) -> None:
        """Lets go; the position stays."""
        self._held = False

    def _take(self) -> None:
        taken = False
        while not taken:
            versions = self._objects.names(self._folder)
            self._version = int(versions[-1]) if versions else 0
            self._position = _newest(self._objects, self._folder, versions)
            taken = self._create(self._position) and self._is_newest()
        self._delete(versions[:-1])

    def _move(self, wanted: Position) -> bool:
        if not self._held or wanted == self._position:
            return self._held
        if not self._create(wanted):
            self._held = False
            LOG.warning(
                "consumer %r of buffer %s was taken by another reader; this one reads, and "
                "never trims any more. Give each query a consumer of its own",
                self.name,
                self._objects.url,
            )
            return False
        self._position = wanted
        if self._version % _SWEEP == 0:
            old = range(max(1, self._version - 2 * _SWEEP), self._version - 1)
            self._delete([f"{number:020d}" for number in old])
        return True

    def _create(self, position: Position) -> bool:
        """Creates the next version; False if another reader has done so."""
        content = {**vars(position), "owner": self._owner}
        while True:
            name = f"{self._folder}/{self._version + 1:020d}"
            if self._objects.create(name, json.dumps(content).encode()):
                self._version += 1
                return True
            # It is our own where the answer was lost, now or when we last tried to move.
            there = self._objects.get(name)
            found = json.loads(bytes(there)) if there is not None else {}
            if found.get("owner") != self._owner:
                return False
            self._version += 1
            if found == content:
                return True

    def _is_newest(self) -> bool:
        """A name that was deleted can be created again: then we aren't the newest."""
        return self._objects.names(self._folder)[-1:] == [f"{self._version:020d}"]

    def _delete(self, versions: Sequence[str]) -> None:
        try:
            self._objects.delete([f"{self._folder}/{version}" for version in versions])
        except OSError as error:
            LOG.warning("old positions of consumer %r stay: %s", self.name, error)


def _newest(objects: Objects, folder: str, versions: Sequence[str]) -> Position:
    """The highest of these versions that is there and whole; else 0, which holds everything."""
    data = objects.get(f"{folder}/{versions[-1]}") if versions else None
    try:
        content = json.loads(bytes(data)) if data is not None else {}
        return Position(content["committed"], content["handed_out"])
    except (ValueError, KeyError, TypeError):
        return Position(0, 0)


def read_object_positions(objects: Objects) -> dict[str, Position]:
    """Every consumer's position. One that is damaged, or that is just being moved, counts as 0:
    it holds everything."""
    versions: dict[str, list[str]] = {}
    for name in objects.names(FOLDER):
        encoded, _, version = name.partition("/")
        versions.setdefault(encoded, []).append(version)
    return {
        unquote(encoded): _newest(objects, f"{FOLDER}/{encoded}", found)
        for encoded, found in versions.items()
    }


def remove_object_consumer(objects: Objects, name: str) -> bool:
    """Forgets a consumer, so that it holds nothing back any more; False if there was none. Where
    a reader still has it, its next move brings it back: whether one has, the store can't tell."""
    folder = f"{FOLDER}/{quote(name, safe='')}"
    versions = objects.names(folder)
    objects.delete([f"{folder}/{version}" for version in versions])
    return bool(versions)


def lowest_object_position(objects: Objects) -> Position:
    """The lowest of all consumers' positions, each number by itself; 0 without any."""
    positions = read_object_positions(objects).values()
    return Position(
        min((position.committed for position in positions), default=0),
        min((position.handed_out for position in positions), default=0),
    )
