"""Everything around a workload under kills: feeders, servers, a supervisor, the verdict.

with Rig(folder, mariadb=mariadb, redis=redis) as rig, rig.supervise() as supervisor:
    supervisor.carry_out(KillSchedule(seed, count=10))
    verdicts = rig.settle(supervisor)
for verdict in verdicts.values():
    verdict.require_clean()
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_eoc.cli.receive import FLAGS
from spark_eoc.testing.checker import LedgerState, Row, Verdict, check
from spark_eoc.testing.clock import Clock
from spark_eoc.testing.daemons import ProducerProcess, ReceiverDaemon
from spark_eoc.testing.evidence import (
    mysql_ledger,
    mysql_rows,
    read_buffer,
    redis_count,
    redis_ledger,
    redis_rows,
)
from spark_eoc.testing.feeder import Feeder
from spark_eoc.testing.history import CheckpointWatch
from spark_eoc.testing.job import TABLE_SQL, Job, Stream
from spark_eoc.testing.kills import Kill
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.proxy import Proxy
from spark_eoc.testing.sender import made_up
from spark_eoc.testing.server import Server
from spark_eoc.testing.servers import MariaDB, Redis
from spark_eoc.testing.supervisor import Event, Supervisor
from spark_eoc.testing.wait import WaitTimeoutError

MYSQL, REDIS = "mysql", "redis"

_COUNT_EVERY_S = 0.3


class Target:
    """One sink of a rig, as the checker sees it."""

    def __init__(self, stream: Stream, rows: Callable[[], list[Row]], count: Callable[[], int],
                 ledger: Callable[[], LedgerState | None]) -> None:  # fmt: skip
        self.stream = stream
        self.rows = rows
        self.count = count
        self.ledger = ledger

    @property
    def closed(self) -> bool:
        """Whether the ledger shows no open batch."""
        ledger = self.ledger()
        return ledger is not None and ledger.open_batch is None


class Rig:
    """A job with a stream for each server that is given, one feeder each, and its checks.

    ``options`` are the source's, ``writers`` the writers' by sink, ``on_failure`` as in
    :class:`~spark_eoc.testing.job.Job`. A context manager: leaving it closes the feeders; the
    servers are the caller's.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        mariadb: MariaDB | None = None,
        redis: Redis | None = None,
        on_failure: str = "end",
        options: Mapping[str, str] | None = None,
        writers: Mapping[str, Mapping[str, Any]] | None = None,
        settings: Mapping[str, str] | None = None,
        per_second: float = 200.0,
        lines: int | None = None,
        starting_at: int = 0,
        network: bool = False,
        daemons: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """``lines`` ends each feeder after so many; ``starting_at`` is the offset below which
        the buffer holds lines that are not this rig's and that the query must not read. With
        ``network`` every connection goes through a proxy, which strikes may disturb. With
        ``daemons`` each stream's buffer is filled by ``spark-eoc receive``, and its lines come from
        a producer that is a process too: for RECEIVER and PRODUCER strikes. The
        script and the daemons live by ``clock``; the servers do if the caller started them so."""
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mariadb, self._redis = mariadb, redis
        self._name = f"rig_{uuid.uuid4().hex[:10]}"
        self._options = {"minPartitions": "2", "maxRowsPerTrigger": "2000", **(options or {})}
        self._writers = writers or {}
        self._network, self._daemons, self._clock = network, daemons, clock
        self._env = clock.environment if clock is not None else {}
        self.links: list[Proxy] = []
        self.receivers: dict[str, ReceiverDaemon] = {}
        self.targets: dict[str, Target] = {}
        self.feeders: dict[str, Feeder | ProducerProcess] = {}
        try:
            if mariadb is not None:
                self.targets[MYSQL] = self._mysql(mariadb)
            if redis is not None:
                self.targets[REDIS] = self._redis_target(redis)
        except BaseException:
            self.__exit__()
            raise
        self.job = Job(
            tuple(target.stream for target in self.targets.values()),
            str(self.folder),
            on_failure,
            settings or {},
        )
        self._per_second, self._limit = per_second, lines
        self._starting_at = starting_at
        self._counted_at, self._rows = 0.0, 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        for feeder in self.feeders.values():
            feeder.close()
        for receiver in self.receivers.values():
            receiver.close()
        for link in self.links:
            link.close()

    def feed(self) -> None:
        """Begins, or goes on, to send lines to every stream."""
        for sink, target in self.targets.items():
            if sink in self.feeders:
                self.feeders[sink].go_on()
            else:
                self.feeders[sink] = self._feeder(sink, Path(target.stream.folder))

    def _feeder(self, sink: str, folder: Path) -> Feeder | ProducerProcess:
        name, per_second = f"feeder-{sink}", self._per_second
        if self._daemons:
            return ProducerProcess.to(
                self._through(self.receivers[sink].port),
                folder / "producer",
                producer=name,
                kind=sink,
                limit=self._limit,
                per_second=per_second,
                env=self._env,
            )
        listen = self.targets[sink].stream.listen
        assert listen is not None
        port = self._through(int(listen.rpartition(":")[2]))
        lines = itertools.islice(made_up(sink), self._limit)
        return Feeder(port, name, folder / "transcript", lines, per_second=per_second)

    def progress(self) -> int:
        """Rows in the sink that has fewest: grows only while every query works.

        Counted twice a second at most, since that is work for the servers too.
        """
        if time.monotonic() - self._counted_at > _COUNT_EVERY_S:
            self._rows = min(target.count() for target in self.targets.values())
            self._counted_at = time.monotonic()
        return self._rows

    def supervise(
        self,
        *,
        env: Mapping[str, str] | None = None,
        on_event: Callable[[Event], None] = print,
        more: Mapping[Kill, Server] | None = None,
    ) -> Supervisor:
        """A supervisor of the job; entering it starts the first run. Feeds as well. ``more``
        servers than the sinks' may be killed, such as a cluster's worker."""
        self.feed()
        servers: dict[Kill, Any] = {
            Kill.MARIADB: self._mariadb,
            Kill.REDIS: self._redis,
            Kill.RECEIVER: list(self.receivers.values()),
            Kill.PRODUCER: [f for f in self.feeders.values() if isinstance(f, ProducerProcess)],
            **(more or {}),
        }
        return Supervisor(
            self.job.command(),
            folder=self.folder,
            progress=self.progress,
            env=env,
            servers={kind: server for kind, server in servers.items() if server is not None},
            links=self.links,
            clock=self._clock,
            on_event=on_event,
        )

    def settle(self, supervisor: Supervisor, timeout: float = 240.0) -> dict[str, Verdict]:
        """Pauses the feeders, waits until all is durable, in the sinks and committed, and checks.

        ``timeout`` is without a new row: a backlog takes as long as it takes. The verdict is also
        given when it does not settle in time: then it says what is missing.
        """
        for feeder in self.feeders.values():
            feeder.pause()
        try:
            supervisor.until(lambda: self.flushed, timeout=timeout, what="all lines durable")
            self._wait_for_rest(supervisor, timeout)
        except WaitTimeoutError as error:
            verdicts = self.verdicts()
            if all(verdict.clean for verdict in verdicts.values()):
                raise
            raise AssertionError(f"{error}; {self._describe(verdicts)}") from error
        return self.verdicts()

    def verdicts(self) -> dict[str, Verdict]:
        """What the checker says of every sink now; feeders must be paused."""
        return {sink: self.verdict(sink) for sink in self.targets}

    def verdict(self, sink: str) -> Verdict:
        """Of one sink. The buffer is compared unless it was trimmed."""
        target = self.targets[sink]
        there = read_buffer(target.stream.buffer)
        whole = bool(there) and there[0].offset <= self._starting_at
        lines = [line for line in there if line.offset >= self._starting_at]
        return check(
            [self.feeders[sink].transcript()],
            target.rows(),
            buffer=lines if whole else None,
            ledger=target.ledger(),
        )

    @property
    def settled(self) -> bool:
        """Whether every line is durable and in its sink, and no batch is open."""
        return self.flushed and self._drained()

    @property
    def flushed(self) -> bool:
        """Whether every feeder pauses, or has ended, and all that it sent is durable."""
        return all(feeder.flushed for feeder in self.feeders.values())

    def _drained(self) -> bool:
        return all(
            target.count() >= self.feeders[sink].acknowledged and target.closed
            for sink, target in self.targets.items()
        )

    def _wait_for_rest(self, supervisor: Supervisor, timeout: float) -> None:
        while True:
            before = self._in_sinks()
            try:
                supervisor.until(self._at_rest, timeout=timeout, what="all lines in the sinks")
            except WaitTimeoutError:
                if self._in_sinks() == before:
                    raise
            else:
                return

    def _in_sinks(self) -> list[int] | None:
        """Rows by sink; None while a server is down."""
        try:
            return [target.count() for target in self.targets.values()]
        except Exception:  # noqa: BLE001  whatever a driver raises means: not now
            return None

    def _at_rest(self) -> bool:
        """Drained, and Spark has committed its newest batch: it will not run that again."""
        return self._drained() and all(
            CheckpointWatch(target.stream.checkpoint, 0.0).idle for target in self.targets.values()
        )

    @staticmethod
    def _describe(verdicts: Mapping[str, Verdict]) -> str:
        return "; ".join(f"{sink}: {verdict}" for sink, verdict in verdicts.items())

    def _through(self, port: int) -> int:
        """The port to connect to instead: a proxy's, where there is one."""
        if not self._network:
            return port
        self.links.append(Proxy(port))
        return self.links[-1].port

    def _stream(self, sink: str, url: str, target: str) -> Stream:
        folder = self.folder / sink
        folder.mkdir()
        writer = self._writers.get(sink, {})
        listen, options = f"127.0.0.1:{free_port()}", self._options
        if not self._daemons:
            return Stream(sink, url, target, str(folder), listen, options, writer)
        # What the receiver is told there, the query is not; and nobody listens in the query.
        told = {row[1]: row[0] for row in FLAGS if row[1] in options}
        words = [word for option, flag in told.items() for word in (flag, options[option])]
        receiver = ReceiverDaemon.on(folder / "buffer", folder / "receiver", words, env=self._env)
        self.receivers[sink] = receiver
        others = {option: value for option, value in options.items() if option not in told}
        return Stream(sink, url, target, str(folder), None, others, writer)

    def _mysql(self, server: MariaDB) -> Target:
        server.query(f"CREATE DATABASE {self._name}")
        server.query(TABLE_SQL.format(table=f"{self._name}.landed"))
        table = f"{self._name}.landed"
        return Target(
            self._stream(MYSQL, _url(server.url(self._name), self._through(server.port)), "landed"),
            lambda: _with(server.connect(self._name), lambda c: mysql_rows(c, table)),
            lambda: int(str(server.query(f"SELECT COUNT(*) FROM {table}")[0][0])),  # noqa: S608
            lambda: _with(server.connect(self._name), mysql_ledger),
        )

    def _redis_target(self, server: Redis) -> Target:
        prefix = f"{self._name}:"
        ledger = f"{self._name}_ledger"
        self._writers = {**self._writers, REDIS: {"ledger": ledger, **self._writers.get(REDIS, {})}}
        return Target(
            self._stream(REDIS, _url(server.url(), self._through(server.port)), prefix),
            lambda: redis_rows(server.client(), prefix),
            lambda: redis_count(server.client(), prefix),
            lambda: redis_ledger(server.client(), ledger=ledger),
        )


def _url(url: str, port: int) -> str:
    """The same URL with another port."""
    parts = urlsplit(url)
    return url.replace(f":{parts.port}", f":{port}")


def _with(connection: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(connection)
    finally:
        connection.close()
