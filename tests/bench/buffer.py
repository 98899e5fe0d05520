"""The log alone: append + fsync of 60-byte lines against a raw sequential write with the same
fsyncs, reading as Arrow batches, opening 10 GB, and the end offset that idle queries ask for.

The sides take turns; the best round of each counts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_eoc.buffer import LineBlock, LogReader, LogWriter, read_slice

LINE_BYTES = 60
ROUNDS = 3
TOTAL_BYTES = 600_000_000
FRAME_LINES = 20_000
FRAMES_A_SYNC = 4
SMALL_FRAME_LINES = 100
ASKED = 5_000
BIG_BYTES = 10_000_000_000


def main() -> None:
    """Prints the figures."""
    with scratch() as folder:
        pairs = [appended(folder / str(number)) for number in range(ROUNDS)]
        ours, theirs = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
        say(
            what="buffer: append + fsync, 60-byte lines",
            against="raw sequential write with the same fsyncs",
            ratio=round(ours / theirs, 2),
            at_least=0.5,
            unit="MB/s",
            ours=round(ours),
            theirs=round(theirs),
        )
        say(what="buffer: append + fsync", value=round(ours), at_least=300, unit="MB/s")
        say(what="buffer: read, big frames", value=round(read(folder / "0")), unit="rows/s")
        small = folder / "small"
        fill(small, SMALL_FRAME_LINES, TOTAL_BYTES // 10, 1_000)
        rows = round(read(small))
        say(what="buffer: read, 100-line frames", value=rows, at_least=1_400_000, unit="rows/s")
        say(what="buffer: end offset", value=round(asked(small), 1), unit="microseconds")
        big(folder / "big")


def appended(folder: Path) -> tuple[float, float]:
    """(appended MB/s, raw MB/s) of one round."""
    seconds = fill(folder, FRAME_LINES, TOTAL_BYTES, FRAMES_A_SYNC)
    return TOTAL_BYTES / seconds / 1e6, TOTAL_BYTES / raw(folder / "raw") / 1e6


def fill(folder: Path, lines: int, total: int, frames_a_sync: int) -> float:
    """Seconds to append and sync lines in frames of so many."""
    size = lines * LINE_BYTES
    data = b"x" * size
    offsets = array("i", range(0, size + 1, LINE_BYTES)).tobytes()
    block = LineBlock(data, offsets)
    writer = LogWriter.open(folder)
    begun = time.perf_counter()
    for number in range(total // size):
        writer.append(block, receive_time_us=number)
        if number % frames_a_sync == 0:
            writer.sync()
    writer.sync()
    seconds = time.perf_counter() - begun
    writer.close()
    return seconds


def raw(path: Path) -> float:
    """Seconds to write as many bytes with as many fsyncs."""
    piece = b"y" * FRAME_LINES * LINE_BYTES
    begun = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    for number in range(TOTAL_BYTES // len(piece)):
        os.write(descriptor, piece)
        if number % FRAMES_A_SYNC == 0:
            os.fdatasync(descriptor)
    os.fdatasync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - begun
    path.unlink()
    return seconds


def read(folder: Path) -> float:
    """Rows/s of reading everything, timestamps and offsets included."""
    reader = LogReader(folder)
    best = 0.0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        rows = 0
        for piece in reader.split(0, reader.end_offset(), 4):
            for batch in read_slice(piece, timestamp=True, offset=True):
                rows += batch.num_rows
        best = max(best, rows / (time.perf_counter() - begun))
    return best


def asked(folder: Path) -> float:
    """Microseconds of one question for the end offset."""
    reader = LogReader(folder)
    begun = time.perf_counter()
    for _ in range(ASKED):
        reader.end_offset()
    return (time.perf_counter() - begun) / ASKED * 1e6


def big(folder: Path) -> None:
    """10 GB that are really there: how fast it opens, and how fast it is read from its start."""
    if shutil.disk_usage(folder.parent).free < 2 * BIG_BYTES:
        sys.exit(f"the figures of 10 GB need {2 * BIG_BYTES >> 30} GiB free in {folder.parent}")
    fill(folder, FRAME_LINES, BIG_BYTES, FRAMES_A_SYNC)
    begun = time.perf_counter()
    writer = LogWriter.open(folder)
    seconds = time.perf_counter() - begun
    writer.close()
    say(what="buffer: open 10 GB", value=round(seconds, 3), unit="s", at_most=1)
    rows = round(read(folder))
    say(what="buffer: read 10 GB", value=rows, at_least=1_400_000, unit="rows/s")


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk that is measured: the first argument's, or the system's temporary."""
    folder = Path(tempfile.mkdtemp(prefix="eoc-bench-", dir=sys.argv[1] if sys.argv[1:] else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def say(**figure: object) -> None:
    """One figure, as the collector reads it."""
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    main()
