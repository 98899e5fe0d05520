"""What the buffer's tests share: filling a log, reading all of it, and damaging its files."""

from __future__ import annotations

import struct
from pathlib import Path

from spark_eoc.buffer import BufferOptions, LineBlock, LogReader, LogWriter, Run, read_slice
from spark_eoc.buffer.directory import list_segments, segment_path

SMALL = BufferOptions(segment_bytes=4096, max_buffer_bytes=4 * 4096, retention_ms=0)
TIME_US = 1_700_000_000_000_000


def append(writer: LogWriter, *lines: bytes, time_us: int = TIME_US) -> int:
    """One frame of plain lines."""
    return writer.append(LineBlock.from_lines(lines), receive_time_us=time_us)


def send(writer: LogWriter, producer: bytes, first: int, *lines: bytes) -> int:
    """One frame of a producer's lines."""
    block = LineBlock.from_lines(lines, [Run(producer, len(lines), first)])
    return writer.append(block, receive_time_us=TIME_US)


def fill(path: Path, groups: int = 5, per_group: int = 3) -> list[bytes]:
    """A log of synced groups, closed; its lines."""
    lines = []
    with_writer = LogWriter.open(path)
    for group in range(groups):
        block = [b"line %d of group %d" % (number, group) for number in range(per_group)]
        append(with_writer, *block)
        with_writer.sync()
        lines += block
    with_writer.close()
    return lines


def read_all(path: Path) -> list[bytes]:
    """Every durable line that is retained, checked for dense offsets."""
    reader = LogReader(path)
    return read_range(reader, reader.start_offset(), reader.end_offset())


def read_range(reader: LogReader, start: int, end: int, partitions: int = 2) -> list[bytes]:
    """The lines of a range."""
    lines: list[bytes] = []
    offsets: list[int] = []
    for piece in reader.split(start, end, partitions):
        for batch in read_slice(piece, offset=True, wait_seconds=0):
            lines += batch.column("value").to_pylist()
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(start, end))
    return lines


def appends_on(path: Path, expected: list[bytes]) -> None:
    """The log holds exactly ``expected``, can be appended to, and holds that too afterwards."""
    writer = LogWriter.open(path)
    assert read_all(path) == expected
    append(writer, b"afterwards", b"")
    writer.sync()
    assert read_all(path) == [*expected, b"afterwards", b""]
    writer.close()
    LogWriter.open(path).close()
    assert read_all(path) == [*expected, b"afterwards", b""]


def active(path: Path) -> Path:
    """File of the newest segment."""
    return segment_path(path, list_segments(path)[-1])


def frames(segment: Path) -> list[tuple[int, int, int, int]]:
    """(position, length, base offset, records) of each frame, parsed on its own from the drawing
    in frame.py, up to the first that isn't one."""
    data = segment.read_bytes()
    found = []
    position = 64
    while data[position : position + 4] == b"EOC1":
        (payload,) = struct.unpack_from("<I", data, position + 8)
        base, records = struct.unpack_from("<QI", data, position + 16)
        found.append((position, 64 + payload, base, records))
        position += 64 + payload
    return found


def data_frames(segment: Path) -> list[tuple[int, int, int, int]]:
    """As :func:`frames`, those with records."""
    return [frame for frame in frames(segment) if frame[3]]


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Damage: writes over bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int, bit: int = 0) -> None:
    """Damage: flips one bit."""
    byte = path.read_bytes()[position]
    overwrite(path, position, bytes([byte ^ 1 << bit]))


def cut(path: Path, length: int) -> None:
    """Damage: cuts a file."""
    with path.open("r+b") as file:
        file.truncate(length)


def die(writer: LogWriter) -> None:
    """What SIGKILL leaves: nothing is synced or published, the lock is free."""
    writer._release()
