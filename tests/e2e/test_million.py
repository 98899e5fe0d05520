"""A million lines from producer to table, through kills of every part on the way.

``--eoc-rows`` and ``--eoc-kills`` make it shorter; the seed is printed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from spark_eoc.buffer.interface import BufferReader
from spark_eoc.buffer.opening import holds_buffer, open_reader
from spark_eoc.errors import LogError
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.processes import ScriptRun
from spark_eoc.testing.proxy import Proxy
from spark_eoc.testing.wait import until
from tests.buffer.objects.conftest import s3_server, s3_url  # noqa: F401  fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]
PARTS = ("receiver", "link", "producer")


class Restarted:
    """A process that is started again whenever it ends, until it ends with 0 or is let go."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.starts = 0
        self._command = command
        self._log = log
        self._over = False
        self._process: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        while not self._over:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=log, env=environment
                )
            self.starts += 1
            if self._process.wait() == 0:
                return

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return not self._thread.is_alive()

    def kill(self) -> None:
        """SIGKILL of one that wasn't killed yet; it comes back by itself."""
        until(lambda: self.done or self._running(), 60, "a process to kill")
        self._killed = self._process
        if self._process is not None:
            self._process.kill()

    def _running(self) -> bool:
        process = self._process
        return process is not None and process.returncode is None and process is not self._killed

    def close(self) -> None:
        self._over = True
        while self._thread.is_alive():
            if self._process is not None:
                self._process.kill()
            self._thread.join(0.1)


class Way:
    """File, `spark-eoc send`, a link, `spark-eoc receive`, buffer."""

    def __init__(
        self, name: str, lines: list[bytes], buffer: str, folder: Path, seconds: int
    ) -> None:
        """The lines take about ``seconds``, so that kills and take-overs find it at work."""
        file, port = folder / name, free_port()
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        rate = str(file.stat().st_size // seconds)
        command = [*CLI, "receive", "--buffer", buffer, "--max-bytes-per-second", rate]
        self._log = folder / f"receiver-{name}.log"
        self.receiver = Restarted([*command, "--listen", f"127.0.0.1:{port}"], self._log)
        self.proxy = Proxy(port)
        to = f"127.0.0.1:{self.proxy.port}"
        self.producer = Restarted(
            [*CLI, "send", "--to", to, "--name", name, str(file)], folder / f"producer-{name}.log"
        )

    def strike(self, part: str) -> None:
        """Kills one part."""
        if part == "link":
            self.proxy.cut_all()
        else:
            getattr(self, part).kill()

    @property
    def fenced(self) -> int:
        """How often its receiver ended because the other had taken over."""
        return self._log.read_text().count("spark-eoc: FencedError")

    def close(self) -> None:
        self.producer.close()
        self.receiver.close()
        self.proxy.close()


class Query:
    """The script with the writer; killed whole, and started again."""

    def __init__(self, buffer: str, folder: Path, url: str) -> None:
        script = str(Path(__file__).with_name("million_query.py"))
        self._command = [sys.executable, script, buffer, str(folder / "checkpoint"), url]
        self._log = folder / "query.log"
        self.start()

    def start(self) -> None:
        self.run = ScriptRun.start(self._command, log=self._log)

    def strike(self) -> None:
        self.run.kill_all()
        self.start()


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_million_lines_reach_the_table_exactly_once(
    request: pytest.FixtureRequest, tmp_path: Path, mariadb: Database, eoc_seed: int, kind: str
):
    """Receiver, link and producer are each killed 50 times, the query every tenth time. In S3 two
    receivers, with a producer each, take the buffer from one another all the time."""
    rows = request.config.getoption("--eoc-rows") or 1_000_000
    kills = request.config.getoption("--eoc-kills") or 50
    mariadb.query("CREATE TABLE t (value VARCHAR(100), `offset` BIGINT) ENGINE=InnoDB")
    buffer = request.getfixturevalue("s3_url") if kind == "s3" else str(tmp_path / "buffer")
    names = ("a", "b") if kind == "s3" else ("a",)
    lines = {name: lines_of(name, rows // len(names)) for name in names}
    ways = [Way(name, sent, buffer, tmp_path, 2 * kills) for name, sent in lines.items()]
    try:
        until(lambda: holds_buffer(buffer), 60, "a buffer")
        query = Query(buffer, tmp_path, mariadb.url())
        try:
            rng = random.Random(eoc_seed)
            struck = carry_out(plan(rng, rows, kills), rng, open_reader(buffer), ways, query)
            until(lambda: all(way.producer.done for way in ways), 1800, "all producers' end")
            until(lambda: count(mariadb) >= rows or not query.run.running, 1800, "all rows")
            assert query.run.running, query.run.log[-3000:]
        finally:
            query.run.kill_all()
    finally:
        for way in ways:
            way.close()
    fenced = sum(way.fenced for way in ways)
    print(f"\n{kind}, --eoc-seed={eoc_seed}: {rows} lines, kills {struck}, {fenced} take-overs")
    assert fenced >= kills * (len(ways) - 1) // 2
    compare(mariadb, lines)


def lines_of(name: str, count: int) -> list[bytes]:
    return [b"%s %d %s" % (name.encode(), number, b"x" * 45) for number in range(count)]


def plan(rng: random.Random, rows: int, kills: int) -> list[tuple[int, str]]:
    """(how many lines are durable, which part is killed then), rising."""
    parts = list(PARTS) * kills + ["query"] * max(1, kills // 10)
    rng.shuffle(parts)
    places = sorted(rng.sample(range(1, rows - rows // 50), len(parts)))
    return list(zip(places, parts, strict=True))


def carry_out(
    strikes: list[tuple[int, str]],
    rng: random.Random,
    reader: BufferReader,
    ways: list[Way],
    query: Query,
) -> dict[str, int]:
    """Kills; how often each part."""
    for place, part in strikes:
        until(lambda: reached(reader, place), 300, f"line {place}", interval=0.002)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.02))
        query.strike() if part == "query" else rng.choice(ways).strike(part)
    return dict(Counter(part for _, part in strikes))


def reached(reader: BufferReader, place: int) -> bool:
    try:
        return reader.end_offset() >= place
    except LogError:
        return False


def count(mariadb: Database) -> int:
    return mariadb.query("SELECT COUNT(*) FROM t")[0][0]


def compare(mariadb: Database, lines: dict[str, list[bytes]]) -> None:
    """Every offset once, and every producer's lines once and in their order."""
    found = mariadb.query("SELECT `offset`, value FROM t ORDER BY `offset`")
    assert [row[0] for row in found] == list(range(sum(map(len, lines.values()))))
    for name, sent in lines.items():
        own = [row[1].encode() for row in found if row[1].startswith(name)]
        assert own == sent, f"lines of {name}"
