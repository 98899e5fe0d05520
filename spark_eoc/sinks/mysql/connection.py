"""Connections, their session settings, and what an error of the server means."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pymysql
from pymysql.constants import CLIENT

from spark_eoc.errors import SinkError, SinkUnavailableError, SparkEocError
from spark_eoc.sinks.mysql.address import Address
from spark_eoc.sinks.mysql.client import Client
from spark_eoc.sinks.mysql.login import refused_login

T = TypeVar("T")

#: Seconds that a transaction may idle, wait for a lock, or wait for the network.
TIME_LIMIT_S = 10
# A statement of many rows may wait for a lock more than once.
_READ_TIMEOUT_S = 60
_PACKET_HEADER = 64
_SQL_MODE = (
    "STRICT_TRANS_TABLES,STRICT_ALL_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"
)
_SESSION = (
    "SET SESSION sql_mode='{mode}', time_zone='+00:00', autocommit=1, foreign_key_checks=1, "
    "unique_checks=1, innodb_lock_wait_timeout={limit}, lock_wait_timeout={limit}, "
    "net_read_timeout={limit}, net_write_timeout={limit}, {idle}={limit}"
)
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"

LOCK_WAIT, DEADLOCK, CHANGED, DUPLICATE = 1205, 1213, 1020, 1062
DUPLICATE_COLUMN = 1060
#: Errors that may pass: locks, lost or refused connections, a server that starts or stops, space.
TRANSIENT = frozenset(
    {LOCK_WAIT, DEADLOCK, CHANGED}
    | {1021, 1037, 1040, 1041, 1053, 1077, 1079, 1080, 1105, 1114, 1129, 1158, 1159, 1160, 1161}
    | {1180, 1184, 1203, 1226, 1290, 1317, 1836, 1927, 1969, 2002, 2003, 2006, 2013, 2014, 2027}
    | {2055, 3024, 3100, 3101, 4031}
)
#: Errors that a row's content makes. None of the whole table, such as a column that has come to be
#: needed since the run began (1364).
CONTENT = frozenset(
    {1048, 1062, 1118, 1153, 1169, 1216, 1263, 1264, 1265, 1292, 1300, 1366, 1367, 1406, 1411}
    | {1416, 1425, 1427, 1451, 1452, 1526, 1586, 1644, 1690, 1748, 3140, 3141, 3156, 3819, 4025}
)


@dataclass(frozen=True)
class Flavour:
    """Which server this is, as its greeting says."""

    mariadb: bool
    version: tuple[int, ...]

    @classmethod
    def of(cls, greeting: str) -> Flavour:
        """From a version text such as ``5.5.5-10.11.14-MariaDB`` or ``8.0.36``."""
        mariadb = "mariadb" in greeting.lower()
        text = greeting.removeprefix("5.5.5-") if mariadb else greeting
        found = re.match(r"\d+(\.\d+)*", text)
        return cls(mariadb, tuple(map(int, found.group().split("."))) if found else ())

    @property
    def row_alias(self) -> bool:
        """Whether ``VALUES … AS alias`` is the way to name a new row (else ``VALUES(column)``)."""
        return not self.mariadb and self.version >= (8, 0, 20)


def connect(address: Address, *, local_files: bool = False) -> Any:
    """A connection in a strict, UTC, utf8mb4, READ COMMITTED session with short time limits.

    With ``local_files`` the server may be asked to ask for a file; see :mod:`.load`. What is
    refused for good, such as a login or a certificate, is a SinkError or a ConfigError.
    """
    connection = Client(
        address.tls is not None,
        host=address.host,
        port=address.port,
        user=address.user,
        # PyMySQL would take Latin-1, and the server has hashed UTF-8.
        password=address.password.reveal().encode(),
        database=address.database,
        unix_socket=address.unix_socket,
        ssl=address.tls.context() if address.tls else None,
        ssl_disabled=address.plain,
        charset="utf8mb4",
        connect_timeout=address.seconds("connect_timeout", TIME_LIMIT_S),
        read_timeout=address.seconds("read_timeout", _READ_TIMEOUT_S),
        write_timeout=address.seconds("write_timeout", _READ_TIMEOUT_S),
        # "affected" would count an upsert that changes nothing as 0 rows.
        client_flag=CLIENT.FOUND_ROWS | (CLIENT.LOCAL_FILES if local_files else 0),
        autocommit=None,
        # This would let a server read any file of this host.
        local_infile=False,
        defer_connect=True,
    )
    try:
        connection.connect()
        _set_session(connection, address)
    except (pymysql.MySQLError, OSError, RuntimeError) as error:
        discard(connection)
        refused = refused_login(error, str(address))
        if refused is not None:
            raise refused from error
        raise
    except BaseException:
        discard(connection)
        raise
    return connection


def _set_session(connection: Client, address: Address) -> None:
    mariadb = flavour(connection).mariadb
    idle = "idle_transaction_timeout" if mariadb else "wait_timeout"
    connection.query(_SESSION.format(mode=_SQL_MODE, limit=TIME_LIMIT_S, idle=idle))
    connection.query(_ISOLATION)
    limit = address.seconds("max_statement_time", 0)
    if limit:
        # MySQL counts milliseconds, and only for SELECT.
        name = (
            f"max_statement_time={limit}" if mariadb else f"max_execution_time={limit * 1000:.0f}"
        )
        connection.query(f"SET SESSION {name}")


def flavour(connection: Any) -> Flavour:
    """The server's flavour, as its greeting told."""
    return Flavour.of(connection.get_server_info())


