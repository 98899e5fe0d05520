"""A producer as a process of its own, to be killed: ``python -m spark_eoc.testing.sender FOLDER``.

:class:`spark_eoc.testing.daemons.ProducerProcess` starts it, again after each kill, and
tells it by the file ``control`` how far it may go. It writes each line down before it sends it, and
each acknowledgement after it came, and goes on after the line that the receiver says is the last
durable one: the promise that a producer of a user's own lives by.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spark_eoc.producer import LineProducer
from spark_eoc.testing.transcript import TranscribedProducer, Transcript, TranscriptWriter

#: Few different lines, so that counters of Redis are added to again and again.
_WORDS = 211
_LOOK_S = 0.02


def made_up(kind: str) -> Iterator[bytes]:
    """Endless: ``mysql`` all different, ``redis`` the same few again and again."""
    for number in itertools.count(1):
        yield b"line %d" % number if kind == "mysql" else b"word%d" % (number * number % _WORDS)


def write_json(path: Path, value: Any) -> None:
    """Whoever reads ``path`` sees the old value or the new one."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(value))
    os.replace(hidden, path)


class Sender:
    """One life of the process, in the folder of all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = json.loads((folder / "plan").read_text())
        self._control: dict[str, Any] = {}
        self._looked = 0.0
        self._told: object = None
        self._interval = 1 / self._plan["per_second"]

    def run(self) -> None:
        """Sends all lines from where the lives before it came to, then waits to be killed."""
        name, path = self._plan["producer"], self._folder / "transcript"
        writer = TranscriptWriter(path, name, outlives=True)
        with LineProducer(self._plan["host"], self._plan["port"], name) as line_producer:
            first = line_producer.resume_from
            known = Transcript.read(path).acknowledged
            if first < known:
                sys.exit(f"{known} lines were acknowledged, now only {first} are durable")
            writer.acknowledge(first)
            producer = TranscribedProducer(line_producer, writer, resume_from=first)
            self._send(producer, first)
            producer.flush()
            self._tell("ended")
            while True:
                signal.pause()

    def _send(self, producer: TranscribedProducer, first: int) -> None:
        due = time.monotonic()
        for number, line in enumerate(self._lines(first), first):
            while not self._may_send(producer, number, due):
                time.sleep(_LOOK_S)
            producer.send(line)
            producer.note()
            due = max(due, time.monotonic() - 1.0) + self._interval

    def _may_send(self, producer: TranscribedProducer, number: int, due: float) -> bool:
        """Whether it is line ``number``'s turn; a pause begins when all before it is durable."""
        self._look()
        producer.note()
        pause, mark = self._control.get("pause"), self._control.get("mark")
        if pause:
            producer.flush()
            self._tell(pause)
            return False
        return time.monotonic() >= due and (mark is None or number < mark)

    def _look(self) -> None:
        if time.monotonic() - self._looked >= _LOOK_S:
            self._looked = time.monotonic()
            self._control = json.loads((self._folder / "control").read_text())

    def _tell(self, state: object) -> None:
        if state != self._told:
            self._told = state
            write_json(self._folder / "state", state)

    def _lines(self, first: int) -> Iterator[bytes]:
        plan = self._plan
        if plan["file"] is None:
            return itertools.islice(made_up(plan["kind"]), first, plan["limit"])
        lines = Path(plan["file"]).read_bytes().split(b"\n")[:-1]
        return itertools.islice(lines, first, plan["limit"])


if __name__ == "__main__":
    Sender(Path(sys.argv[1])).run()
