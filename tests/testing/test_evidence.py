"""The checker's own reader of the buffer agrees with what was written."""

from __future__ import annotations

from pathlib import Path

from spark_eoc.buffer import BufferOptions, LineBlock, LogWriter, Run
from spark_eoc.testing.checker import Line
from spark_eoc.testing.evidence import read_buffer


def test_the_independent_reader_sees_every_line_of_every_segment(tmp_path: Path):
    """Rolls, several epochs, producers' runs, empty lines and any bytes."""
    expected: list[Line] = []
    for epoch in range(3):
        writer = LogWriter.open(tmp_path / "buffer", BufferOptions(segment_bytes=4096))
        for number in range(60):
            lines = [b"", b"\xff\x00EOC1", b"epoch %d number %d" % (epoch, number) * 3]
            sequence = epoch * 1000 + number * 3 + 1
            runs = (Run(b"producer", 3, sequence),) if number % 2 else ()
            base = writer.append(LineBlock.from_lines(lines, runs), receive_time_us=number)
            expected += [Line(base + i, line) for i, line in enumerate(lines)]
            writer.sync()
        writer.close()
    assert len(list((tmp_path / "buffer").glob("*.segment"))) > 3
    assert read_buffer(tmp_path / "buffer") == expected


def test_a_torn_tail_is_left_out(tmp_path: Path):
    """A frame that was not written whole is none."""
    writer = LogWriter.open(tmp_path / "buffer", BufferOptions())
    for line in (b"one", b"two"):
        writer.append(LineBlock.from_lines([line]), receive_time_us=1)
        writer.sync()
    writer.close()
    (segment,) = (tmp_path / "buffer").glob("*.segment")
    data = segment.read_bytes().rstrip(b"\0")
    segment.write_bytes(data[:-2])
    assert [line.value for line in read_buffer(tmp_path / "buffer")] == [b"one"]


def test_a_buffer_of_which_nothing_is_left_has_no_lines(tmp_path: Path) -> None:
    """The checker then says what was lost; the reader ended with an error of its own."""
    assert read_buffer(tmp_path) == []
