"""How a query fills its buffer: the writer lock, the log's writer, and the receiver."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from spark_eoc.buffer.interface import BufferWriter
from spark_eoc.buffer.objects.store import is_object_url
from spark_eoc.buffer.opening import open_writer
from spark_eoc.buffer.options import BufferOptions
from spark_eoc.errors import ConfigError, LogLockedError
from spark_eoc.receiver.options import ReceiverOptions
from spark_eoc.receiver.receiver import Receiver
from spark_eoc.source.options import SourceOptions

LOG = logging.getLogger("spark_eoc.source")

#: A killed runner's lock is free within 0.3 s; a live one's may never be.
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0
_PORT_SECONDS = 5.0
_WITHOUT_BOUND = 1 << 62


class Intake:
    """Receives into the buffer of one query, once it holds the buffer's lock.

    While another process holds it, that one receives; this query reads what is durable, and a
    daemon thread tries again. Nothing depends on :meth:`stop` being called.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._failure: BaseException | None = None
        self._writer: BufferWriter | None = None
        self._receiver: Receiver | None = None
        self._stopping = threading.Event()
        self._starting = threading.Lock()

    def start(self) -> None:
        """Receives from now on, or as soon as the lock is free.

        Raises ConfigError where the address can't be bound, CorruptLogError as recovery does.
        """
        try:
            self._take(None)
        except LogLockedError as locked:
            LOG.warning("%s Reading what is durable; trying again in the background.", locked)
            threading.Thread(target=self._wait, name="eoc-intake", daemon=True).start()

    def check(self) -> None:
        """Raises why nothing is received any more, if that is so."""
        failure = self._failure
        if self._receiver is not None and self._receiver.error is not None:
            failure = self._receiver.error
        if failure is not None:
            raise failure

    def end_offset(self) -> int | None:
        """One past the last durable record, if this process is the writer."""
        writer = self._writer
        return None if writer is None else writer.end_offset

    def stop(self) -> None:
        """Receives nothing more and frees port and lock; what was received is durable first."""
        self._stopping.set()
        with self._starting:
            receiver, self._receiver = self._receiver, None
            writer, self._writer = self._writer, None
        if receiver is not None:
            receiver.stop()
        if writer is not None:
            writer.close()

    def _take(self, takeover_ms: int | None) -> None:
        with self._starting:
            if self._stopping.is_set():
                return
            writer = open_writer(
                self._options.buffer_path, buffer_options(self._options), takeover_ms=takeover_ms
            )
            try:
                self._receiver = self._start_receiver(writer)
            except BaseException:
                writer.close()
                raise
            self._writer = writer

    def _start_receiver(self, writer: BufferWriter) -> Receiver:
        # No lock makes us wait there until a killed runner is gone, and with it its port.
        patience = _PORT_SECONDS if is_object_url(self._options.buffer_path) else 0.0
        deadline = time.monotonic() + patience
        while True:
            try:
                return start_receiver(writer, receiver_options(self._options))
            except ConfigError:
                if time.monotonic() >= deadline or self._stopping.wait(_FIRST_RETRY_SECONDS):
                    raise

    def _wait(self) -> None:
        seconds = _FIRST_RETRY_SECONDS
        while not self._stopping.wait(seconds):
            seconds = min(2 * seconds, _LAST_RETRY_SECONDS)
            try:
                self._take(self._options.takeover_ms)
            except LogLockedError:
                continue
            except ConfigError as error:
                # The one who held the lock may hold its port a moment longer.
                LOG.warning("%s Trying again.", error)
            except BaseException as error:  # noqa: BLE001  raised by the next trigger
                self._failure = error
                return
            else:
                LOG.warning("buffer %s is written by this query now", self._options.buffer_path)
                return


def start_receiver(writer: BufferWriter, options: ReceiverOptions) -> Receiver:
    """A receiver that works; ConfigError where the address can't be bound."""
    try:
        return Receiver(writer, options).start()
    except OSError as error:
        raise ConfigError(
            f"can't listen on {options.listen}: {error.strerror or error}",
            applied="nothing",
            next_step="choose a free port, or end the process that has this one",
        ) from error


def buffer_options(options: SourceOptions) -> BufferOptions:
    """The part of the options that the log takes; what isn't given is the log's default."""
    given: dict[str, Any] = {"segment_bytes": options.segment_bytes}
    if options.max_buffer_bytes is not None:
        given["max_buffer_bytes"] = options.max_buffer_bytes
    if options.retention is not None:
        age, size = options.retention.age_ms, options.retention.size_bytes
        given["retention_ms"] = _WITHOUT_BOUND if age is None else age
        given["retention_bytes"] = _WITHOUT_BOUND if size is None else size
    return BufferOptions(**given)


def receiver_options(options: SourceOptions) -> ReceiverOptions:
    """The part of the options that the receiver takes; what isn't given is its default."""
    given: dict[str, Any] = {
        name: getattr(options, name)
        for name in (
            "connect",
            "listen",
            "max_line_bytes",
            "on_oversize_line",
            "flush_interval_ms",
            "token",
            "tls_cert",
            "tls_key",
            "tls_ca",
            "max_connections",
            "idle_timeout_ms",
            "max_bytes_per_second",
        )
    }
    return ReceiverOptions(**{name: value for name, value in given.items() if value is not None})
