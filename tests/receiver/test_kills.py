"""SIGKILL of the receiver's process: every acknowledged line is in the log exactly once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spark_eoc.errors import UnacknowledgedError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT
from spark_eoc.producer import LineProducer
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.wait import until
from tests.receiver.conftest import stored

CHILD = Path(__file__).with_name("child.py")
ROOT = CHILD.parents[2]


class Daemon:
    """A receiver's process that is started again whenever it has died."""

    def __init__(self, path: Path, failpoint: str = "", segment_bytes: int = 1 << 20) -> None:
        self.path = path
        self.port = free_port()
        self.deaths = 0
        self._segment_bytes = segment_bytes
        self._ended = False
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if failpoint:
            fired = path.parent / "fired"
            fired.mkdir()
            self._environment |= {ENVIRONMENT: failpoint, DIRECTORY: str(fired)}
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(CHILD), str(self.path), str(self.port)]
        return subprocess.Popen([*command, str(self._segment_bytes)], env=self._environment)

    def _keep(self) -> None:
        while True:
            self._process.wait()
            if self._ended:
                return
            self.deaths += 1
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        """SIGSTOP; returns when no thread runs any more."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        until(
            lambda: all(
                (each / "stat").read_text().rpartition(")")[2].split()[0] == "T"
                for each in tasks.iterdir()
            ),
            20,
            "it is stopped",
        )

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        while self._thread.is_alive():
            self._process.kill()
            self._thread.join(0.1)


POINTS = [
    "receiver.after_read:40",
    "receiver.before_ack:7",
    "receiver.after_ack:7",
    "buffer.before_append:5",
    "buffer.after_append:5",
    "buffer.after_fsync:5",
    "buffer.after_publish:5",
    "buffer.roll_before_header:2",
    "buffer.roll_after_header:2",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_step_loses_and_doubles_nothing(tmp_path, point):
    """Between read, append, fsync, publish, acknowledgement, and while a segment is rolled."""
    lines = [b"%d of %s" % (number, point.encode()) for number in range(2000)]
    with Daemon(tmp_path / "buffer", f"{point}=kill", segment_bytes=8192) as daemon:
        with LineProducer("127.0.0.1", daemon.port, "p") as producer:
            for number, line in enumerate(lines, 1):
                assert producer.send(line) == number
                if number % 50 == 0:
                    producer.flush(60)
        assert daemon.deaths == 1, "the failpoint was not reached"
    assert stored(tmp_path / "buffer") == lines


def test_a_receiver_that_was_stopped_fences_nobody_when_it_goes_on(tmp_path, monkeypatch):
    """SIGSTOP: the producer gives up several connections, all of which wait when it continues."""
    monkeypatch.setattr("spark_eoc.producer.link.ANSWER_TIMEOUT_S", 0.3)
    with (
        Daemon(tmp_path / "buffer") as daemon,
        LineProducer("127.0.0.1", daemon.port, "p", stall_timeout_s=0.4) as producer,
    ):
        for number in range(2):
            producer.send(b"%d a" % number)
            producer.flush(20)
            daemon.pause()
            producer.send(b"%d b" % number)
            with pytest.raises(UnacknowledgedError):
                producer.flush(1.2)
            daemon.go_on()
            producer.flush(20)
    assert stored(tmp_path / "buffer") == [
        b"%d %s" % (number, half) for number in range(2) for half in (b"a", b"b")
    ]


def test_kills_at_random_instants_lose_and_double_nothing(tmp_path, eoc_seed):
    """Three producers, ten kills; each producer's lines are there once, in its order."""
    rng = random.Random(eoc_seed)
    sent: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    done = threading.Event()
    errors: list[BaseException] = []

    def produce(name: str, port: int) -> None:
        try:
            with LineProducer("127.0.0.1", port, name, window_bytes=20_000) as producer:
                while not done.is_set():
                    line = b"%s %d" % (name.encode(), len(sent[name]))
                    producer.send(line)
                    sent[name].append(line)
                producer.flush(60)
                assert producer.acknowledged == len(sent[name])
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            errors.append(error)

    with Daemon(tmp_path / "buffer", segment_bytes=20_000) as daemon:
        threads = [
            threading.Thread(target=produce, args=(name, daemon.port), daemon=True) for name in sent
        ]
        for thread in threads:
            thread.start()
        for number in range(1, 11):
            time.sleep(rng.uniform(0.0, 0.5))
            daemon.kill()
            until(lambda: daemon.deaths >= number, 20, "it died")  # noqa: B023
        done.set()
        for thread in threads:
            thread.join(90)
    assert not errors
    found = stored(tmp_path / "buffer")
    for name, lines in sent.items():
        assert [line for line in found if line.startswith(name.encode())] == lines, name
    assert len(found) == sum(map(len, sent.values())) > 0
