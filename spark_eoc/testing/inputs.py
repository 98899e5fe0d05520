"""What is fed to a query under kills, outside Spark, written down line by line.

Two ways that a query of anybody's can read: lines sent to a port by the acknowledged protocol, and
text files that appear whole in a folder. Both hand lines out only up to a mark that the harness
moves, so that there is always something left to do when a kill falls.
"""

from __future__ import annotations

import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_eoc.errors import ConfigError
from spark_eoc.testing.daemons import ProducerProcess
from spark_eoc.testing.feeder import Feeder
from spark_eoc.testing.transcript import Transcript


class Input(ABC):
    """Lines, given to a query at a steady pace up to a mark; ConfigError for one that is two.

    ``takes_s`` is how long all of them take at that pace.
    """

    def __init__(self, lines: Sequence[bytes], per_second: float) -> None:
        for number, line in enumerate(lines, 1):
            if b"\n" in line:
                raise ConfigError(
                    f"line {number} holds a line break: {line[:60]!r}",
                    applied="nothing was started",
                    next_step="give the lines without their ends: text.splitlines()",
                )
        self.lines = lines
        self.takes_s = len(lines) / per_second

    @abstractmethod
    def start(self) -> None:
        """Begins; the query may not be there yet."""

    @abstractmethod
    def release(self, mark: int) -> None:
        """Lines [0, mark) may be given from now on."""

    @property
    @abstractmethod
    def flushed(self) -> bool:
        """Whether every line was given, and is where no kill of the query can reach it."""

    @property
    def error(self) -> BaseException | None:
        """What it ended with, where it can't go on."""
        return None

    @abstractmethod
    def transcript(self) -> Transcript:
        """What was announced and what acknowledged."""

    @abstractmethod
    def close(self) -> None:
        """Gives nothing more."""


class SocketInput(Input):
    """Over the acknowledged protocol to ``port``, where the query (or a receiver) listens."""

    def __init__(
        self,
        lines: Sequence[bytes],
        port: int,
        *,
        transcript: str | os.PathLike[str],
        name: str = "chaos",
        host: str = "127.0.0.1",
        per_second: float = 500.0,
    ) -> None:
        super().__init__(lines, per_second)
        self._to = (port, name, transcript)
        self._host, self._per_second = host, per_second
        self._changed = threading.Condition()
        self._mark, self._closed = 0, False
        self._feeder: Feeder | None = None

    def start(self) -> None:
        self._feeder = Feeder(
            *self._to, self._released(), per_second=self._per_second, host=self._host
        )

    def release(self, mark: int) -> None:
        with self._changed:
            self._mark = max(self._mark, mark)
            self._changed.notify_all()

    @property
    def flushed(self) -> bool:
        return self._feeder is not None and self._feeder.flushed

    @property
    def error(self) -> BaseException | None:
        return self._feeder.error if self._feeder is not None else None

    def transcript(self) -> Transcript:
        if self._feeder is None:
            return Transcript(self._to[1])
        return self._feeder.transcript()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._feeder is not None:
            self._feeder.close()

    def _released(self) -> Iterator[bytes]:
        for number, line in enumerate(self.lines):
            with self._changed:
                self._changed.wait_for(lambda n=number: self._mark > n or self._closed)  # type: ignore[misc]
                if self._closed:
                    return
            yield line


class ProcessInput(Input):
    """The same by a producer that is a process of its own, ``.producer``, and may be killed."""

    def __init__(
        self,
        lines: Sequence[bytes],
        port: int,
        *,
        folder: str | os.PathLike[str],
        name: str = "chaos",
        host: str = "127.0.0.1",
        per_second: float = 500.0,
    ) -> None:
        super().__init__(lines, per_second)
        self.producer = ProducerProcess.to(
            port, folder, producer=name, lines=lines, mark=0, per_second=per_second, host=host
        )
        self._mark = 0

    def start(self) -> None:
        """It runs since it was made, and has been let send nothing."""

    def release(self, mark: int) -> None:
        if mark > self._mark:
            self._mark = mark
            self.producer.release(mark)

    @property
    def flushed(self) -> bool:
        return self.producer.flushed

    def transcript(self) -> Transcript:
        return self.producer.transcript()

    def close(self) -> None:
        self.producer.close()


class FolderInput(Input):
    """As text files in ``folder``, for ``spark.readStream.text`` and its like.

    A file appears under its name when it is whole, about five a second, with one line at least;
    what has appeared counts as acknowledged.
    """

    FILES_PER_SECOND = 5.0

    def __init__(
        self,
        lines: Sequence[bytes],
        folder: str | os.PathLike[str],
        *,
        per_second: float = 500.0,
        suffix: str = ".txt",
    ) -> None:
        self._per_file = max(1, int(per_second / self.FILES_PER_SECOND))
        super().__init__(lines, self._per_file * self.FILES_PER_SECOND)
        self.folder = Path(folder)
        self._suffix = suffix
        self._mark = self._given = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name="folder input", daemon=True)
        self._thread.start()

    def release(self, mark: int) -> None:
        self._mark = max(self._mark, min(mark, len(self.lines)))

    @property
    def flushed(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._given == len(self.lines)

    @property
    def error(self) -> BaseException | None:
        return self._error

    def transcript(self) -> Transcript:
        return Transcript.of("folder", self.lines, self._given)

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        try:
            while not self._closing.wait(1 / self.FILES_PER_SECOND):
                end = min(self._mark, self._given + self._per_file)
                if end > self._given:
                    self._write(self.lines[self._given : end])
                    self._given = end
        except BaseException as error:  # noqa: BLE001  handed to whoever asks whether it is flushed
            self._error = error

    def _write(self, lines: Sequence[bytes]) -> None:
        name = f"{time.time_ns()}{self._suffix}"
        hidden = self.folder / f".{name}"  # Spark passes over names that begin with a dot
        hidden.write_bytes(b"".join(line + b"\n" for line in lines))
        hidden.rename(self.folder / name)


def made_up(count: int, seed: int) -> list[bytes]:
    """``count`` different lines from a seed."""
    draw = random.Random(seed)
    return [b"line %d %08x" % (number, draw.getrandbits(32)) for number in range(count)]
