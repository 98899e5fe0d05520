"""pytest plugin: real servers, a warm Spark session, prefixes and seeds as fixtures.

Loaded by ``-p spark_eoc.testing.plugin`` or through the entry point of the installed package.
A fixture whose server is missing **fails** where ``CI`` is set, and skips elsewhere, saying what to
install. In CI too it only skips where fetching an optional server was tried and did not work.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from spark_eoc.testing import tiers

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_eoc.testing.chaos_fixture import ChaosRunner
    from spark_eoc.testing.clock import Clock
    from spark_eoc.testing.feeder import Feeder
    from spark_eoc.testing.kills import Kill
    from spark_eoc.testing.operating import SurgeryRunner
    from spark_eoc.testing.place import Place
    from spark_eoc.testing.proxy import Proxy
    from spark_eoc.testing.redis_cluster import RedisCluster
    from spark_eoc.testing.servers import MariaDB, Redis, Server, SqlServer

T = TypeVar("T", bound="Server | RedisCluster | Clock")

#: Kills of a soak, unless ``--eoc-kills`` says otherwise.
SOAK_KILLS = 400


class Database:
    """A fresh, empty database of a test on a server of the session, dropped afterwards."""

    def __init__(self, server: SqlServer, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def port(self) -> int:
        return self.server.port

    def url(self, *, port: int | None = None) -> str:
        """``mysql://root@127.0.0.1:PORT/NAME``; another ``port`` is for a proxy in between."""
        return f"mysql://root@127.0.0.1:{port or self.server.port}/{self.name}"

    def connect(self, **more: object) -> Any:
        """A new autocommit connection to this database."""
        return self.server.connect(self.name, **more)

    def query(self, sql: str, args: Any = None) -> list[tuple[Any, ...]]:
        """All rows of one statement, run on a connection of its own."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, args)
                return [tuple(row) for row in cursor.fetchall()]
        finally:
            connection.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--eoc-seed``, ``--eoc-kills``, ``--eoc-rows`` and ``--eoc-kinds``."""
    group = parser.getgroup("spark_eoc")
    group.addoption(
        "--eoc-kills",
        type=int,
        default=None,
        help="how often eoc_chaos and a soak kill; default: what the test says, 400 for a soak",
    )
    group.addoption(
        "--eoc-rows",
        type=int,
        default=None,
        help="how many lines eoc_chaos makes up; default: what the test says",
    )
    group.addoption(
        "--eoc-kinds",
        default=None,
        metavar="KIND,...",
        help="kinds of kills of eoc_chaos, such as jvm,python_worker; default: what the test says",
    )
    group.addoption(
        "--eoc-seed",
        type=int,
        default=None,
        help="seed of every random schedule; default: a new one, printed when a test fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Settings that Spark reads from the environment when it starts."""
    # Workers start with the python3 on PATH otherwise, which may lack pyarrow.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Adds the seed to the report of a failed test."""
    report = yield
    seed = getattr(item, "funcargs", {}).get("eoc_seed")
    if seed is not None and report.failed:
        report.sections.append(("spark_eoc seed", f"--eoc-seed={seed}"))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells the one that prints what tiers it used."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["spark_eoc_tiers"] = tiers.told()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The other end of that; a process that died has told nothing."""
    tiers.heard(getattr(node, "workeroutput", {}).get("spark_eoc_tiers", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Ends with a line for each tier of kills that was used."""
    for line in tiers.lines():
        terminalreporter.write_line(line)


@pytest.fixture
def eoc_seed(request: pytest.FixtureRequest) -> int:
    """Seed for everything random in the test; printed on failure, set by ``--eoc-seed``."""
    given: int | None = request.config.getoption("--eoc-seed")
    return secrets.randbelow(2**32) if given is None else given


@pytest.fixture
def eoc_kills(request: pytest.FixtureRequest) -> int:
    """How often a soak kills, set by ``--eoc-kills``."""
    kills: int | None = request.config.getoption("--eoc-kills")
    return SOAK_KILLS if kills is None else kills


@pytest.fixture
def eoc_chaos(request: pytest.FixtureRequest, tmp_path: Path, eoc_seed: int) -> ChaosRunner:
    """Puts a query of yours under kills: ``eoc_chaos(query, rows, ...)`` returns the report.

    See :class:`spark_eoc.testing.chaos_fixture.ChaosRunner` for what it takes.
    """
    from spark_eoc.testing.chaos_fixture import ChaosRunner, Given  # noqa: PLC0415  only if used

    option = request.config.getoption
    kinds = _kinds(option("--eoc-kinds"))
    given = Given(eoc_seed, option("--eoc-kills"), option("--eoc-rows"), kinds)
    return ChaosRunner(tmp_path, given)


@pytest.fixture
def eoc_place(tmp_path: Path) -> Place:
    """A temporary buffer, checkpoint and input folder, and a free port to listen on."""
    from spark_eoc.testing.place import Place  # noqa: PLC0415  only when it is used
    from spark_eoc.testing.ports import free_port  # noqa: PLC0415  only when it is used

    folder = tmp_path / "place"
    (folder / "input").mkdir(parents=True)
    return Place(
        folder=str(folder),
        input=str(folder / "input"),
        listen=f"127.0.0.1:{free_port()}",
        buffer=str(folder / "buffer"),
        checkpoint=str(folder / "checkpoint"),
    )


@pytest.fixture
def eoc_producer(tmp_path: Path) -> Iterator[Callable[..., Feeder]]:
    """``eoc_producer(port, lines)`` sends lines by the acknowledged protocol, in a thread, and
    writes down what it sent and was told: ``.transcript()``. Ends with the test."""
    from spark_eoc.testing.feeder import Feeder  # noqa: PLC0415  only when it is used

    with contextlib.ExitStack() as stack:

        def start(port: int, lines: Iterable[bytes], per_second: float = 500.0) -> Feeder:
            name = f"producer-{uuid.uuid4().hex[:8]}"
            feeder = Feeder(port, name, tmp_path / name, iter(lines), per_second=per_second)
            return stack.enter_context(feeder)

        yield start


@pytest.fixture
def eoc_surgery(spark: SparkSession, tmp_path: Path, eoc_seed: int) -> SurgeryRunner:
    """Starts a query of yours on an edited checkpoint: ``eoc_surgery(query, rows, operation)``.

    See :class:`spark_eoc.testing.operating.SurgeryRunner`, and for the names of operations
    :data:`spark_eoc.testing.surgery.OPERATIONS`.
    """
    from spark_eoc.testing.operating import SurgeryRunner  # noqa: PLC0415  only when it is used

    return SurgeryRunner(spark, tmp_path, eoc_seed)


@pytest.fixture
def eoc_random(eoc_seed: int) -> random.Random:
    """A generator with the test's seed."""
    return random.Random(eoc_seed)


@pytest.fixture
def prefix() -> str:
    """Letters, digits and underscores that no other test has; begins with a letter."""
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def server_named() -> Iterator[Callable[[str], Any]]:
    """``server_named("mysql")`` is the session's server of that name, running.

    Started when it is first asked for. The names are in :mod:`spark_eoc.testing.servers`.
    """
    from spark_eoc.testing.servers import KINDS  # noqa: PLC0415  heavy, only when it is used

    with contextlib.ExitStack() as stack:
        started: dict[str, Server] = {}

        def named(name: str) -> Server:
            if name not in started:
                started[name] = stack.enter_context(_start(KINDS[name].start))
            _revive(started[name])
            return started[name]

        yield named


@pytest.fixture(scope="session")
def mariadb_server(server_named: Callable[[str], Any]) -> MariaDB:
    """The session's MariaDB; a test that kills it restarts it. Most tests want ``mariadb``."""
    server: MariaDB = server_named("mariadb")
    return server


@pytest.fixture
def database_on(
    server_named: Callable[[str], Any], prefix: str
) -> Iterator[Callable[[str], Database]]:
    """``database_on("mysql")`` is this test's fresh database on that server of the session."""
    with contextlib.ExitStack() as stack:

        def on(name: str) -> Database:
            server = server_named(name)
            server.query(f"CREATE DATABASE `{prefix}`")
            stack.callback(_drop, server, prefix)
            return Database(server, prefix)

        yield on


@pytest.fixture
def mariadb(database_on: Callable[[str], Database]) -> Database:
    """A fresh database on the session's MariaDB; ``.url()``, ``.query()``, ``.connect()``."""
    return database_on("mariadb")


@pytest.fixture
def mysql(database_on: Callable[[str], Database]) -> Database:
    """The same on the session's MySQL."""
    return database_on("mysql")


@pytest.fixture
def redis_server(server_named: Callable[[str], Any]) -> Redis:
    """The session's Redis, running; use ``prefix`` in every key, since tests share it."""
    server: Redis = server_named("redis")
    return server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``own_server("mysql", options=["--require-secure-transport=ON"])``: of this test alone.

    ``options`` end its command line. With ``disk_mib`` it lies on a small disk, which
    ``.fill()`` fills up; where that can't be had the test is skipped.
    """
    from spark_eoc.testing.servers import KINDS  # noqa: PLC0415  heavy, only when it is used

    with contextlib.ExitStack() as stack:

        def own(
            name: str,
            options: Sequence[str] = (),
            *,
            disk_mib: int | None = None,
            env: Mapping[str, str] | None = None,
        ) -> Server:
            folder, kind = tmp_path / name, KINDS[name]
            return stack.enter_context(
                _start(lambda: kind.start(folder, options, disk_mib=disk_mib, env=env))
            )

        yield own


@pytest.fixture
def eoc_clock(tmp_path: Path) -> Iterator[Clock]:
    """A wall clock that jumps, for processes that get its ``environment``; see
    :mod:`spark_eoc.testing.clock`."""
    from spark_eoc.testing.clock import Clock  # noqa: PLC0415  only when it is used

    with _start(lambda: Clock(tmp_path / "clock")) as clock:
        yield clock


@pytest.fixture
def own_mariadb(own_server: Callable[..., Any]) -> MariaDB:
    """A MariaDB of this test alone, to be killed at will."""
    server: MariaDB = own_server("mariadb")
    return server


@pytest.fixture
def own_redis(own_server: Callable[..., Any]) -> Redis:
    """A Redis of this test alone, to be killed or filled at will."""
    server: Redis = own_server("redis")
    return server


@pytest.fixture(scope="session")
def _session_redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    from spark_eoc.testing.redis_cluster import RedisCluster  # noqa: PLC0415

    with _start(lambda: RedisCluster(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
def redis_cluster(_session_redis_cluster: RedisCluster) -> RedisCluster:
    """The session's Redis Cluster of three nodes, running; use ``prefix`` in every key."""
    _session_redis_cluster.revive()
    return _session_redis_cluster


@pytest.fixture
def own_redis_cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    """A Redis Cluster of this test alone, three nodes and a replica of each, to be killed at
    will."""
    from spark_eoc.testing.redis_cluster import RedisCluster  # noqa: PLC0415

    with _start(lambda: RedisCluster(tmp_path / "cluster", replicas=1)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One warm ``local[2]`` session a process; stop your queries, never the session."""
    from spark_eoc.testing.session import build_session  # noqa: PLC0415

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = build_session({"spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


@pytest.fixture
def stop_queries(spark: SparkSession) -> Iterator[None]:
    """Stops every streaming query that the test left running."""
    yield
    for query in spark.streams.active:
        query.stop()


def _kinds(text: str | None) -> list[Kill] | None:
    from spark_eoc.errors import ConfigError  # noqa: PLC0415  only when it is used
    from spark_eoc.testing.kills import Kill  # noqa: PLC0415  only when it is used

    if text is None:
        return None
    try:
        return [Kill.named(name.strip()) for name in text.split(",")]
    except ConfigError as error:
        raise pytest.UsageError(f"--eoc-kinds: {error}") from error


def _start(start: Callable[[], T]) -> T:
    from spark_eoc.testing.servers import MissingServerError  # noqa: PLC0415

    try:
        return start()
    except MissingServerError as error:
        if os.environ.get("CI") and not error.optional:
            pytest.fail(f"CI must have every server: {error}", pytrace=False)
        pytest.skip(str(error))


def _revive(server: Server) -> None:
    """A test before may have stopped or killed it."""
    if server.running:
        server.continue_()
    else:
        server.restart()


def _drop(server: SqlServer, database: str) -> None:
    """Ends what still holds locks in the database, then drops it."""
    _revive(server)
    for (thread,) in server.query(
        "SELECT id FROM information_schema.processlist WHERE db = %s", (database,)
    ):
        try:
            server.query(f"KILL {thread}")
        except Exception:  # noqa: BLE001, S112  it has ended by itself
            continue
    server.query(f"DROP DATABASE `{database}`")


@pytest.fixture
def proxy_to() -> Iterator[Callable[[int], Proxy]]:
    """``proxy_to(port)`` is a new TCP proxy to that local port, closed after the test."""
    from spark_eoc.testing.proxy import Proxy  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        yield lambda port: stack.enter_context(Proxy(port))
