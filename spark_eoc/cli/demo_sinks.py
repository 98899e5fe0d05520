"""The demo's two sinks: their servers, and their content against the CSV itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spark_eoc.cli.demo_data import COLUMNS, NO_VALUE, counters
from spark_eoc.cli.demo_job import TABLE
from spark_eoc.testing.servers import MariaDB, Redis, Server

_DATABASE = "demo"


@dataclass(frozen=True)
class Verdict:
    """A sink's content against what was sent, counted in rows."""

    in_sink: int
    lost: int
    twice: int
    #: What differs, in words; None when nothing does.
    difference: str | None = None


class DemoSink(Protocol):
    """A sink with a server of its own."""

    name: str
    title: str
    server: Server

    @property
    def url(self) -> str:
        """What its writer connects to."""

    def verdict(self, lines: Sequence[str]) -> Verdict:
        """Compares everything in the sink with ``lines``."""


class MySQLSink:
    """A table with one row for each flight."""

    name = "mysql"
    title = "MariaDB, one row a flight"

    def __init__(self, folder: Path) -> None:
        self.server: Server = MariaDB.start(folder / "mariadb")
        columns = ", ".join(
            f"`{name}` {'INT' if kind == 'INT' else 'VARCHAR(40)'}"
            for name, kind in COLUMNS.items()
        )
        self._mariadb().query(f"CREATE DATABASE {_DATABASE}")
        # No key and no unique index: nothing but the ledger keeps a row from coming twice.
        self._mariadb().query(f"CREATE TABLE {_DATABASE}.{TABLE} ({columns}) ENGINE=InnoDB")

    @property
    def url(self) -> str:
        return self._mariadb().url(_DATABASE)

    def verdict(self, lines: Sequence[str]) -> Verdict:
        fields = ", ".join(f"COALESCE(`{name}`, '{NO_VALUE}')" for name in COLUMNS)
        rows = self._mariadb().query(
            f"SELECT CONCAT_WS(',', {fields}) FROM {_DATABASE}.{TABLE}"  # noqa: S608
        )
        have = Counter(str(line) for (line,) in rows)
        want = Counter(lines)
        lost, twice = want - have, have - want
        samples = [f"lost: {line}" for line in list(lost)[:1]]
        samples += [f"too often: {line}" for line in list(twice)[:1]]
        return Verdict(
            have.total(), lost.total(), twice.total(), "; ".join(samples) if samples else None
        )

    def _mariadb(self) -> MariaDB:
        assert isinstance(self.server, MariaDB)  # noqa: S101
        return self.server


class RedisSink:
    """A hash for each carrier, with its flights and the sum of their distances."""

    name = "redis"
    title = "Redis, counters per carrier"

    def __init__(self, folder: Path) -> None:
        self.server: Server = Redis.start(folder / "redis")

    @property
    def url(self) -> str:
        return self._redis().url()

    def verdict(self, lines: Sequence[str]) -> Verdict:
        want = counters(lines)
        have = self._counters()
        lost = twice = 0
        differences = []
        for carrier in sorted({*want, *have}):
            flights, distance = want.get(carrier, (0, 0))
            counted, summed = have.get(carrier, (0, 0))
            lost += max(0, flights - counted)
            twice += max(0, counted - flights)
            if (counted, summed) != (flights, distance):
                differences.append(
                    f"{carrier} has {counted:,} flights, {summed:,} miles "
                    f"instead of {flights:,}, {distance:,}"
                )
            if counted == flights and summed != distance:
                # A row lost and another one doubled look like this; neither may pass.
                lost, twice = lost + (summed < distance), twice + (summed > distance)
        total = sum(count for count, _ in have.values())
        return Verdict(total, lost, twice, "; ".join(differences[:3]) or None)

    def _counters(self) -> dict[str, tuple[int, int]]:
        client = self._redis().client()
        with client:
            found = {}
            for key in client.scan_iter(match="carrier:*", count=1000):
                flights, distance = client.hmget(key, ["flights", "distance"])
                carrier = key.decode().partition(":")[2]
                found[carrier] = (int(flights or 0), int(distance or 0))
            return found

    def _redis(self) -> Redis:
        assert isinstance(self.server, Redis)  # noqa: S101
        return self.server


SINKS: dict[str, type[MySQLSink] | type[RedisSink]] = {"mysql": MySQLSink, "redis": RedisSink}
