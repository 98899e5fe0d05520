"""README.md: its tables name what there is, and its examples run."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import spark_eoc
from spark_eoc import errors
from spark_eoc.cli.command import COMMANDS
from spark_eoc.sinks.writer import WriterOptions
from spark_eoc.source.options import OPTION_NAMES
from spark_eoc.testing import servers
from spark_eoc.testing.surgery import OPERATIONS
from spark_eoc.testing.wait import until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """The text of one section, up to the next of its level."""
    return README.partition(f"## {title}")[2].partition("\n## ")[0]


def first_cells(text: str) -> set[str]:
    """Names in back-ticks in the first cell of each row of a table."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([A-Za-z_]+)`", row)}


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


def test_non_guarantees_come_before_everything_else():
    """A reader learns first what is not promised."""
    assert re.findall(r"^## (.*)$", README, flags=re.M)[0] == "What it does not promise"


def test_the_source_table_has_every_option_and_no_other():
    """Documented and accepted are the same set."""
    assert first_cells(section("The source")) == set(OPTION_NAMES)


def test_every_error_in_the_table_exists():
    """A name that a reader searches for is one that can appear."""
    names = {name for name in first_cells(section("Trouble")) if name.endswith("Error")}
    assert len(names) > 8
    assert [n for n in names if not hasattr(errors, n) and not hasattr(servers, n)] == []


def test_make_targets_in_the_text_exist():
    """`make demo` and `make test`, and whatever else is named."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_files_that_are_linked_exist():
    """No dead links into the repository."""
    for path in re.findall(r"\]\(([A-Za-z_./0-9-]+)\)", README):
        assert (ROOT / path).exists(), path


def test_writer_arguments_of_the_table_exist():
    """Both writers take every argument that the common table lists."""
    names = first_cells(section("The writers"))
    assert "writer_id" in names
    for writer in (spark_eoc.MySQLWriter, spark_eoc.RedisWriter):
        shared = {field.name for field in dataclasses.fields(WriterOptions)}
        missing = names - set(inspect.signature(writer).parameters) - shared
        assert not missing, f"{writer.__name__} does not take {missing}"


def test_the_writers_lines_are_accepted():
    """They build writers; building one connects to nothing."""
    code = "\n".join(blocks(section("The writers")))
    names = {"MySQLWriter": spark_eoc.MySQLWriter, "RedisWriter": spark_eoc.RedisWriter}
    names["fan_out"] = spark_eoc.fan_out
    for line in filter(None, code.splitlines()):
        assert eval(line, dict(names)) is not None


def test_the_commands_of_the_table_are_those_that_there_are():
    """A new command is documented, and a documented one exists."""
    commands = set(re.findall(r"`spark-eoc ([a-z]+)", section("The command")))
    assert commands == set(COMMANDS)


@pytest.mark.timeout(600)
def test_the_harness_example_fails_as_the_text_says(tmp_path: Path):
    """Run as a newcomer does. It commits once a batch, so only a kill between that commit and
    Spark's own doubles rows: the harness aims there."""
    (code,) = blocks(section("Test your own query"))
    (tmp_path / "test_it.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    # A seed with two strikes that are aimed at that instant.
    command += ["--eoc-kinds=jvm", "--eoc-kills=2", "--eoc-rows=1200", "--eoc-seed=44"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]
    assert "NOT exactly once" in done.stdout
    assert "twice" in done.stdout
    assert "<h1>Not exactly once</h1>" in (tmp_path / "clicks.html").read_text()


def test_the_sink_of_your_own_keeps_the_contract(tmp_path):
    """The example's lines, as a test file beside the sink that it imports."""
    (code,) = blocks(section("A sink of your own"))
    (tmp_path / "test_orders.py").write_text(code)
    shutil.copy(ROOT / "tests/sinks/sqlite_sink.py", tmp_path)
    plugins = "-p spark_eoc.testing.plugin -p no:cacheprovider"
    done = subprocess.run(
        [sys.executable, "-m", *f"pytest -q {plugins} -k a_unit_is test_orders.py".split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


class LineServer:
    """What `nc -lk` is: accepts a connection and sends it the lines, then keeps it open."""

    def __init__(self, lines: list[str]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        text = "".join(f"{line}\n" for line in lines).encode()
        threading.Thread(target=self._serve, args=(text,), daemon=True).start()

    def _serve(self, text: bytes) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            connection.sendall(text)
            text = b""

    def close(self) -> None:
        self._listener.close()
        for connection in self._connections:
            connection.close()


@pytest.mark.usefixtures("stop_queries")
def test_the_ten_lines_run(spark, mariadb, tmp_path):
    """Copied as they are, with only addresses and paths put in."""
    (code,) = blocks(section("Ten lines"))
    assert len(code.splitlines()) == 10
    server = LineServer(["a", "b", "a", "a"])
    for theirs, ours in (
        ("mysql://app@db/shop", mariadb.url()),
        ('"port", 9999', f'"port", {server.port}'),
        ("/var/lib/eoc", str(tmp_path)),
    ):
        assert theirs in code
        code = code.replace(theirs, ours)
    mariadb.query("CREATE TABLE clicks (value VARCHAR(200) PRIMARY KEY, count BIGINT NOT NULL)")
    names = {"spark": spark}
    exec(code, names)
    try:
        until(
            lambda: counts(mariadb, names["query"]) == {"a": 3, "b": 1}, 90, "counts in the table"
        )
    finally:
        names["query"].stop()
        server.close()
        shutil.rmtree(tmp_path / "clicks", ignore_errors=True)


def counts(mariadb, query) -> dict[str, int]:
    assert query.exception() is None
    return dict(mariadb.query("SELECT value, count FROM clicks"))


def test_the_producer_example_sends_its_lines(tmp_path):
    """After `flush` both lines are in the buffer."""
    from spark_eoc.buffer import LogReader, LogWriter  # noqa: PLC0415
    from spark_eoc.receiver import Receiver, ReceiverOptions  # noqa: PLC0415

    writer = LogWriter.open(tmp_path / "buffer")
    receiver = Receiver(writer, ReceiverOptions(listen=("127.0.0.1", 0)))
    receiver.start()
    try:
        (code,) = blocks(section("Producers that can be killed"))
        exec(code.replace("9999", str(receiver.port)), {})
        assert LogReader(tmp_path / "buffer").end_offset() == 2
    finally:
        receiver.stop()
        writer.close()


def test_the_operations_of_surgery_are_those_that_there_are():
    """Named one by one."""
    listed = re.search(r"Operations:(.*?)\.\s", section("Test your own query"), re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([a-z_]+)`", listed[1])) == set(OPERATIONS)
