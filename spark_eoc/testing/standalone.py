"""Spark's own standalone cluster: a master and workers, each a process of its own.

with SparkMaster.start() as master, master.worker() as one, master.worker() as other:
    settings = {"spark.master": master.url}
    one.kill()          # its executors go with it
    one.restart()
"""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pyspark

from spark_eoc.testing.ports import accepts, free_port
from spark_eoc.testing.reaper import kill_session
from spark_eoc.testing.server import Server


class _SparkProcess(Server):
    """One JVM that Spark's launcher starts, from the installed pyspark."""

    def _launcher(self, kind: str, *arguments: str) -> list[str]:
        home = Path(pyspark.__file__).parent
        # The executors of a worker find Python and the loopback address in its environment.
        return [
            "env",
            f"SPARK_HOME={home}",
            "SPARK_LOCAL_IP=127.0.0.1",
            "SPARK_NO_DAEMONIZE=1",
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
        ]

    def kill(self) -> None:
        """SIGKILL to the process and to all that it has started."""
        pid = self._process.pid if self._process is not None else None
        super().kill()
        if pid is not None:
            kill_session(pid)


class SparkMaster(_SparkProcess):
    """A standalone master on 127.0.0.1."""

    name = "spark_master"

    @property
    def url(self) -> str:
        """For ``spark.master``."""
        return f"spark://127.0.0.1:{self.port}"

    def worker(self) -> SparkWorker:
        """A new worker of one core and 1 GiB."""
        folder = self.folder / f"worker-{free_port()}"
        worker = SparkWorker(folder)
        worker.master = self
        worker._start_on_free_port()
        return worker

    @property
    def alive_workers(self) -> int:
        """How many workers the master counts on."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
            return bytes(answer.read()).count(b'"ALIVE"') - 1  # one is the master's own state

    def _prepare(self) -> None:
        self._page = free_port()

    def _command(self) -> list[str]:
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._page))
        return self._launcher("master.Master", *place)

    def _answers(self) -> bool:
        return accepts(self.port) and accepts(self._page)


class SparkWorker(_SparkProcess):
    """A worker of a :class:`SparkMaster`; made by :meth:`SparkMaster.worker`."""

    name = "spark_worker"
    master: SparkMaster

    def _command(self) -> list[str]:
        size = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0")
        work = ("--port", str(self.port), "--work-dir", os.fspath(self.folder / "work"))
        return self._launcher("worker.Worker", *size, *work, self.master.url)

    def _answers(self) -> bool:
        return accepts(self.port)
