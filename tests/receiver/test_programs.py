"""Real programs that know nothing of us: `nc`, `logger`, rsyslog."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_eoc.testing.ports import free_port
from spark_eoc.testing.programs import (
    MissingServerError,
    Program,
    private_program,
    system_program,
)
from spark_eoc.testing.wait import until

LINES = [b"line %d" % number for number in range(20_000)]
TEXT = b"".join(line + b"\n" for line in LINES)


def need(find: Callable[[], Program]) -> list[str]:
    """How its command begins; without it the test fails in CI, and is skipped on a laptop."""
    try:
        return list(find().command)
    except MissingServerError as error:
        if os.environ.get("CI") and not error.optional:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def netcat() -> list[str]:
    """That of OpenBSD, as Debian and others have it: `-N` ends the connection with the input."""
    names = ("nc.openbsd", "nc")
    name = next(filter(shutil.which, names), names[0])
    return need(lambda: system_program(name, "apt-get install -y netcat-openbsd"))


def logger() -> list[str]:
    """Of util-linux."""
    return need(lambda: system_program("logger", "apt-get install -y bsdutils"))


def test_netcat_sends_a_file(bench):
    """`nc -N host port < file`: every line, in order, and nc ends with 0."""
    receiver = bench.receive()
    command = [*netcat(), "-N", "127.0.0.1", str(receiver.port)]
    subprocess.run(command, input=TEXT, check=True, timeout=30)
    bench.wait_for(LINES)


def test_netcat_serves_a_file_to_one_connection(bench):
    """`nc -l port < file`, the usual partner of Spark's socket source: it takes one connection."""
    port = free_port()
    command = [*netcat(), "-l", "-N", "127.0.0.1", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        bench.receive(connect=("127.0.0.1", port))
        server.stdin.write(TEXT)
        server.stdin.close()
        bench.wait_for(LINES)


def test_logger_sends_its_messages(bench):
    """`logger -T -n host -P port`: one line for each, in the form that logger gives them."""
    receiver = bench.receive()
    command = [*logger(), "-T", "-n", "127.0.0.1", "-P", str(receiver.port)]
    subprocess.run(command, input=b"one\ntwo\n", check=True, timeout=30)
    subprocess.run([*command, "--rfc3164", "-t", "shop", "three"], check=True, timeout=30)
    until(lambda: receiver.stats().lines == 3, 10, "three lines")
    lines = bench.lines()
    assert all(line.startswith(b"<13>") for line in lines)
    assert [line.rpartition(b" ")[2] for line in lines] == [b"one", b"two", b"three"]


@pytest.fixture
def rsyslog(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """(its log socket, the port that it forwards to over TCP) of a running rsyslogd."""
    server = need(lambda: private_program("rsyslog", "rsyslogd"))
    modules = next(Path(server[-1]).parents[1].glob("lib/*/rsyslog"))
    # The path of a socket has at most 108 bytes.
    place, port = Path(os.path.relpath(tmp_path / "log")), free_port()
    (tmp_path / "conf").write_text(
        f'module(load="imuxsock" SysSock.Use="off")\n'
        f'input(type="imuxsock" Socket="{tmp_path}/log" RateLimit.Interval="0")\n'
        'template(name="bare" type="string" string="%msg:2:$%\\n")\n'
        f'action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" template="bare"\n'
        '       action.resumeRetryCount="-1" action.resumeInterval="1")\n'
    )
    command = [*server, "-n", "-M", str(modules)]
    command += ["-i", str(tmp_path / "pid"), "-f", str(tmp_path / "conf")]
    with (tmp_path / "said").open("wb") as said:
        daemon = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        until((tmp_path / "log").exists, 20, "rsyslogd's socket")
        yield place, port
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()


def test_rsyslog_forwards_and_comes_back_after_a_restart_of_ours(bench, rsyslog):
    """Its TCP client, omfwd, as it comes: all lines in order; after we were away it goes on by
    itself (what it sent into the broken connection is its own loss: it numbers nothing)."""
    place, port = rsyslog
    write = [*logger(), "-u", str(place)]
    receiver = bench.receive(listen=("127.0.0.1", port))
    lines = [b"number %d" % number for number in range(500)]
    subprocess.run(write, input=b"\n".join(lines), check=True, timeout=30)
    bench.wait_for(lines)
    receiver.stop()
    receiver = bench.receive(listen=("127.0.0.1", port))

    def comes_again() -> bool:
        subprocess.run([*write, f"after {time.monotonic()}"], check=True, timeout=30)
        return receiver.stats().lines > 0

    until(comes_again, 30, "a line after the restart")
    assert bench.lines()[:500] == lines
    assert bench.lines()[-1].startswith(b"after ")
