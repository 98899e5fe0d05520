"""What a running query holds of its buffer: the log to read, its position, and its intake."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from spark_eoc.buffer.interface import BufferPosition, BufferReader
from spark_eoc.buffer.opening import holds_buffer, open_position, open_reader
from spark_eoc.errors import ConfigError
from spark_eoc.source.continuity import Continuity
from spark_eoc.source.intake import Intake
from spark_eoc.source.options import SourceOptions

LOG = logging.getLogger("spark_eoc.source")

#: How long to wait for a buffer that another process is just making.
_APPEAR_SECONDS = 5.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Attachment:
    """Opened by the first offset-side call of a query, in the process that makes such calls."""

    options: SourceOptions
    log: BufferReader
    position: BufferPosition
    intake: Intake | None

    def end_offset(self) -> int:
        """One past the last durable record; without any I/O while this query is the writer."""
        written = self.intake.end_offset() if self.intake is not None else None
        if written is None:
            return self.log.end_offset()
        self.log.reach(written)
        return written

    @property
    def continuity(self) -> Continuity:
        """The rules by which offsets are checked against this log."""
        return Continuity(self.options, self.log)

    def check(self) -> None:
        """Raises if nothing is received any more, and why."""
        if self.intake is not None:
            self.intake.check()

    def close(self) -> None:
        """Frees port and locks."""
        if self.intake is not None:
            self.intake.stop()
        self.position.close()


def attach(options: SourceOptions) -> Attachment:
    """Opens the buffer, begins to receive if the options say so, takes the consumer's position.

    Raises ConfigError for a path without a buffer, or where none can be kept.
    """
    intake = Intake(options) if options.receives else None
    if intake is not None:
        intake.start()
    try:
        log = _open_log(options)
        position = open_position(options.buffer_path, options.consumer)
    except BaseException:
        if intake is not None:
            intake.stop()
        raise
    if not position.held:
        LOG.warning(
            "consumer %r of buffer %s is held by another reader; this query reads, and never "
            "trims, until that one is gone. Give each query a consumer of its own",
            options.consumer,
            options.buffer_path,
        )
    return Attachment(options, log, position, intake)


def _open_log(options: SourceOptions) -> BufferReader:
    log = open_reader(options.buffer_path)
    deadline = time.monotonic() + (_APPEAR_SECONDS if options.receives else 0.0)
    while not holds_buffer(options.buffer_path):
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"bufferPath {options.buffer_path} holds no buffer",
                next_step="start the receiver that fills it (spark-eoc receive), or give host "
                "and port, or listen",
                path=options.buffer_path,
            )
        time.sleep(_POLL_SECONDS)
    return log
