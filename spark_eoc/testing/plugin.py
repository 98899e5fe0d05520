"""pytest plugin: real servers, a warm Spark session, prefixes and seeds as fixtures.

Loaded by ``-p spark_eoc.testing.plugin`` or through the entry point of the installed package.
A fixture whose server binary is missing **fails** where ``CI`` is set, and skips elsewhere,
saying what to install.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_eoc.testing.proxy import Proxy
    from spark_eoc.testing.servers import MariaDB, Redis, Server

T = TypeVar("T", bound="Server")


class Database:
    """A fresh, empty database of a test on the session's MariaDB, dropped afterwards."""

    def __init__(self, server: MariaDB, name: str) -> None:
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
    """Adds ``--eoc-seed`` and ``--eoc-kills``."""
    group = parser.getgroup("spark_eoc")
    group.addoption(
        "--eoc-kills", type=int, default=100, help="how often the soak kills; default: 100"
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


@pytest.fixture
def eoc_seed(request: pytest.FixtureRequest) -> int:
    """Seed for everything random in the test; printed on failure, set by ``--eoc-seed``."""
    given: int | None = request.config.getoption("--eoc-seed")
    return secrets.randbelow(2**32) if given is None else given


@pytest.fixture
def eoc_kills(request: pytest.FixtureRequest) -> int:
    """How often a soak kills, set by ``--eoc-kills``."""
    kills: int = request.config.getoption("--eoc-kills")
    return kills


@pytest.fixture
def eoc_random(eoc_seed: int) -> random.Random:
    """A generator with the test's seed."""
    return random.Random(eoc_seed)


@pytest.fixture
def prefix() -> str:
    """Letters, digits and underscores that no other test has; begins with a letter."""
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """The session's MariaDB; a test that kills it restarts it. Most tests want ``mariadb``."""
    from spark_eoc.testing.servers import MariaDB  # noqa: PLC0415  heavy, only when it is used

    server = _start(MariaDB.start)
    yield server
    server.close()


@pytest.fixture
def mariadb(mariadb_server: MariaDB, prefix: str) -> Iterator[Database]:
    """A fresh database on the session's MariaDB; ``.url()``, ``.query()``, ``.connect()``."""
    _revive(mariadb_server)
    mariadb_server.query(f"CREATE DATABASE `{prefix}`")
    yield Database(mariadb_server, prefix)
    _revive(mariadb_server)
    _drop(mariadb_server, prefix)


@pytest.fixture(scope="session")
def _session_redis() -> Iterator[Redis]:
    from spark_eoc.testing.servers import Redis  # noqa: PLC0415  heavy, only when it is used

    server = _start(Redis.start)
    yield server
    server.close()


@pytest.fixture
def redis_server(_session_redis: Redis) -> Redis:
    """The session's Redis, running; use ``prefix`` in every key, since tests share it."""
    _revive(_session_redis)
    return _session_redis


@pytest.fixture
def own_mariadb(tmp_path: Path) -> Iterator[MariaDB]:
    """A MariaDB of this test alone, to be killed at will."""
    from spark_eoc.testing.servers import MariaDB  # noqa: PLC0415  heavy, only when it is used

    with _start(lambda: MariaDB.start(tmp_path / "mariadb")) as server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis of this test alone, to be killed or filled at will."""
    from spark_eoc.testing.servers import Redis  # noqa: PLC0415  heavy, only when it is used

    with _start(lambda: Redis.start(tmp_path / "redis")) as server:
        yield server


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


def _start(start: Callable[[], T]) -> T:
    from spark_eoc.testing.servers import MissingServerError  # noqa: PLC0415

    try:
        return start()
    except MissingServerError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have every server: {error}", pytrace=False)
        pytest.skip(str(error))


def _revive(server: Server) -> None:
    """A test before may have stopped or killed it."""
    if server.running:
        server.continue_()
    else:
        server.restart()


def _drop(server: MariaDB, database: str) -> None:
    """Ends what still holds locks in the database, then drops it."""
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
