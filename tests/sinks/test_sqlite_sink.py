"""The example sink keeps the contract, and is exactly once on real Spark that is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.failpoints import ENVIRONMENT
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.sink_contract import SinkContract
from tests.sinks.sqlite_sink import SQLiteSink


class TestSQLite(SinkContract):
    """A file of its own for each test."""

    @pytest.fixture(autouse=True)
    def _table(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "shop.db")
        self.query("CREATE TABLE orders (id INTEGER, v TEXT)")

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(sql).fetchall()

    def make_sink(self) -> SQLiteSink:
        return SQLiteSink(self.path, "orders")

    def rows_in_sink(self) -> list[int]:
        return [row[0] for row in self.query("SELECT id FROM orders")]

    def history_entries(self) -> int:
        return int(self.query("SELECT COUNT(*) FROM eoc_history")[0][0])

    def cut_off(self, sink: Sink) -> Sink:
        assert isinstance(sink, SQLiteSink)
        return replace(sink, path=self.path + ".gone", busy_s=1)

    @contextmanager
    def lost_answer(self) -> Iterator[None]:
        """COMMIT is done, and fails."""

        class Lossy(sqlite3.Connection):
            lost = False

            def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                done = super().execute(sql, *arguments)
                if sql == "COMMIT" and not Lossy.lost:
                    Lossy.lost = True
                    raise sqlite3.OperationalError("disk I/O error")
                return done

        real = sqlite3.connect
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, factory=Lossy, **k))
            yield


JOB = Path(__file__).with_name("sqlite_job.py")
ROOT = Path(__file__).parents[2]


def run_job(folder: Path, failpoint: str) -> int:
    """How the query's process ended."""
    with (folder / "log").open("ab") as log:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), ENVIRONMENT: failpoint}
        command = [sys.executable, str(JOB), str(folder)]
        return subprocess.run(
            command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=200, check=False
        ).returncode


def test_it_is_exactly_once_on_spark_that_is_killed(tmp_path: Path) -> None:
    """E1: the driver is killed when batch 1 is complete and Spark doesn't know; the restarted
    query reads it again, and goes on."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        lines = [f'{{"id": {n}, "v": "v{n}"}}\n' for n in range(100 * number, 100 * number + 100)]
        (folder / f"{number}.json").write_text("".join(lines))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, v TEXT)")
    ends = [run_job(tmp_path, point) for point in ("batch.after_close:2=kill", "")]
    assert ends == [-signal.SIGKILL, 0], (tmp_path / "log").read_text()[-3000:]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = connection.execute("SELECT id, v FROM orders ORDER BY id").fetchall()
        done = connection.execute("SELECT COUNT(*) FROM eoc_history").fetchone()
    assert found == [(n, f"v{n}") for n in range(300)]
    assert done == (3,)
