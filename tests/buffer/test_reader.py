"""What readers see: extent, bounds, slices and batches; without a lock, beside the writer."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from spark_eoc.buffer import ConsumerPosition, LineBlock, LogReader, LogWriter, Run, read_slice
from spark_eoc.buffer.directory import list_segments, segment_path
from spark_eoc.errors import (
    CorruptLogError,
    LogError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
)
from tests.buffer.buffer_logs import (
    SMALL,
    TIME_US,
    active,
    append,
    data_frames,
    die,
    fill,
    flip,
    read_all,
    read_range,
)

OTHER_BOOT = b"another start..."


def test_the_columns_are_exactly_those_of_the_contract(tmp_path: Path) -> None:
    """value binary, timestamp('us', tz='UTC'), offset int64; the time of receipt as kept."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"a", time_us=TIME_US)
    append(writer, b"b", b"c", time_us=TIME_US + 1)
    writer.close()
    (piece,) = LogReader(tmp_path).split(0, 3)
    (batch,) = read_slice(piece, timestamp=True, offset=True)
    assert batch.schema == pa.schema(
        [
            ("value", pa.binary()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("offset", pa.int64()),
        ]
    )
    start = datetime.fromtimestamp(TIME_US / 1e6, timezone.utc)
    times = [value.as_py() for value in batch.column("timestamp")]
    assert [(at - start).microseconds for at in times] == [0, 1, 1]
    assert batch.column("offset").to_pylist() == [0, 1, 2]
    batch.validate(full=True)
    (only,) = read_slice(piece)
    assert only.schema.names == ["value"]


def test_small_frames_are_joined_and_big_ones_are_cut(tmp_path: Path) -> None:
    """Batches have at least 1,000 rows where there are as many, and never far too many."""
    writer = LogWriter.open(tmp_path)
    for number in range(3_000):
        append(writer, b"%d" % number)
    block = LineBlock.from_lines([b"x"] * 200_000)
    writer.append(block, receive_time_us=0)
    writer.close()
    (piece,) = LogReader(tmp_path).split(0, 203_000)
    sizes = [len(batch) for batch in read_slice(piece)]
    assert sum(sizes) == 203_000
    assert min(sizes) >= 1_000
    assert max(sizes) <= 65_536 + 1_000


def test_every_split_gives_every_record_once(tmp_path: Path) -> None:
    """Any range, any number of partitions: dense, in order, none empty, over segments too."""
    writer = LogWriter.open(tmp_path, SMALL)
    lines = [b"%d" % number * (number % 40) for number in range(300)]
    for at in range(0, 300, 7):
        append(writer, *lines[at : at + 7])
    writer.close()
    assert len(list_segments(tmp_path)) > 1
    reader = LogReader(tmp_path)
    for start, end in ((0, 300), (0, 1), (3, 250), (299, 300), (150, 151), (7, 14)):
        for partitions in (1, 2, 5, 1000):
            pieces = reader.split(start, end, partitions)
            assert len(pieces) == min(partitions, end - start)
            assert min(piece.count for piece in pieces) >= 1
            assert pieces == pickle.loads(pickle.dumps(pieces))
            assert read_range(reader, start, end, partitions) == lines[start:end]
    assert reader.split(5, 5, 3) == []


def test_a_batch_is_bounded_by_rows_and_by_bytes(tmp_path: Path) -> None:
    """At most so many rows, at most so many bytes of lines, but one record where there is one."""
    writer = LogWriter.open(tmp_path, SMALL)
    for _ in range(20):
        append(writer, *[b"x" * 100] * 10)
    append(writer, b"y" * 5_000, b"z")
    writer.close()
    reader = LogReader(tmp_path)
    assert reader.bound(0) == 202
    assert reader.bound(0, max_rows=7) == 7
    assert reader.bound(198, max_rows=7) == 202
    assert reader.bound(202, max_rows=7, max_bytes=7) == 202
    for start in (0, 5, 13):
        for rows in (1, 2, 9, 10, 11, 35):
            assert reader.bound(start, max_bytes=rows * 100) == start + rows
            assert reader.bound(start, max_bytes=rows * 100 + 99) == start + rows
    assert reader.bound(0, max_rows=3, max_bytes=700) == 3
    assert reader.bound(0, max_rows=30, max_bytes=700) == 7
    assert reader.bound(0, max_bytes=1) == 1, "one record, however long"
    assert reader.bound(200, max_bytes=10) == 201
    assert reader.bound(199, max_bytes=110) == 200


def test_a_range_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before the first retained, beyond the durable end, or backwards."""
    writer = LogWriter.open(tmp_path, SMALL)
    for _ in range(10):
        append(writer, b"x" * 3000)
    writer.sync()
    ConsumerPosition.open(tmp_path).commit(6)
    start = writer.apply_trim()
    reader = LogReader(tmp_path)
    assert 0 < start <= 6
    for first, end in ((start - 1, 8), (8, 11), (9, 8)):
        with pytest.raises(OffsetOutOfRangeError):
            reader.split(first, end)
    writer.close()


def test_a_task_whose_segment_is_gone_raises(tmp_path: Path) -> None:
    """It never yields fewer rows: trimmed, on another host, or damaged, each in its words."""
    lines = fill(tmp_path)
    (piece,) = LogReader(tmp_path).split(0, len(lines))
    elsewhere = replace(piece, path=str(tmp_path / "elsewhere"))
    with pytest.raises(LogError, match="host"):
        list(read_slice(elsewhere, wait_seconds=0))
    stranger = replace(piece, buffer_id="00" * 16)
    with pytest.raises(CorruptLogError, match="not of this buffer"):
        list(read_slice(stranger, wait_seconds=0))
    flip(active(tmp_path), data_frames(active(tmp_path))[3][0] + 80)
    with pytest.raises(CorruptLogError):
        list(read_slice(piece, wait_seconds=0))
    writer = LogWriter.open(tmp_path / "trimmed", SMALL)
    for _ in range(6):
        append(writer, b"x" * 3000)
    writer.sync()
    (old,) = LogReader(tmp_path / "trimmed").split(0, 6)
    ConsumerPosition.open(tmp_path / "trimmed").commit(6)
    assert writer.apply_trim() > 0
    with pytest.raises(OffsetOutOfRangeError, match="trimmed"):
        list(read_slice(old, wait_seconds=5))
    writer.close()


def test_a_slice_never_ends_early(tmp_path: Path) -> None:
    """A file that is shorter than what was planned is an error after the wait, not an end."""
    lines = fill(tmp_path)
    (piece,) = LogReader(tmp_path).split(0, len(lines))
    with active(tmp_path).open("r+b") as file:
        file.truncate(data_frames(active(tmp_path))[-1][0])
    with pytest.raises(LogError):
        list(read_slice(piece, wait_seconds=0))


def test_a_slice_finds_its_records_where_recovery_moved_them(tmp_path: Path) -> None:
    """The place in a slice is a hint; frames in doubt get a new one when a writer recovers."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"a")
    writer.sync()
    append(writer, b"b")
    die(writer)
    reader = LogReader(tmp_path, boot=OTHER_BOOT)
    (piece,) = reader.split(1, 2)
    assert piece.segment == 0
    LogWriter.open(tmp_path).close()
    assert list_segments(tmp_path) == [0, 1]
    (batch,) = read_slice(piece, wait_seconds=0)
    assert batch.column("value").to_pylist() == [b"b"]


def test_after_a_restart_of_the_machine_the_published_end_is_not_the_end(tmp_path: Path) -> None:
    """It may be behind what was acknowledged; readers see what is whole, having synced it."""
    writer = LogWriter.open(tmp_path)
    append(writer, b"published")
    writer.sync()
    stale = (tmp_path / "published").read_bytes()
    append(writer, b"acknowledged")
    writer.sync()
    die(writer)
    (tmp_path / "published").write_bytes(stale)
    assert LogReader(tmp_path).end_offset() == 1
    after = LogReader(tmp_path, boot=OTHER_BOOT)
    assert after.end_offset() == 2
    assert read_range(after, 0, 2) == [b"published", b"acknowledged"]
    writer = LogWriter.open(tmp_path, boot=OTHER_BOOT)
    assert (writer.end_offset, after.end_offset()) == (2, 2)
    writer.close()


def test_a_torn_published_end_is_read_as_the_one_before(tmp_path: Path) -> None:
    """Whatever a reader catches of a write in progress, it gets a value that was published."""
    writer = LogWriter.open(tmp_path)
    for number in range(3):
        append(writer, b"%d" % number)
        writer.sync()
    before = (tmp_path / "published").read_bytes()
    append(writer, b"3")
    writer.sync()
    after = (tmp_path / "published").read_bytes()
    die(writer)
    changed = [place for place in range(len(after)) if before[place] != after[place]]
    seen = set()
    for place in range(changed[0], changed[-1] + 2):
        (tmp_path / "published").write_bytes(after[:place] + before[place:])
        seen.add(LogReader(tmp_path).end_offset())
    assert seen == {3, 4}


def test_no_buffer_is_said_plainly(tmp_path: Path) -> None:
    """A path that holds none yet."""
    with pytest.raises(LogError, match="no buffer"):
        LogReader(tmp_path / "none").end_offset()
    with pytest.raises(LogError, match="no buffer"):
        _ = LogReader(tmp_path / "none").buffer_id


def test_lines_of_many_megabytes(tmp_path: Path) -> None:
    """16 MiB and more in one line, among small ones, over a restart."""
    lines = [b"small", b"x" * (17 << 20), b"", b"y" * (3 << 20), b"z"]
    writer = LogWriter.open(tmp_path)
    for line in lines:
        append(writer, line)
    writer.close()
    LogWriter.open(tmp_path).close()
    assert read_all(tmp_path) == lines
    reader = LogReader(tmp_path)
    assert reader.bound(0, max_bytes=100) == 1
    assert reader.bound(1, max_bytes=100) == 2


class Huge:
    """Says that it has three gigabytes, without having them."""

    data_bytes = 3 << 30
    records = 1
    runs: tuple[Run, ...] = ()


def test_a_block_beyond_int32_is_refused(tmp_path: Path) -> None:
    """Offsets of int32 reach 2 GiB; whoever appends has to split before."""
    writer = LogWriter.open(tmp_path)
    with pytest.raises(RecordTooLargeError, match="int32"):
        writer.append(Huge(), receive_time_us=0)  # type: ignore[arg-type]
    writer.close()


def test_an_idle_reader_reads_one_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """end_offset is asked for 90 times a second: one pread, whatever the log holds."""
    fill(tmp_path)
    reader = LogReader(tmp_path)
    calls = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *what: calls.append(what[1]) or pread(*what))
    monkeypatch.setattr(os, "listdir", lambda *_: pytest.fail("listed the directory"))
    for _ in range(10):
        reader.end_offset()
    assert len(calls) == 10
    assert max(calls) < 8192


def test_a_big_log_opens_at_once_and_with_few_reads(tmp_path: Path) -> None:
    """10 GB, most of it holes: only the active segment is scanned, of others the headers."""
    writer = LogWriter.open(tmp_path)
    for number in range(160):
        append(writer, b"%d" % number)
        writer.roll()
    writer.close()
    for base in list_segments(tmp_path)[:-1]:
        os.truncate(segment_path(tmp_path, base), 64 << 20)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.segment"))
    assert size > 10_000_000_000
    before = os.times()
    writer = LogWriter.open(tmp_path)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 1
    assert writer.next_offset == 160
    writer.close()
    assert read_range(LogReader(tmp_path), 158, 160) == [b"158", b"159"]
