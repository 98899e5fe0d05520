"""One query of the demo under fire: its producer, its supervisor, and the strikes in their time."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from spark_eoc.cli.demo_job import Job
from spark_eoc.cli.demo_plan import SERVER, Due
from spark_eoc.cli.demo_progress import rows_done
from spark_eoc.cli.demo_sinks import MySQLSink, RedisSink
from spark_eoc.errors import SparkEocError
from spark_eoc.producer import LineProducer
from spark_eoc.testing.kills import Strike
from spark_eoc.testing.supervisor import Event, NoProgressError, Supervisor
from spark_eoc.testing.wait import WaitTimeoutError

#: The producer is at most this many batches ahead of the query, so that it is still sending
#: whenever a kill comes, and there is always something to take over.
_LEAD_BATCHES = 8
#: Rows have to move within this time. The promise behind it: a stopped run holds a new one up for
#: 30 s, and a start takes up to 40 s where two of them share two cores.
_PROGRESS_SECONDS = 180.0
_END_SECONDS = 900.0


class DemoError(SparkEocError):
    """A query that can't go on at all; the message ends with its script's own output."""


class Watcher(Protocol):
    """Whoever shows what happens; called from several threads."""

    def event(self, sink: str, text: str) -> None:
        """Something worth a line."""

    def progress(self, sink: str, done: int, sent: int) -> None:
        """Rows committed by Spark, and rows that the producer has sent."""


class QueryUnderFire:
    """A query, its producer and its strikes; :meth:`run` returns when every row is committed."""

    def __init__(
        self,
        sink: MySQLSink | RedisSink,
        job: Job,
        lines: Sequence[str],
        dues: Sequence[Due],
        watcher: Watcher,
    ) -> None:
        self.sink = sink
        self.sent = self.acknowledged = 0
        self.job = job
        self._lines = lines
        self._dues = dues
        self._watcher = watcher
        self._stop = threading.Event()
        self._may_send = threading.Condition()
        self._done_rows = 0
        self._sender_error: BaseException | None = None
        self._window_end = dues[0].window_end if dues else len(lines)
        folder = Path(job.folder)
        folder.mkdir()
        os.environ.pop("SPARK_HOME", None)  # another Spark's scripts would be started
        self.supervisor = Supervisor(
            [sys.executable, "-m", "spark_eoc.cli.demo_query", str(job.save())],
            folder=folder,
            progress=self._done,
            env={"TMPDIR": job.folder},
            servers={SERVER[sink.name]: sink.server},
            on_event=self._on_event,
            progress_timeout_s=_PROGRESS_SECONDS,
            tick=self._tick,
        )

    @property
    def kills(self) -> dict[str, int]:
        """How often each kind was carried out."""
        return dict(Counter(str(strike.kind) for strike in self.supervisor.strikes))

    def run(self) -> None:
        """Starts, kills, restarts. Raises DemoError when the query can't go on."""
        sender = threading.Thread(target=self._send, name=f"send-{self.sink.name}", daemon=True)
        sender.start()
        try:
            with self.supervisor:
                self.supervisor.carry_out(self._strikes())
                self._open_window(len(self._lines))
                self.supervisor.until(
                    lambda: self._done() >= len(self._lines) and not sender.is_alive(),
                    timeout=_END_SECONDS,
                    what="the last row",
                )
        except (NoProgressError, WaitTimeoutError) as error:
            raise DemoError(f"the {self.sink.name} query stands still: {error}") from error
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the sender at once, and :meth:`run` at its next tick, from any thread."""
        self._stop.set()
        with self._may_send:
            self._may_send.notify_all()

    def _strikes(self) -> Iterator[Strike]:
        """The plan's strikes, each when its row is done; again where its target wasn't there."""
        for number, due in enumerate(self._dues):
            if not due.strike.while_starting:
                self.supervisor.until(
                    lambda row=due.after_row: self._done() >= row,  # type: ignore[misc]
                    timeout=_PROGRESS_SECONDS,
                    what=f"row {due.after_row}",
                )
            carried_out = len(self.supervisor.strikes)
            while len(self.supervisor.strikes) == carried_out:
                yield due.strike
            later = self._dues[number + 1 :]
            self._open_window(later[0].window_end if later else len(self._lines))

    def _done(self) -> int:
        done = rows_done(self.job.checkpoint)
        if done > self._done_rows:
            with self._may_send:
                self._done_rows = done
                self._may_send.notify_all()
        return self._done_rows

    def _tick(self) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        if self._sender_error is not None:
            raise self._sender_error
        self._watcher.progress(self.sink.name, self._done(), self.sent)

    def _on_event(self, event: Event) -> None:
        if event.kind != "progress":
            self._watcher.event(self.sink.name, event.text)

    # the producer's side

    def _open_window(self, end: int) -> None:
        with self._may_send:
            self._window_end = end
            self._may_send.notify_all()

    def _limit(self) -> int:
        """Rows that may have been sent by now."""
        lead = self._done_rows + _LEAD_BATCHES * self.job.rows_per_batch
        return min(self._window_end, lead, len(self._lines))

    def _send(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001  it is raised again at the next tick
            self._sender_error = error

    def _send_all(self) -> None:
        host, _, port = self.job.listen.rpartition(":")
        producer = LineProducer(host, int(port), f"demo-{self.sink.name}")
        try:
            while self.sent < len(self._lines) and not self._stop.is_set():
                with self._may_send:
                    self._may_send.wait_for(
                        lambda: self._limit() > self.sent or self._stop.is_set()
                    )
                    end = self._limit()
                for line in self._lines[self.sent : end]:
                    producer.send(line)
                self.sent = end
            while self.acknowledged < self.sent and not self._stop.wait(0.05):
                self.acknowledged = producer.acknowledged
        finally:
            producer.close(timeout_s=0.1 if self._stop.is_set() else 30)
