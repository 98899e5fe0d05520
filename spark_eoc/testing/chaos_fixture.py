"""``eoc_chaos``: a user's query under kills, in one call of a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_eoc.errors import ConfigError
from spark_eoc.testing.chaos import SCRIPT_KILLS, Chaos, Expect
from spark_eoc.testing.feeds import FEEDS, open_feed
from spark_eoc.testing.function_run import check_query, command_of
from spark_eoc.testing.inputs import made_up
from spark_eoc.testing.kills import Instants, Kill
from spark_eoc.testing.place import Place
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.report import ChaosReport
from spark_eoc.testing.rows import FunctionRows, Rows, check_rows
from spark_eoc.testing.servers import Redis, Server, SqlServer

if TYPE_CHECKING:
    from spark_eoc.testing.plugin import Database


#: Of a call that does not say how many, unless there are more kinds.
KILLS = 3


@dataclass(frozen=True)
class Given:
    """What the command line gave; None where it gave nothing."""

    seed: int
    kills: int | None = None
    lines: int | None = None
    kinds: Sequence[Kill] | None = None


class ChaosRunner:
    """What the fixture ``eoc_chaos`` is; call it once or more in a test.

    What the command line gives (``--eoc-seed``, ``--eoc-kills``, ``--eoc-rows``, ``--eoc-kinds``)
    comes before what the test says.
    """

    def __init__(self, folder: Path, given: Given) -> None:
        self._folder = folder
        self._given = given
        self._calls = 0

    def __call__(
        self,
        query: Callable[..., Any] | str | os.PathLike[str],
        rows: Callable[[], Iterable[Any]] | Rows,
        *,
        mariadb: SqlServer | Database | None = None,
        redis: Redis | None = None,
        lines: Sequence[bytes | str] | int = 2000,
        kills: int | None = None,
        kinds: Sequence[Kill | str] | None = None,
        feed: str = "folder",
        per_second: float = 500.0,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        expect: Expect | None = None,
        settle_s: float = 60.0,
        progress_s: float = 180.0,
        instants: Instants | None = None,
    ) -> ChaosReport:
        """Runs ``query`` under kills until everything is through, and reports.

        ``query`` is a function of ``(spark, place)`` that starts streaming queries, or the path of
        a script, run as it is with ``arguments``. ``rows`` reads the sink: a function that returns
        its values (a str, bytes or tuple each), or a reader of :mod:`spark_eoc.testing.rows`.

        ``lines`` are given to it, or so many are made up; ``feed`` says how: ``folder`` (text files
        appear in ``place.input``), ``listen`` (the acknowledged protocol to ``place.listen``) or
        ``buffer`` (to a receiver of its own that fills ``place.buffer``; both are killed too).
        ``expect`` turns a line into the value that the sink should hold for it, or None. A server
        that is given is killed too, unless ``kinds`` says otherwise, by members of
        :class:`~spark_eoc.testing.kills.Kill` or their names. ``kills`` is 3, or the number of
        kinds where that is more, so that each comes once. ``per_second`` is in lines,
        ``settle_s`` the seconds without a change in the sink after which missing rows are lost,
        ``progress_s`` those in which a run must bring a new row.

        ConfigError, before anything is started, names what can't work.
        """
        check_query(query)
        check_rows(rows)
        self._calls += 1
        folder = self._folder / f"chaos-{self._calls}"
        folder.mkdir(parents=True)
        place = self._place(folder, feed, mariadb, redis)
        wanted = self._given.kinds or [Kill.named(kind) for kind in kinds or ()]
        with ExitStack() as stack:
            fed = open_feed(
                feed, self._lines(lines), place, stack, per_second=per_second, kinds=wanted
            )
            servers = {**_servers(mariadb, redis), **fed.servers}
            each = wanted or (*SCRIPT_KILLS, *servers)
            asked = kills if self._given.kills is None else self._given.kills
            return Chaos(
                command=_command(query, folder, arguments, place, dict(settings or {})),
                folder=folder,
                input=fed.input,
                rows=FunctionRows(rows) if callable(rows) else rows,
                kills=max(KILLS, len(each)) if asked is None else asked,
                kinds=each,
                seed=self._given.seed,
                servers=servers,
                env={**place.environment, **(env or {})},
                checkpoints={"query": place.checkpoint},
                expect=expect,
                settle_s=settle_s,
                progress_s=progress_s,
                instants=instants or Instants(spread_s=2.0),
                on_event=print,
            ).run()

    def _lines(self, lines: Sequence[bytes | str] | int) -> list[bytes]:
        if self._given.lines is not None:
            return made_up(self._given.lines, self._given.seed)
        if isinstance(lines, int):
            return made_up(lines, self._given.seed)
        return [line.encode() if isinstance(line, str) else line for line in lines]

    @staticmethod
    def _place(
        folder: Path, feed: str, mariadb: SqlServer | Database | None, redis: Redis | None
    ) -> Place:
        if feed not in FEEDS:
            raise ConfigError(
                f"feed={feed!r} is not known", next_step=f"use one of {', '.join(FEEDS)}"
            )
        return Place(
            folder=str(folder),
            input=str(folder / "input") if feed == "folder" else "",
            listen=f"127.0.0.1:{free_port()}" if feed == "listen" else "",
            buffer=str(folder / "buffer"),
            checkpoint=str(folder / "checkpoint"),
            mysql_url=mariadb.url() if mariadb is not None else "",
            redis_url=redis.url() if redis is not None else "",
        )


def _servers(mariadb: SqlServer | Database | None, redis: Redis | None) -> dict[Kill, Server]:
    servers: dict[Kill, Server] = {}
    if mariadb is not None:
        servers[Kill.MARIADB] = mariadb if isinstance(mariadb, Server) else mariadb.server
    if redis is not None:
        servers[Kill.REDIS] = redis
    return servers


def _command(
    query: Callable[..., Any] | str | os.PathLike[str],
    folder: Path,
    arguments: Sequence[str],
    place: Place,
    settings: dict[str, str],
) -> Sequence[str]:
    if callable(query):
        return command_of(query, folder / "function.pickle", settings)
    return [sys.executable, os.fspath(query), *map(place.fill, arguments)]
