"""What producers intended and what they were told, written outside Spark.

A line is *announced* before it is given to the producer, and an acknowledgement is recorded only
after it arrived. The checker believes these two, the buffer, the ledger and the sink's rows;
nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


class Producer(Protocol):
    """The part of :class:`spark_eoc.producer.LineProducer` that is transcribed."""

    @property
    def acknowledged(self) -> int:
        """Number of the last durable line."""
        raise NotImplementedError

    def send(self, line: bytes | str) -> int:
        """Takes a line and returns its number, from 1."""
        raise NotImplementedError

    def flush(self, timeout_s: float | None = None) -> int:
        """Waits until every line is durable."""
        raise NotImplementedError


@dataclass(frozen=True)
class Transcript:
    """One producer's history: its lines by number, from 1, and the last acknowledged number."""

    producer: str
    announced: Mapping[int, bytes] = field(default_factory=dict)
    acknowledged: int = 0

    @classmethod
    def of(
        cls, producer: str, lines: Iterable[bytes], acknowledged: int | None = None
    ) -> Transcript:
        """A made-up history; without ``acknowledged`` all of it is."""
        announced = dict(enumerate(lines, 1))
        return cls(producer, announced, len(announced) if acknowledged is None else acknowledged)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Transcript:
        """What a :class:`TranscriptWriter` wrote; a half last line, of a kill, is left out."""
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")[:-1]
        producer = json.loads(lines[0])["producer"]
        announced: dict[int, bytes] = {}
        acknowledged = 0
        for line in lines[1:]:
            entry = json.loads(line)
            if isinstance(entry, list):
                announced[entry[0]] = entry[1].encode("latin-1")
            else:
                acknowledged = max(acknowledged, entry)
        return cls(producer, announced, acknowledged)


class TranscriptWriter:
    """Appends to a transcript file; flushed to the operating system at every acknowledgement.

    With ``outlives`` also before each line is sent, so that it tells the truth of a process that
    is killed; one that is started again goes on in the same file.
    """

    def __init__(
        self, path: str | os.PathLike[str], producer: str, *, outlives: bool = False
    ) -> None:
        self.path = Path(path)
        self._outlives = outlives
        _drop_half_line(self.path)
        self._file = open(self.path, "ab")  # noqa: SIM115  closed by close()
        if not self.path.stat().st_size:
            self._write({"producer": producer})
            self._file.flush()

    def announce(self, number: int, line: bytes) -> None:
        """Before the line is given to anyone."""
        self._write([number, line.decode("latin-1")])
        if self._outlives:
            self._file.flush()

    def acknowledge(self, number: int) -> None:
        """After it was told that all lines up to ``number`` are durable."""
        self._write(number)
        self._file.flush()

    def flush(self) -> None:
        """Hands everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, entry: object) -> None:
        self._file.write(json.dumps(entry).encode() + b"\n")


def _drop_half_line(path: Path) -> None:
    """What a kill left of the last entry; nothing was done yet of what it says."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


class TranscribedProducer:
    """A producer whose every line and acknowledgement is in a transcript."""

    def __init__(
        self, producer: Producer, writer: TranscriptWriter, *, resume_from: int = 0
    ) -> None:
        self._producer = producer
        self._writer = writer
        self._next = resume_from + 1
        self._known = resume_from

    @property
    def acknowledged(self) -> int:
        """Number of the last durable line, recorded."""
        self.note()
        return self._known

    def send(self, line: bytes) -> int:
        """Announces, then sends; returns the line's number."""
        self._writer.announce(self._next, line)
        number = self._producer.send(line)
        if number != self._next:
            raise AssertionError(f"line {self._next} was numbered {number}")
        self._next += 1
        return number

    def note(self) -> None:
        """Records what is acknowledged by now."""
        acknowledged = self._producer.acknowledged
        if acknowledged > self._known:
            self._known = acknowledged
            self._writer.acknowledge(acknowledged)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until all is durable, and records it."""
        try:
            self._producer.flush(timeout_s)
        finally:
            self.note()
