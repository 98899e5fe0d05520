"""The script of Spark's `socket` source with the format's name changed, and its source runner
killed again and again; on one warm session."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

import spark_eoc
from spark_eoc.buffer.reader import LogReader
from spark_eoc.buffer.writer import LogWriter
from spark_eoc.errors import LogLockedError
from spark_eoc.testing.processes import read_process, send
from spark_eoc.testing.wait import until
from tests.source.source_runs import Run

pytestmark = pytest.mark.compat
RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
KILLS = 10
LINES = 50


def runners():
    """Source runners of this process's Spark."""
    found = []
    for entry in Path("/proc").iterdir():
        process = read_process(int(entry.name)) if entry.name.isdigit() else None
        if process and RUNNER in process.words and os.getpid() in ancestors(process):
            found.append(process.pid)
    return found


def ancestors(process):
    pids = []
    while process and process.parent > 1:
        pids.append(process.parent)
        process = read_process(process.parent)
    return pids


class LineServer:
    """As `nc -lk`: whoever connects gets the lines that are sent while it is there."""

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._connection = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                self._connection, _ = self._server.accept()
            except OSError:
                return

    def send(self, lines):
        data = b"".join(b"%d\n" % line for line in lines)
        until(lambda: self._connection, 60, "a reader")
        self._connection.sendall(data)

    def forget(self):
        """The next lines are for the next one that connects."""
        self._connection = None

    def close(self):
        self._server.close()


def test_the_socket_sources_script_survives_ten_kills(spark, tmp_path, checkpoint, stop_queries):
    """S4: the socket source can't restart on its checkpoint; with the format's name changed, every
    line that reached the disk is in exactly one batch. Every other kill comes within a batch."""
    spark_eoc.register(spark)
    server, path = LineServer(), tmp_path / "b"
    batches, sent = {}, 0

    def start(**more):
        given = {"host": "127.0.0.1", "port": server.port, "maxRowsPerTrigger": 20}
        return Run(spark, path, checkpoint, **given, **more)

    def kill_once(kill, sent):
        last = max(checkpoint.numbers("offsets"), default=0)
        run = start(fail_in=last + 2 if kill % 2 else None)
        server.send(range(sent - LINES, sent))
        until(lambda: path.exists() and LogReader(path).end_offset() == sent, 60, "the disk")
        if kill % 2:
            run.error()
        for pid in runners():
            send(pid, signal.SIGKILL)
        server.forget()
        until(lambda: not run.query.isActive, 60, "the end of the killed query")
        merge(batches, run.batches)

    for kill in range(KILLS):
        sent += LINES
        kill_once(kill, sent)
    run = start()
    until(
        lambda: merge(batches, run.batches) or run.failed or total(batches) == sent, 60, "the rest"
    )
    run.stop()
    server.close()
    values = [row[0] for batch in sorted(batches) for row in batches[batch]]
    assert values == [str(number) for number in range(sent)]
    # S9: five seconds later no process, port or lock is left.
    until(lambda: not runners(), 5, "the end of the source runner")
    until(lambda: lock_is_free(path), 5, "the end of the writer's lock")


def lock_is_free(path):
    try:
        LogWriter.open(path).close()
    except LogLockedError:
        return False
    return True


def merge(batches, more):
    """What foreachBatch was given again must be what it was given before."""
    for batch, rows in list(more.items()):
        assert batches.setdefault(batch, rows) == rows, f"batch {batch} holds other rows"


def total(batches):
    return sum(len(rows) for rows in batches.values())