def max_packet(connection: Any) -> int:
    """The bytes that one statement may have."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        return int(cursor.fetchone()[0]) - _PACKET_HEADER


def discard(connection: Any) -> None:
    """Rolls back if it still can, and closes; never raises."""
    with suppress(Exception):
        connection.rollback()
    with suppress(Exception):
        connection.close()


@contextmanager
def transaction(address: Address, *, local_files: bool = False) -> Iterator[Any]:
    """A connection inside BEGIN; the block commits itself. Whatever is not committed, is not."""
    connection = connect(address, local_files=local_files)
    try:
        connection.query("BEGIN")
        yield connection
    finally:
        discard(connection)


def number(error: Exception) -> int:
    """The error's number; 2013 (connection lost) for what pymysql does not number."""
    found = error.args[0] if error.args else None
    if isinstance(error, pymysql.MySQLError) and isinstance(found, int) and found:
        return found
    return 2013


def message(error: Exception) -> str:
    """The server's own text."""
    return str(error.args[1] if len(error.args) > 1 else error)


class Budget:
    """How long errors that may pass are tried again: minutes, not a number of tries."""

    def __init__(self, seconds: float, address: Address) -> None:
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._address = address
        self._tries = 0

    def spend(self, error: Exception, what: str, passing: frozenset[int] = TRANSIENT) -> None:
        """Waits a little before another try; raises SinkUnavailableError when all is spent.

        An error that can't pass is raised as SinkError at once.
        """
        if number(error) not in passing:
            raise SinkError(
                f"{what} failed: error {number(error)}, {message(error)}",
                applied="nothing by this step",
                next_step="see what the server says; the batch is tried again at a restart",
                error=number(error),
            ) from error
        self._tries += 1
        if time.monotonic() >= self._deadline:
            raise self._spent(error, what) from error
        time.sleep(random.uniform(0.02, min(2.0, 0.05 * 2**self._tries)))

    def _spent(self, error: Exception, what: str) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"{what} at {self._address} failed {self._tries} times in {self._seconds:.0f} s, at "
            f"last with error {number(error)}, {message(error)}{self._blockers(error)}",
            applied="nothing by this step",
            next_step="mend the server or end the session that blocks, then restart the query",
            error=number(error),
        )

    def _blockers(self, error: Exception) -> str:
        if number(error) not in (LOCK_WAIT, DEADLOCK):
            return ""
        try:
            return _blockers(self._address)
        except (pymysql.MySQLError, OSError, SparkEocError):
            return " (who blocks can't be seen: the PROCESS privilege is missing)"


def _blockers(address: Address) -> str:
    connection = connect(address)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT trx_mysql_thread_id, trx_rows_locked FROM information_schema.innodb_trx "
                "WHERE trx_state <> 'LOCK WAIT' ORDER BY trx_started LIMIT 3"
            )
            found = cursor.fetchall()
    finally:
        discard(connection)
    if not found:
        return ""
    # No statement's text: it may hold another user's data.
    who = ", ".join(f"connection {thread} with {locked} row locks" for thread, locked in found)
    return f" (oldest open transactions: {who})"


def repeat(address: Address, budget_s: float, what: str, step: Callable[[Any], T]) -> T:
    """Runs ``step`` in a transaction and commits, again while errors may pass.

    ``step`` must be safe to run again after its COMMIT's answer was lost. Two drivers that both
    insert a first entry meet error 1062, which passes too.
    """
    budget = Budget(budget_s, address)
    while True:
        try:
            with transaction(address) as connection:
                result = step(connection)
                connection.query("COMMIT")
                return result
        except (pymysql.MySQLError, OSError) as error:
            budget.spend(error, what, TRANSIENT | {DUPLICATE})
