"""A producer outside Spark that sends lines at a steady pace and writes down what it was told."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from spark_eoc.errors import SparkEocError
from spark_eoc.producer import LineProducer
from spark_eoc.testing.transcript import TranscribedProducer, Transcript, TranscriptWriter


class Feeder:
    """Sends lines from an iterator in a thread of its own, until the iterator or it is closed.

    The receiver may be away at any time: lines wait in the producer's window. A context manager.
    """

    def __init__(
        self,
        port: int,
        name: str,
        transcript: str | os.PathLike[str],
        lines: Iterator[bytes],
        *,
        per_second: float = 300.0,
        host: str = "127.0.0.1",
    ) -> None:
        self.error: BaseException | None = None
        self._lines = lines
        self._pause = threading.Event()
        self._paused = threading.Event()
        self._ended = threading.Event()
        self._closing = threading.Event()
        self._interval = 1 / per_second
        self._writer = TranscriptWriter(transcript, name)
        self._line_producer = LineProducer(host, port, name)
        self._producer = TranscribedProducer(self._line_producer, self._writer)
        self._thread = threading.Thread(target=self._run, name=f"feeder {name}", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Sends no more until :meth:`go_on`; what was sent is still delivered."""
        # The thread may have seen the pause before this one just when that was ended.
        self._paused.clear()
        self._pause.set()

    @property
    def acknowledged(self) -> int:
        """Lines that are durable by now, as the producer was told."""
        return self._producer.acknowledged

    @property
    def flushed(self) -> bool:
        """Whether it pauses, or has sent all, and every line sent is durable. Raises what made it
        fail."""
        if self.error is not None:
            raise self.error
        resting = self._paused.is_set() or self._ended.is_set()
        return resting and self._producer.acknowledged == self._line_producer.sent

    def go_on(self) -> None:
        """Sends again."""
        self._paused.clear()
        self._pause.clear()

    def transcript(self) -> Transcript:
        """What was announced and acknowledged so far; only while it is paused or closed."""
        self._writer.flush()
        return Transcript.read(self._writer.path)

    def close(self) -> None:
        """Stops sending; what is not acknowledged stays so."""
        self._closing.set()
        self._pause.clear()
        self._thread.join(5)
        with contextlib.suppress(SparkEocError):
            self._line_producer.close(timeout_s=0)
        self._writer.close()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        due = time.monotonic()
        try:
            for line in self._lines:
                if self._wait_for_turn(due):
                    return
                self._producer.send(line)
                self._producer.note()
                due = max(due, time.monotonic() - 1.0) + self._interval
        except BaseException as error:  # noqa: BLE001  handed to whoever flushes
            self.error = error
        self._ended.set()

    def _wait_for_turn(self, due: float) -> bool:
        """True when it is closing."""
        while not self._closing.is_set():
            if self._pause.is_set():
                self._paused.set()
            elif time.monotonic() >= due:
                return False
            self._closing.wait(min(0.02, max(0.001, due - time.monotonic())))
        return True
