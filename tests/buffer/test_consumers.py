"""Consumers' positions, and what they let be trimmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_eoc.buffer import (
    BufferOptions,
    ConsumerPosition,
    LogReader,
    LogWriter,
    read_positions,
    remove_consumer,
)
from spark_eoc.buffer.trim import SealedSegment, count_trimmable
from spark_eoc.errors import ConfigError
from tests.buffer.buffer_logs import SMALL, append, read_all
from tests.sinks.hostile import HOSTILE


def filled(path: Path, options: BufferOptions = SMALL) -> LogWriter:
    """Ten segments of one record each, and an empty active one."""
    writer = LogWriter.open(path, options, clock=lambda: 1000.0)
    for _ in range(10):
        append(writer, b"x" * 3000)
        writer.roll()
    return writer


def test_trim_goes_to_the_lowest_consumer(tmp_path: Path) -> None:
    """Two queries on one buffer trimmed each other's data before they had positions."""
    writer = filled(tmp_path)
    assert writer.apply_trim() == 0, "nobody has read anything"
    fast, slow = (ConsumerPosition.open(tmp_path, name) for name in ("fast", "slow"))
    fast.commit(9)
    assert writer.apply_trim() == 0
    slow.commit(4)
    assert writer.apply_trim() == 4
    slow.commit(10)
    assert writer.apply_trim() == 9
    assert LogReader(tmp_path).start_offset() == 9
    assert len(read_all(tmp_path)) == 1
    writer.close()


def test_a_consumer_that_is_away_still_holds_its_data(tmp_path: Path) -> None:
    """A query that is down for a while finds everything; only its removal lets go."""
    writer = filled(tmp_path)
    away = ConsumerPosition.open(tmp_path, "away")
    away.commit(2)
    away.close()
    ConsumerPosition.open(tmp_path).commit(10)
    assert writer.apply_trim() == 2
    assert remove_consumer(tmp_path, "away")
    assert not remove_consumer(tmp_path, "away")
    assert writer.apply_trim() == 10
    writer.close()


def test_the_active_segment_is_never_deleted(tmp_path: Path) -> None:
    """Not even when all of it is committed."""
    writer = LogWriter.open(tmp_path, SMALL)
    append(writer, b"a")
    writer.sync()
    ConsumerPosition.open(tmp_path).commit(1)
    assert writer.apply_trim() == 0
    assert read_all(tmp_path) == [b"a"]
    writer.close()


def test_a_second_reader_of_one_name_never_moves_the_position(tmp_path: Path) -> None:
    """It reads and says so; once the first is gone it takes over where that one was."""
    first = ConsumerPosition.open(tmp_path)
    second = ConsumerPosition.open(tmp_path)
    assert (first.held, second.held) == (True, False)
    assert first.commit(5)
    assert not second.commit(9)
    assert not second.hand_out(9)
    assert read_positions(tmp_path)["default"].committed == 5
    first.close()
    assert second.held
    assert second.committed == 5
    assert second.commit(9)
    second.close()


def test_positions_only_go_forward_and_come_back(tmp_path: Path) -> None:
    """A replay hands out old records again, and takes nothing back."""
    position = ConsumerPosition.open(tmp_path, "with / odd % name")
    position.hand_out(7)
    position.hand_out(3)
    position.commit(5)
    position.commit(2)
    assert (position.committed, position.handed_out) == (5, 7)
    position.close()
    again = ConsumerPosition.open(tmp_path, "with / odd % name")
    assert (again.committed, again.handed_out) == (5, 7)
    assert list(read_positions(tmp_path)) == ["with / odd % name"]
    with pytest.raises(ConfigError, match="in use"):
        remove_consumer(tmp_path, "with / odd % name")
    again.close()


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_a_name_that_can_not_be_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """Empty or too long."""
    with pytest.raises(ConfigError, match="consumer name"):
        ConsumerPosition.open(tmp_path, name)


HOUR = 3_600_000_000
SEALED = [SealedSegment(base, base + 1, 100, base * HOUR) for base in range(5)]


@pytest.mark.parametrize(
    ("committed", "now_hours", "options", "gone"),
    [
        (5, 10, {"retention_ms": 0}, 5),
        (5, 4, {}, 4),
        (5, 4.9, {}, 4),
        (5, 5, {}, 5),
        (2, 10, {}, 2),
        (0, 10, {"retention_ms": 0}, 0),
        (5, 3, {}, 3),
        (5, -9, {}, 0),
        (5, 0, {"retention_bytes": 250}, 3),
        (5, 0, {"retention_bytes": 0}, 5),
        (3, 0, {"retention_bytes": 0}, 3),
    ],
)
def test_retention(committed: int, now_hours: float, options: dict[str, int], gone: int) -> None:
    """Committed segments stay an hour by default, less if they are too many bytes; the clock set
    back (case B9) only keeps more; what isn't committed stays in any case."""
    chosen = BufferOptions(**options)
    assert count_trimmable(SEALED, committed, int(now_hours * HOUR), chosen) == gone


def test_a_clock_that_is_set_back_loses_nothing(tmp_path: Path) -> None:
    """Case B9: times of receipt are kept as given, order and trims are by offset."""
    now = [2000.0]
    writer = LogWriter.open(tmp_path, BufferOptions(segment_bytes=4096), clock=lambda: now[0])
    for number in range(4):
        now[0] = 2000.0 - 500 * number
        append(writer, b"%d" % number, time_us=int(now[0]))
        writer.roll()
    ConsumerPosition.open(tmp_path).commit(4)
    assert writer.apply_trim() == 0
    assert read_all(tmp_path) == [b"0", b"1", b"2", b"3"]
    writer.close()


def test_a_name_of_any_text_has_a_position_of_its_own(tmp_path: Path) -> None:
    """Paths, quotes, NULs and formats among them: one file each, in the consumers' folder."""
    buffer = tmp_path / "buffer"
    filled(buffer).close()
    for number, name in enumerate(HOSTILE):
        consumer = ConsumerPosition.open(buffer, name)
        assert consumer.commit(number % 10)
        consumer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["buffer"]
    found = read_positions(buffer)
    assert {name: position.committed for name, position in found.items()} == {
        name: number % 10 for number, name in enumerate(HOSTILE)
    }
    assert all(remove_consumer(buffer, name) for name in HOSTILE)
    assert read_positions(buffer) == {}
