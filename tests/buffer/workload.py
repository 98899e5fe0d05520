"""A writer that is killed: it appends, syncs, rolls, hands out, commits and trims, and writes into
a transcript what it is about to do and what was acknowledged. Run as a script, and again after
each kill; believes nothing of its own past but the log.

``python workload.py LOG TRANSCRIPT``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spark_eoc.buffer import (
    BufferOptions,
    ConsumerPosition,
    LineBlock,
    LogReader,
    LogWriter,
    Run,
)

OPTIONS = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0)
PRODUCER = b"workload"
GROUPS = 12
LINES = 8


class Transcript:
    """Words, numbers; one line each, written by one call, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, word: str, *numbers: int) -> None:
        os.write(self._descriptor, (" ".join([word, *map(str, numbers)]) + "\n").encode())


def line_of(sequence: int) -> bytes:
    """The line with this sequence number; its content tells its number."""
    return b"line %d " % sequence + b"." * (sequence * 37 % 300)


def run(path: Path, transcript: Transcript) -> None:
    """One life of the writer."""
    writer = LogWriter.open(path, OPTIONS)
    position = ConsumerPosition.open(path)
    try:
        write(path, transcript, writer, position)
        writer.close()
        transcript.say("closed")
    finally:
        writer._release()
        position.close()


def write(
    path: Path, transcript: Transcript, writer: LogWriter, position: ConsumerPosition
) -> None:
    """What it does in its life."""
    transcript.say("open", writer.epoch, writer.start_offset, writer.end_offset)
    for group in range(GROUPS):
        state = writer.producers.get(PRODUCER)
        first = state.last_sequence + 1 if state else 1
        transcript.say("send", first, first + LINES)
        for sequence in range(first, first + LINES, 2):
            lines = [line_of(sequence), line_of(sequence + 1)]
            block = LineBlock.from_lines(lines, [Run(PRODUCER, 2, sequence)])
            writer.append(block, receive_time_us=sequence)
        writer.sync()
        transcript.say("acknowledged", first + LINES)
        end = LogReader(path).end_offset()
        position.hand_out(end)
        if group % 3 == 2:
            transcript.say("commit", end)
            position.commit(end)
            writer.apply_trim()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Transcript(Path(sys.argv[2])))
