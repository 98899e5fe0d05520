"""Queries that fill their own buffer: receiving, the writer's lock, taking over."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from spark_eoc.buffer.block import LineBlock
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.errors import ConfigError, SparkEocError
from spark_eoc.source.attachment import attach
from spark_eoc.source.intake import buffer_options, receiver_options
from spark_eoc.source.options import parse_options
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until

pytestmark = pytest.mark.compat


def numbers(start, end):
    return [str(number) for number in range(start, end)]


def send(port, lines):
    """Sends and closes, once the port is open."""

    def connected():
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            return None

    with until(connected, 60, f"port {port}") as connection:
        connection.sendall(b"".join(line.encode() + b"\n" for line in lines))


def test_listen_accepts_many_senders(start, tmp_path):
    port = free_port()
    run = start(path=tmp_path / "b", listen=f"127.0.0.1:{port}")
    for part in range(3):
        send(port, numbers(100 * part, 100 * part + 100))
    assert sorted(run.drain(300).values, key=int) == numbers(0, 300)


def test_lines_survive_a_restart_and_the_port_is_free_again(start, tmp_path):
    port = free_port()
    run = start(path=tmp_path / "b", listen=f"127.0.0.1:{port}")
    send(port, numbers(0, 50))
    run.drain(50).settle().stop()
    again = start(path=tmp_path / "b", listen=f"127.0.0.1:{port}")
    send(port, numbers(50, 100))
    assert again.drain(50).values == numbers(50, 100)


def test_another_runner_reads_at_once_and_takes_over_when_the_lock_is_free(tmp_path):
    """A crashed run's successor must not wait for the lock to serve what is durable."""
    path, port = tmp_path / "b", free_port()
    writer = LogWriter.open(path)
    writer.append(block("a", "b"), receive_time_us=1)
    writer.sync()
    options = parse_options({"bufferPath": str(path), "listen": f"127.0.0.1:{port}"})
    opened = attach(options)
    try:
        assert opened.log.end_offset() == 2
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        writer.close()
        send(port, ["c"])
        until(lambda: opened.log.end_offset() == 3, 30, "the line by the new writer")
    finally:
        opened.close()


def test_a_stopped_writer_is_named_and_with_takeoverms_killed(tmp_path, caplog):
    """A stopped holder keeps lock and port; only with the option, and only it, is killed."""
    path, port = tmp_path / "b", free_port()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline()
        os.kill(holder.pid, signal.SIGSTOP)
        given = {"bufferPath": str(path), "listen": f"127.0.0.1:{port}"}
        waiting = attach(parse_options(given))
        assert f"process {holder.pid}" in caplog.text
        assert "stopped" in caplog.text
        waiting.close()
        taking = attach(parse_options({**given, "takeoverMs": "300"}))
        try:
            send(port, ["x"])
            until(lambda: taking.log.end_offset() == 1, 30, "a line after the takeover")
            assert holder.wait(10) == -signal.SIGKILL
        finally:
            taking.close()
    finally:
        holder.kill()
        holder.wait()


HOLDER = """
import sys, time
from spark_eoc.buffer.writer import LogWriter
writer = LogWriter.open(sys.argv[1])
print("open", flush=True)
time.sleep(600)
"""


def test_a_port_in_use_is_refused_in_plain_words(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = parse_options({"bufferPath": str(tmp_path / "b"), "listen": f"127.0.0.1:{port}"})
        with pytest.raises(ConfigError, match="can't listen") as caught:
            attach(options)
    assert "free port" in str(caught.value)
    LogWriter.open(tmp_path / "b").close()


def test_a_path_that_cannot_be_written_is_refused_in_plain_words(tmp_path):
    (tmp_path / "file").write_text("in the way")
    options = parse_options(
        {"bufferPath": str(tmp_path / "file"), "listen": f"127.0.0.1:{free_port()}"}
    )
    with pytest.raises(ConfigError, match="bufferPath"):
        attach(options)


def test_a_receiver_that_failed_ends_the_query(tmp_path):
    """It takes nothing more: a query that went on would look healthy and stand still."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = parse_options(
            {
                "bufferPath": str(tmp_path / "b"),
                "host": "127.0.0.1",
                "port": str(port),
                "maxLineBytes": "10",
            }
        )
        opened = attach(options)
        try:
            connection, _ = server.accept()
            connection.sendall(b"x" * 100 + b"\n")

            def failed():
                try:
                    opened.check()
                except SparkEocError as error:
                    return error
                return None

            error = until(failed, 30, "the failure")
            assert "10" in str(error)
            connection.close()
        finally:
            opened.close()


def test_options_reach_log_and_receiver():
    """Each option that isn't the source's own arrives where it belongs."""
    given = parse_options(
        {
            "bufferPath": "/b",
            "listen": "127.0.0.1:5",
            "segmentBytes": "8192",
            "maxBufferBytes": "65536",
            "retention": "2h,1MiB",
            "flushIntervalMs": "7",
            "maxLineBytes": "99",
            "onOversizeLine": "skip",
            "token": "t" * 32,
            "maxConnections": "3",
            "idleTimeoutMs": "4",
            "maxBytesPerSecond": "5",
        }
    )
    log, receiver = buffer_options(given), receiver_options(given)
    assert (log.segment_bytes, log.max_buffer_bytes) == (8192, 65536)
    assert (log.retention_ms, log.retention_bytes) == (7_200_000, 1 << 20)
    assert (receiver.listen, receiver.connect) == (("127.0.0.1", 5), None)
    assert (receiver.flush_interval_ms, receiver.max_line_bytes) == (7, 99)
    assert (receiver.on_oversize_line, receiver.token) == ("skip", "t" * 32)
    assert (receiver.max_connections, receiver.idle_timeout_ms) == (3, 4)
    assert receiver.max_bytes_per_second == 5


def test_stopping_frees_port_and_lock(tmp_path):
    """S9: nothing is left behind by a clean stop."""
    port = free_port()
    options = parse_options({"bufferPath": str(tmp_path / "b"), "listen": f"127.0.0.1:{port}"})
    begun = time.monotonic()
    for _ in range(3):
        attach(options).close()
    assert time.monotonic() - begun < 10
    LogWriter.open(tmp_path / "b").close()
    with socket.create_server(("127.0.0.1", port)):
        pass


def block(*lines):
    return LineBlock.from_lines([line.encode() for line in lines])
