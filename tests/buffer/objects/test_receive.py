"""`spark-eoc receive` into S3, as a process, and what the command line says about it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.buffer import LineBlock
from spark_eoc.buffer.opening import open_reader, open_writer
from spark_eoc.errors import ConfigError, LogError, UnacknowledgedError
from spark_eoc.producer import LineProducer
from spark_eoc.source.intake import Intake
from spark_eoc.source.options import parse_options
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until

CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]


@pytest.fixture
def begin():
    """Starts daemons that are ready; none is left behind, also when the test fails."""
    daemons = []

    def start(url, port):
        command = [*CLI, "receive", "--buffer", url, "--listen", f"127.0.0.1:{port}"]
        daemons.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        assert b"ready" in daemons[-1].stdout.readline()
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.kill()
        daemon.wait()


def test_a_daemon_that_is_killed_and_one_that_is_replaced_lose_nothing(s3_url, begin):
    """Every line once and in order over a SIGKILL and a take-over; the daemon that was replaced
    ends with FencedError and exit code 1, and no output holds a secret."""
    lines = [b"line %d" % number for number in range(300)]
    first, second = free_port(), free_port()
    daemon = begin(s3_url, first)
    producer = LineProducer("127.0.0.1", first, "p")
    for line in lines[:100]:
        producer.send(line)
    producer.flush(30)
    daemon.kill()
    daemon.communicate()
    old = begin(s3_url, first)
    for line in lines[100:200]:
        producer.send(line)
    producer.flush(30)
    new = begin(s3_url, second)
    producer.send(lines[200])
    _, said = old.communicate(timeout=30)
    assert old.returncode == 1
    assert b"FencedError" in said
    with pytest.raises(UnacknowledgedError):
        producer.close(0)
    with LineProducer("127.0.0.1", second, "p") as producer:
        for line in lines[producer.resume_from :]:
            producer.send(line)
        producer.flush(30)
    new.send_signal(signal.SIGTERM)
    _, more = new.communicate(timeout=30)
    assert new.returncode == 0, more
    shown = subprocess.run([*CLI, "buffer", "cat", s3_url], capture_output=True, check=True)
    assert shown.stdout.splitlines() == lines
    secret = os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    assert secret not in said + more + shown.stderr


def test_a_follower_sees_new_lines_within_its_interval(s3_url):
    """Without asking the store each time it is asked itself: 90 times a second when idle."""
    writer = open_writer(s3_url)
    reader = open_reader(s3_url)
    asked = []
    find = reader._objects.names
    reader._objects.names = lambda folder: asked.append(folder) or find(folder)
    for _ in range(1000):
        assert reader.end_offset() == 0
    assert len(asked) < 10
    writer.append(_block(b"a"), receive_time_us=1)
    writer.sync()
    until(lambda: reader.end_offset() == 1, 5, "the line is seen")
    writer.append(_block(b"b"), receive_time_us=1)
    reader.reach(writer.sync())
    assert reader.end_offset() == 2
    writer.close()


def _block(line):
    return LineBlock.from_lines([line])


def test_a_bucket_that_is_not_there_is_named_without_secrets(s3_server):
    """Writer and reader say which store and what it answered."""
    with pytest.raises(ConfigError, match="s3://nobody/b") as caught:
        open_writer("s3://nobody/b")
    assert "very-secret" not in str(caught.value)
    with pytest.raises(LogError, match="no buffer"):
        open_reader("s3://nobody/b").end_offset()


def test_a_port_that_a_killed_runner_still_has_is_waited_for(s3_url):
    """In a folder the lock makes a new runner wait; here there is none."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        options = parse_options({"bufferPath": s3_url, "listen": f"127.0.0.1:{port}"})
        intake = Intake(options)
        threading.Timer(0.5, held.close).start()
        intake.start()
    intake.check()
    assert intake.end_offset() == 0
    intake.stop()


def test_a_missing_package_names_the_command(monkeypatch):
    """The extra is optional, so people meet this."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'spark-eoc\[objectstore\]'"):
        open_reader("s3://bucket/b")
