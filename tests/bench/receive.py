"""Receive + fsync of 60-byte lines, against a raw sequential write with the same fsyncs.

A sender in a process of its own floods one plain connection; then as many bytes are written and
synced in as many steps, on the same disk. The rounds take turns; the best of each side counts.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

from spark_eoc.buffer import LogWriter
from spark_eoc.producer import LineProducer
from spark_eoc.receiver import Receiver, ReceiverOptions

LINE = b"x" * 59 + b"\n"
BLOCK = LINE * 4096
ROUNDS = 3
TOTAL_BYTES = 600_000_000 // len(BLOCK) * len(BLOCK)
PRODUCER_LINES = 1_000_000


def main() -> None:
    """Prints the figures."""
    folder = Path(tempfile.mkdtemp(prefix="eoc-bench-", dir=sys.argv[1] if sys.argv[1:] else None))
    try:
        pairs = [measure(folder / str(number)) for number in range(ROUNDS)]
        ours, theirs = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        lines = produce(folder / "producer")
    finally:
        shutil.rmtree(folder)
    say(
        what="receive + fsync, 60-byte lines",
        against="raw sequential write with the same fsyncs",
        ratio=round(ours / theirs, 2),
        at_least=0.5,
        unit="MB/s",
        ours=round(ours),
        theirs=round(theirs),
    )
    say(what="receive + fsync, 60-byte lines", value=round(ours), at_least=300, unit="MB/s")
    say(what="LineProducer, send to acknowledged", value=round(lines), unit="lines/s")


def measure(folder: Path) -> tuple[float, float]:
    """(received MB/s, raw MB/s) of one round."""
    writer = LogWriter.open(folder / "buffer")
    with Receiver(writer, ReceiverOptions(listen=("127.0.0.1", 0))) as receiver:
        sender = multiprocessing.Process(target=flood, args=(receiver.port,))
        begun = time.perf_counter()
        sender.start()
        while writer.end_offset < TOTAL_BYTES // len(LINE):
            time.sleep(0.002)
        seconds = time.perf_counter() - begun
        sender.join()
        flushes = receiver.stats().flushes
    writer.close()
    return TOTAL_BYTES / seconds / 1e6, TOTAL_BYTES / raw(folder / "raw", flushes) / 1e6


def flood(port: int) -> None:
    """The sender."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(TOTAL_BYTES // len(BLOCK)):
            sock.sendall(BLOCK)


def raw(path: Path, flushes: int) -> float:
    """Seconds to write the same bytes with as many fsyncs."""
    piece = b"y" * (TOTAL_BYTES // flushes)
    begun = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for _ in range(flushes):
        os.write(descriptor, piece)
        os.fdatasync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - begun


def produce(folder: Path) -> float:
    """Lines/s from ``send`` to durable, receiver and producer in one process."""
    writer = LogWriter.open(folder)
    with Receiver(writer, ReceiverOptions(listen=("127.0.0.1", 0))) as receiver:
        begun = time.perf_counter()
        with LineProducer("127.0.0.1", receiver.port, "bench") as producer:
            for _ in range(PRODUCER_LINES):
                producer.send(LINE[:-1])
        seconds = time.perf_counter() - begun
    writer.close()
    return PRODUCER_LINES / seconds


def say(**figure: object) -> None:
    """One figure, as the collector reads it."""
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
