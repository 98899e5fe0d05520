"""A server's process on a free port in a folder of its own: started, killed, stopped, restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from spark_eoc.errors import ConfigError, SparkEocError
from spark_eoc.testing.disks import SmallDisk
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.reaper import reaper
from spark_eoc.testing.wait import until

S = TypeVar("S", bound="Server")

_START_SECONDS = 60.0


class ServerStartError(SparkEocError):
    """The server ended or did not answer; the message ends with its own log."""


class Server:
    """One server process. A context manager: leaving it kills the process and deletes its folder.

    Subclasses say how to prepare the folder, which command to run and when it is ready.
    """

    name = "server"

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
    ) -> None:
        """``folder`` is made if need be and kept at close when it was given by the caller;
        ``options`` end the server's command line."""
        self.options = list(options)
        self._owns_folder = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"eoc-{self.name}-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._owns_folder:
            reaper().folder(str(self.folder))
        self.port = 0
        #: The small disk that it lies on, where it was started with ``disk_mib``.
        self.disk: SmallDisk | None = None
        #: Added to the environment of the process, from its next start on.
        self.env: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls: type[S],
        folder: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        *,
        disk_mib: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> S:
        """A running server that answers; raises MissingServerError or ServerStartError.

        With ``disk_mib`` its data are on a disk of that size, which :meth:`fill` fills up.
        ``env`` is added to its environment.
        """
        server = cls(folder, options)
        server.env.update(env or {})
        try:
            if disk_mib is not None:
                server.disk = SmallDisk(server._data, disk_mib)
            server._prepare()
            server._start_on_free_port()
        except BaseException:
            server.close()
            raise
        return server

    # what a subclass gives

    @property
    def _data(self) -> Path:
        """Where its data are; its log is in its folder."""
        return self.folder

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
    def ended(self) -> bool:
        """Whether the process has ended by itself, since it was started and not killed."""
        return self._process is not None and not self.running

    @property
    def exit_code(self) -> int | None:
        """Of a process that has ended by itself; negative for a signal."""
        return self._process.poll() if self._process is not None else None

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

    @property
    def can_fill(self) -> bool:
        """Whether :meth:`fill` can fill it up."""
        return self.disk is not None

    def fill(self, room: int = 0) -> None:
        """Fills it up, but for about ``room`` bytes; it stays so over kills and restarts."""
        self._own_disk().fill(room)

    def free(self) -> None:
        """Gives it room again, and starts it if it died for want of it."""
        self._own_disk().free()
        if self.ended:
            self.restart()

    def _own_disk(self) -> SmallDisk:
        if self.disk is None:
            raise ConfigError(
                f"this {self.name} lies on a disk that is not its own, and that is not filled up",
                next_step="start it with disk_mib=, which needs root",
            )
        return self.disk

    def close(self) -> None:
        """Kills the process and deletes the folder, unless the caller gave the folder."""
        self.kill()
        if self.disk is not None:
            self.disk.close()
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
                [*self._command(), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self.env},
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


def wait_gone(server: Server, timeout: float = 10.0) -> None:
    """Waits until the server's process has ended."""
    until(lambda: not server.running, timeout, f"{server.name} gone")
