"""MariaDB and MySQL as test servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pymysql

from spark_eoc.testing.programs import (
    MissingServerError,
    Program,
    private_program,
    system_program,
)
from spark_eoc.testing.reaper import reaper
from spark_eoc.testing.server import Server, ServerStartError


class SqlServer(Server):
    """What MariaDB and MySQL share; user ``root``, no password, on 127.0.0.1 and a socket."""

    def url(self, database: str = "", *, user: str = "root") -> str:
        """``mysql://root@127.0.0.1:PORT/DATABASE``."""
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}"

    @property
    def socket(self) -> str:
        """The path of its unix socket."""
        return f"{self._socket_folder}/s"

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

    # what a subclass gives

    def _program(self) -> Program:
        raise NotImplementedError

    def _bootstrap(self, data: Path) -> None:
        """Makes the system tables in an empty folder."""
        raise NotImplementedError

    _own_options: Sequence[str] = ()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _prepare(self) -> None:
        self._found = self._program()
        # A socket's path has at most 107 bytes, and test folders are deep.
        self._socket_folder = tempfile.mkdtemp(prefix="eoc-sock-")
        reaper().folder(self._socket_folder)
        data = self._data
        if not (data / "mysql").exists():
            data.mkdir(exist_ok=True)
            self._bootstrap(data)

    def _begin(self, data: Path) -> list[str]:
        """What every command line of the program begins with."""
        found = self._found
        return [
            *found.command,
            "--no-defaults",
            *found.options,
            f"--datadir={data}",
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def _command(self) -> list[str]:
        return [
            *self._begin(self._data),
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=1",
            "--innodb-buffer-pool-size=64M",
            "--key-buffer-size=1M",
            "--performance-schema=OFF",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
            *self._own_options,
        ]

    def _answers(self) -> bool:
        # Not over TCP, where the server may have been told to want TLS.
        try:
            self.connect(unix_socket=self.socket).close()
        except (pymysql.Error, OSError):
            return False
        return True

    def close(self) -> None:
        super().close()
        socket_folder = getattr(self, "_socket_folder", None)
        if socket_folder:
            shutil.rmtree(socket_folder, ignore_errors=True)
            reaper().forget(socket_folder)


class MariaDB(SqlServer):
    """MariaDB with small pools; user ``root``, no password, on 127.0.0.1 only.

    A small disk for it has at least 160 MiB. Filled up it refuses with error 1114 what needs room,
    and 10.11 may abort while it rolls that back.
    """

    name = "mariadb"
    _own_options = ("--innodb-log-file-size=64M", "--aria-pagecache-buffer-size=8M")

    def _program(self) -> Program:
        return system_program("mariadbd", "apt-get install -y mariadb-server-core")

    def _bootstrap(self, data: Path) -> None:
        # What mariadb-install-db does; that script needs my_print_defaults, which Debian ships in
        # the client's package only.
        made = subprocess.run(
            [*self._begin(data), "--bootstrap"],
            input=_system_tables(self._found.base),
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise ServerStartError(f"MariaDB can't make its system tables: {made.stderr[-2000:]!r}")


class MariaDB11(MariaDB):
    """MariaDB 11.8 in a private folder."""

    name = "mariadb11"

    def _program(self) -> Program:
        return private_program(self.name, "mariadbd")


class MySQL(SqlServer):
    """MySQL in a private folder, with its binary log on, as it comes."""

    name = "mysql"
    _own_options = ("--innodb-redo-log-capacity=64M", "--mysqlx=OFF", "--secure-file-priv=")

    def _program(self) -> Program:
        return private_program(self.name, "mysqld")

    def _bootstrap(self, data: Path) -> None:
        # Its root may log in from localhost only, and no name is looked up here.
        also = self.folder / "bootstrap.sql"
        also.write_text(
            "CREATE USER 'root'@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        made = subprocess.run(
            [*self._begin(data), "--initialize-insecure", f"--init-file={also}"],
            capture_output=True,
            check=False,
        )
        if made.returncode:
            raise ServerStartError(f"MySQL can't make its system tables: {made.stderr[-2000:]!r}")


def _system_tables(base: Path) -> bytes:
    """SQL that makes the system tables, with ``root`` and no password."""
    parts = [b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"]
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
