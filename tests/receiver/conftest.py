"""An open log, receivers on it, and what is stored."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_eoc.buffer import BufferOptions, LogReader, LogWriter, read_slice
from spark_eoc.receiver import Receiver, ReceiverOptions
from spark_eoc.testing.wait import until


def stored(path: Path, start: int | None = None, end: int | None = None) -> list[bytes]:
    """The durable lines of a buffer, in order."""
    reader = LogReader(path)
    start = reader.start_offset() if start is None else start
    end = reader.end_offset() if end is None else end
    return [
        line
        for piece in reader.split(start, end, 1)
        for batch in read_slice(piece)
        for line in batch.column(0).to_pylist()
    ]


class Bench:
    """One buffer and the receivers that a test starts on it."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self.path = path
        self._stack = stack
        self.writer: LogWriter | None = None

    def open(self, **options: int) -> LogWriter:
        """The one writer; a second call closes the first."""
        if self.writer is not None:
            self.writer.close()
        self.writer = LogWriter.open(self.path, BufferOptions(**options))
        self._stack.callback(self.writer.close)
        return self.writer

    def receive(self, writer: object = None, **options: object) -> Receiver:
        """A started receiver; listens on any port unless told otherwise."""
        if "connect" not in options:
            options.setdefault("listen", ("127.0.0.1", 0))
        receiver = Receiver(
            writer or self.writer or self.open(),
            ReceiverOptions(**options),  # type: ignore[arg-type]
        )
        self._stack.callback(receiver.stop)
        return receiver.start()

    def lines(self) -> list[bytes]:
        """What is durable now."""
        return stored(self.path)

    def wait_for(self, lines: list[bytes]) -> None:
        """Until exactly these lines are durable."""
        reader = LogReader(self.path)
        until(lambda: reader.end_offset() >= len(lines), 10, f"{len(lines)} durable lines")
        assert self.lines() == lines


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with contextlib.ExitStack() as stack:
        yield Bench(tmp_path / "buffer", stack)


@pytest.fixture
def dial() -> Iterator[Callable[[Receiver], socket.socket]]:
    """``dial(receiver)`` is a new connection to it."""
    with contextlib.ExitStack() as stack:

        def connect(receiver: Receiver) -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", receiver.port), 10)
            return stack.enter_context(sock)

        yield connect


def reset(sock: socket.socket) -> None:
    """Closes with a RST instead of a FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
