"""Memory stays flat: in an idle query, in a busy one, and under a line without end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_eoc.testing.ports import free_port
from tests.source.test_runner_kills import runners

ROOT = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]
MB = 1024

#: The offset side of a query as Spark's source runner calls it: idle, then with lines. RSS in kB.
CALLS = """
import json, re, sys
from pathlib import Path
from spark_eoc.buffer import LineBlock, LogWriter, BufferOptions
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.reader import ReplayableSocketReader

def rss():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

options = BufferOptions(segment_bytes=65536, retention_ms=0, retention_bytes=0)
writer = LogWriter.open(sys.argv[1], options)
reader = ReplayableSocketReader(SourceOptions(sys.argv[1]))
end = reader.initialOffset()

def add():
    block = LineBlock.from_lines([b"x" * 100] * 50)
    writer.append(block, receive_time_us=1)
    writer.sync()

def idle(calls):
    for _ in range(calls):
        reader.latestOffset(end, None)
        reader.reportLatestOffset()
    return rss()

def busy(batches):
    global end
    for _ in range(batches):
        add()
        start, end = end, reader.latestOffset(end, None)
        reader.partitions(start, end)
        reader.commit(end)
        writer.apply_trim()
    return rss()

busy(300)
seen = {"before": idle(1000), "idle": idle(20_000), "busy": busy(1000)}
print(json.dumps(seen))
"""


def test_twenty_thousand_idle_triggers_and_a_thousand_batches_cost_no_memory(tmp_path):
    """That is some minutes of an idle query; less than 3 MB, which is noise."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(tmp_path / "b")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(seen)
    assert seen["idle"] - seen["before"] < 3 * MB
    assert seen["busy"] - seen["before"] < 3 * MB


def status(pid: int, name: str) -> int:
    """A line of `/proc/PID/status`, kB."""
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("rule", ["skip", "truncate"])
def test_a_line_of_100_megabytes_costs_the_daemon_a_few_lines_of_the_limit(tmp_path, rule):
    """Case B7, by the process's own peak: with lines of at most 1 MB it stays below 24 MB more."""
    port = free_port()
    command = [*CLI, "receive", "--buffer", str(tmp_path / "b"), "--listen", f"127.0.0.1:{port}"]
    command += ["--max-line-bytes", "1000000", "--on-oversize-line", rule, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as daemon:
        try:
            daemon.stdout.readline()
            before = status(daemon.pid, "VmHWM")
            with socket.create_connection(("127.0.0.1", port)) as sock:
                for _ in range(100):
                    sock.sendall(b"x" * 1_000_000)
                sock.sendall(b"\nlast\n")
            daemon.send_signal(signal.SIGTERM)
            grown = status(daemon.pid, "VmHWM") - before
            stopped = json.loads(daemon.stdout.read().splitlines()[-1])
        finally:
            daemon.kill()
    print(f"{rule}: {grown} kB")
    assert grown < 24 * MB
    assert stopped["oversize_lines"] == 1


@pytest.mark.slow
def test_the_source_runner_of_an_idle_query_stays_as_it_is(spark, start, buffer):
    """On real Spark, for more than 10,000 triggers at 90 a second."""
    buffer.count(10)
    start().drain(10).settle()
    (pid,) = runners()
    begun = time.monotonic()
    sizes = []
    while time.monotonic() - begun < 150:
        time.sleep(1)
        sizes.append(status(pid, "VmRSS"))
    print(f"kB: {sizes[20]} after 20 s, {sizes[-1]} at the end")
    assert sizes[-1] - sizes[20] < 3 * MB
