"""`spark-eoc receive` and `spark-eoc send`, as processes."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_eoc.buffer import LogReader
from spark_eoc.cli.command import build_parser
from spark_eoc.cli.receive import source_options
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until
from tests.receiver.conftest import stored

UNIT = Path(__file__).parents[2] / "conf" / "spark-eoc-receive.service"
CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]


@contextmanager
def receiving(path: Path, port: int, *more: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon that is ready; killed at the end if it still runs."""
    command = [*CLI, "receive", "--buffer", str(path), "--listen", f"127.0.0.1:{port}", *more]
    daemon = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env}
    )
    try:
        assert b"ready" in daemon.stdout.readline()
        yield daemon
    finally:
        daemon.kill()
        daemon.communicate()


def send(port: int, name: str, *args: str, data: bytes = b"", **env: str):
    return subprocess.run(
        [*CLI, "send", "--to", f"127.0.0.1:{port}", "--name", name, *args],
        input=data,
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **env},
    )


def test_files_are_sent_once_however_often_they_are_sent(tmp_path):
    """Also when the file has grown; a carriage return before the newline is no data."""
    file, path, port = tmp_path / "f", tmp_path / "b", free_port()
    file.write_bytes(b"a\r\nb\nc\n")
    with receiving(path, port):
        assert send(port, "n", str(file)).returncode == 0
        assert send(port, "n", str(file)).returncode == 0
        file.write_bytes(b"a\r\nb\nc\nd")
        result = send(port, "n", str(file), "--json")
        facts = json.loads(result.stdout)
        assert (facts["skipped"], facts["sent"], facts["acknowledged"]) == (3, 1, 1)
        assert facts["last_number"] == 4
    assert stored(path) == [b"a", b"b", b"c", b"d"]


def test_standard_input_is_new_unless_it_resumes(tmp_path):
    """What `command | spark-eoc send` means."""
    path, port = tmp_path / "b", free_port()
    with receiving(path, port):
        assert send(port, "n", data=b"1\n2\n").returncode == 0
        assert send(port, "n", data=b"3\n").returncode == 0
        assert send(port, "n", "--resume", data=b"1\n2\n3\n4\n").returncode == 0
    assert stored(path) == [b"1", b"2", b"3", b"4"]


def test_both_killed_in_the_middle_lose_and_double_nothing(tmp_path):
    """kill -9 of sender and daemon; each is started again with the same command."""
    file, path, port = tmp_path / "f", tmp_path / "b", free_port()
    lines = [b"%d" % number for number in range(400_000)]
    file.write_bytes(b"\n".join(lines))
    with receiving(path, port):
        sender = subprocess.Popen(
            [*CLI, "send", "--to", f"127.0.0.1:{port}", "--name", "n", str(file)]
        )
        until(lambda: LogReader(path).end_offset() > 0, 20, "the first lines")
        sender.kill()
        assert sender.wait() == -signal.SIGKILL
    before = LogReader(path).end_offset()
    with receiving(path, port):
        sender = subprocess.Popen(
            [*CLI, "send", "--to", f"127.0.0.1:{port}", "--name", "n", str(file)]
        )
        until(lambda: LogReader(path).end_offset() > before, 20, "more lines")
    with receiving(path, port):
        assert sender.wait(60) == 0
    assert stored(path) == lines


def test_the_daemon_tells_its_health_and_ends_cleanly(tmp_path):
    """One JSON object a line; SIGTERM makes what it has durable, and exits with 0."""
    path, port = tmp_path / "b", free_port()
    with (
        receiving(path, port, "--json", "--health-s", "0.1") as daemon,
        socket.create_connection(("127.0.0.1", port)) as sock,
    ):
        sock.sendall(b"plain\nunfinished")
        health = {}
        while health.get("lines") != 1 or health.get("unfinished_bytes") != 10:
            health = json.loads(daemon.stdout.readline())
            assert health["event"] == "health"
        assert (health["end_offset"], health["connections"]) == (1, 1)
        daemon.send_signal(signal.SIGTERM)
        rest, errors = daemon.communicate(timeout=20)
    assert daemon.returncode == 0, errors
    stopped = json.loads(rest.splitlines()[-1])
    assert (stopped["event"], stopped["lines"], stopped["dropped_unfinished"]) == ("stopped", 1, 1)
    assert stored(path) == [b"plain"]


def test_systemd_is_told_when_it_takes_lines_and_when_it_ends(tmp_path):
    """`Type=notify`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "s"))
        systemd.settimeout(20)
        with receiving(tmp_path / "b", free_port(), NOTIFY_SOCKET=str(tmp_path / "s")) as daemon:
            assert systemd.recv(100) == b"READY=1"
            daemon.send_signal(signal.SIGINT)
            assert systemd.recv(100) == b"STOPPING=1"
            assert daemon.wait(20) == 0


def test_the_unit_in_conf_starts_what_there_is(tmp_path):
    """Its command line is one of ours, and systemd has no complaint."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    service = unit["Service"]
    assert (service["Type"], service["KillSignal"]) == ("notify", "SIGTERM")
    program, *args = shlex.split(service["ExecStart"])
    parsed = build_parser().parse_args(args)
    assert source_options(parsed).listen == ("127.0.0.1", 9999)
    if shutil.which("systemd-analyze"):
        # The program of the example isn't installed here, nor is its user.
        copy = tmp_path / UNIT.name
        copy.write_text(UNIT.read_text().replace(program, sys.executable))
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert UNIT.name not in verified.stderr, verified.stderr


def test_a_second_daemon_on_the_buffer_is_refused(tmp_path):
    """One message that names the holder, exit code 1."""
    path, port = tmp_path / "b", free_port()
    with receiving(path, port) as daemon:
        command = [*CLI, "receive", "--buffer", str(path), "--listen", f"127.0.0.1:{free_port()}"]
        second = subprocess.run(command, capture_output=True, check=False, timeout=30)
        assert second.returncode == 1
        assert b"LogLockedError" in second.stderr
        assert str(daemon.pid).encode() in second.stderr


def test_the_secret_comes_from_the_environment(tmp_path):
    """A command line is seen by everybody on the machine."""
    path, port = tmp_path / "b", free_port()
    with receiving(path, port, SPARK_EOC_TOKEN="s3cret"):
        refused = send(port, "n", data=b"1\n")
        assert refused.returncode == 1
        assert b"token" in refused.stderr
        assert send(port, "n", data=b"1\n", SPARK_EOC_TOKEN="s3cret").returncode == 0
    assert stored(path) == [b"1"]
