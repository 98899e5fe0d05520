"""``spark-eoc buffer``: what an operator sees of a sound and of a damaged buffer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from spark_eoc.buffer import ConsumerPosition, LineBlock, LogWriter, Run
from spark_eoc.cli.command import main


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two segments with two lines each, read by one consumer."""
    path = tmp_path / "log"
    writer = LogWriter.open(path)
    for number in range(2):
        lines = [b"line %d" % number, b"and another"]
        writer.append(LineBlock.from_lines(lines), receive_time_us=0)
        writer.roll()
    writer.close()
    position = ConsumerPosition.open(path, "clicks")
    position.commit(2)
    position.close()
    return path


def damage(log: Path) -> None:
    """Flips a bit of the first line."""
    segment = log / "00000000000000000000.segment"
    data = bytearray(segment.read_bytes())
    data[data.index(b"line 0")] ^= 1
    segment.write_bytes(data)


def test_ls_shows_extent_segments_and_consumers(log: Path, capsys: pytest.CaptureFixture[str]):
    """For people, and as one JSON object."""
    assert main(["buffer", "ls", str(log)]) == 0
    shown = capsys.readouterr().out
    assert "records  0 up to, not including, 4" in shown
    assert "consumer clicks: committed 2" in shown
    assert main(["buffer", "ls", str(log), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [segment["base_offset"] for segment in facts["segments"]] == [0, 2, 4]
    assert facts["consumers"]["clicks"]["committed"] == 2


def test_cat_prints_lines(log: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    """As they were received, or one JSON object a record."""
    assert main(["buffer", "cat", str(log), "--from", "1", "--count", "2"]) == 0
    assert capfdbinary.readouterr().out == b"and another\nline 1\n"
    assert main(["buffer", "cat", str(log), "--json"]) == 0
    records = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [record["offset"] for record in records] == [0, 1, 2, 3]
    assert records[2]["value"] == "line 1"


def test_verify_and_repair_say_what_is_lost(log: Path, capsys: pytest.CaptureFixture[str]):
    """Exit code 1 for damage; the command that the error names mends it."""
    assert main(["buffer", "verify", str(log)]) == 0
    assert "all whole" in capsys.readouterr().out
    damage(log)
    assert main(["buffer", "verify", str(log)]) == 1
    assert "00000000000000000000.segment at byte" in capsys.readouterr().out
    assert main(["buffer", "repair", str(log)]) == 1
    assert "given up: records 0 up to, not including, 2" in capsys.readouterr().out
    assert main(["buffer", "verify", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damages"] == []
    assert main(["buffer", "repair", str(log)]) == 0


def test_trim_deletes_what_is_committed(log: Path, capsys: pytest.CaptureFixture[str]):
    """At once; a consumer that is gone for good can be forgotten."""
    position = ConsumerPosition.open(log, "gone")
    position.close()
    assert main(["buffer", "trim", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["start_offset"] == 0
    assert main(["buffer", "trim", str(log), "--forget", "gone", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"start_offset": 2, "before": 0, "forgotten": True}


def test_a_buffer_that_is_in_use_is_not_trimmed(log: Path, capsys: pytest.CaptureFixture[str]):
    """The message names the writer."""
    writer = LogWriter.open(log)
    assert main(["buffer", "trim", str(log)]) == 1
    assert "LogLockedError" in capsys.readouterr().err
    writer.close()


def test_expire_forgets_idle_producers(log: Path, capsys: pytest.CaptureFixture[str]):
    """Only when asked, and only those that are idle."""
    writer = LogWriter.open(log)
    writer.append(LineBlock.from_lines([b"x"], [Run(b"old", 1, 7)]), receive_time_us=0)
    now_us = int(time.time() * 1_000_000)
    writer.append(LineBlock.from_lines([b"y"], [Run(b"new", 1, 1)]), receive_time_us=now_us)
    writer.close()
    assert main(["buffer", "ls", str(log)]) == 0
    assert "producer old: sent 7" in capsys.readouterr().out
    assert main(["buffer", "expire", str(log), "--idle-days", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "expired": 1,
        "left": 1,
        "remembered": 1,
    }
    assert main(["buffer", "ls", str(log), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["producers"]) == ["new"]
    assert facts["expired_producers"] == 1
