"""The bytes on disk are those drawn in frame.py and segment.py, whoever reads them."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from zlib import crc32

from spark_eoc.buffer import LogWriter
from tests.buffer.buffer_logs import TIME_US, append, frames, send


def lines_by_hand(segment: Path) -> list[bytes]:
    """Ten lines of any language: the lines of a segment without the package."""
    data, place, lines = segment.read_bytes(), 64, []
    while place < len(data):
        _, crc, payload, kind, _, runs = struct.unpack_from("<4sIIBBH", data, place)
        (records,) = struct.unpack_from("<I", data, place + 24)
        assert crc == crc32(data[place + 8 : place + 64 + payload])
        at = place + 64
        for _ in range(runs):
            at += 16 + (struct.unpack_from("<I", data, at)[0] + 7) // 8 * 8
        ends = struct.unpack_from(f"<{records + 1}i", data, at) if kind == 1 else ()
        at += (len(ends) * 4 + 7) // 8 * 8
        lines += [data[at + a : at + b] for a, b in pairwise(ends)]
        place += 64 + payload
    return lines


def test_another_language_reads_the_lines_from_the_drawing(tmp_path: Path) -> None:
    """Frames lie at multiples of 64, each with its crc, and offsets and data are Arrow's."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"plain", b"", b"\x00\xff\n")
    send(writer, b"a producer", 7, b"one", b"two")
    writer.close()
    segment = tmp_path / "00000000000000000000.segment"
    assert lines_by_hand(segment) == [b"plain", b"", b"\x00\xff\n", b"one", b"two"]
    assert all(position % 64 == 0 and length % 64 == 0 for position, length, *_ in frames(segment))


def test_a_frame_is_these_bytes(tmp_path: Path) -> None:
    """Every field of a frame's header stands where the drawing puts it."""
    writer = LogWriter.open(tmp_path)
    writer.sync()
    append(writer, b"ab", b"c")
    writer.sync()
    append(writer, b"d")
    writer.close()
    segment = tmp_path / "00000000000000000000.segment"
    data = segment.read_bytes()
    first, second = [position for position, _, _, records in frames(segment) if records]
    head = data[first : first + 64]
    assert head[:4] == b"EOC1"
    assert struct.unpack_from("<IBBHQIIqQ", head, 8) == (64, 1, 0, 0, 0, 2, 1, TIME_US, 0)
    assert head[52:60] == bytes.fromhex(writer.buffer_id)[:8]
    assert struct.unpack_from("<I", head, 60) == (3,)
    payload = data[first + 64 : first + 128]
    assert payload == struct.pack("<iii4x", 0, 2, 3) + b"abc" + bytes(45)
    after = data[second : second + 64]
    assert struct.unpack_from("<QII", after, 16) == (2, 1, 1)
    assert struct.unpack_from("<QI", after, 40) == (2, struct.unpack_from("<I", head, 4)[0])


def test_a_segment_begins_with_its_header(tmp_path: Path) -> None:
    """Every field of a segment's header stands where the drawing puts it."""
    writer = LogWriter.open(tmp_path, clock=lambda: 5.0)
    append(writer, b"x")
    writer.roll()
    writer.close()
    head = (tmp_path / "00000000000000000001.segment").read_bytes()[:64]
    buffer_id = bytes.fromhex(writer.buffer_id)
    expected = struct.pack("<8sHHI16sQqQI", b"EOCSEG01", 1, 0, 1, buffer_id, 1, 5_000_000, 0, 0)
    assert head == expected + struct.pack("<I", crc32(expected))
