"""When the rig looks at what is in the sinks."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_eoc.testing.checker import LedgerState, Row
from spark_eoc.testing.daemons import ReceiverDaemon
from spark_eoc.testing.job import Stream
from spark_eoc.testing.rig import MYSQL, Rig, Target
from spark_eoc.testing.transcript import Transcript
from spark_eoc.testing.wait import WaitTimeoutError, until

LINES = [b"one", b"two", b"three"]


class Patience:
    """A supervisor of nothing, that waits for half a second."""

    @staticmethod
    def until(condition: Any, *, timeout: float, what: str) -> None:
        until(condition, 0.5, what)


def test_a_sink_that_still_grows_is_waited_for(tmp_path: Path) -> None:
    """A backlog of minutes on a loaded machine: what was on its way looked lost."""
    rig = Rig(tmp_path / "rig")
    began, lines = time.monotonic(), [b"%d" % number for number in range(30)]

    def rows() -> list[Row]:
        return [Row(line) for line in lines[: int((time.monotonic() - began) * 10)]]

    ledger = LedgerState(0, {}, [], None)
    stream = Stream(MYSQL, "", "landed", str(tmp_path / "stream"), None)
    rig.targets[MYSQL] = Target(stream, rows, lambda: len(rows()), lambda: ledger)
    feeder: Any = SimpleNamespace(
        acknowledged=30,
        flushed=True,
        pause=lambda: None,
        transcript=lambda: Transcript.of("feeder", lines),
    )
    rig.feeders[MYSQL] = feeder
    for name in ("offsets", "commits"):
        (stream.checkpoint / name).mkdir(parents=True)
        (stream.checkpoint / name / "0").touch()
    supervisor: Any = Patience()
    assert not rig.settle(supervisor)[MYSQL].count("lost")


def test_a_batch_that_spark_will_run_again_is_waited_for(tmp_path: Path) -> None:
    """All rows are there, and the ledger shows no open batch: a kill before Spark's own commit. The
    sinks were looked at before that batch came a second time."""
    rig = Rig(tmp_path / "rig")
    stream = Stream(MYSQL, "", "landed", str(tmp_path / "stream"), None)
    ledger = LedgerState(0, {0: 3}, [], None)
    rig.targets[MYSQL] = Target(
        stream, lambda: [Row(line) for line in LINES], lambda: 3, lambda: ledger
    )
    feeder: Any = SimpleNamespace(
        acknowledged=3,
        flushed=True,
        pause=lambda: None,
        transcript=lambda: Transcript.of("feeder", LINES),
    )
    rig.feeders[MYSQL] = feeder
    supervisor: Any = Patience()
    for name in ("offsets", "commits"):
        (stream.checkpoint / name).mkdir(parents=True)
    (stream.checkpoint / "offsets" / "0").write_text("v1\n{}\n3")
    with pytest.raises(WaitTimeoutError, match="all lines in the sinks"):
        rig.settle(supervisor)
    (stream.checkpoint / "commits" / "0").write_text("v1\n{}")
    rig.settle(supervisor)[MYSQL].require_clean()


def test_a_rig_that_cannot_be_made_leaves_no_receiver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who never had it can't close it: here the second server can't be asked."""
    started: list[ReceiverDaemon] = []
    on = ReceiverDaemon.on

    def noted(*given: Any, **more: Any) -> ReceiverDaemon:
        started.append(on(*given, **more))
        return started[-1]

    monkeypatch.setattr(ReceiverDaemon, "on", noted)
    mariadb: Any = SimpleNamespace(query=lambda _: [], port=1, url=lambda _: "mysql://root@h:1/d")
    redis: Any = SimpleNamespace(port=1)
    with pytest.raises(AttributeError, match="url"):
        Rig(tmp_path / "rig", mariadb=mariadb, redis=redis, daemons=True)
    assert len(started) == 1
    assert not started[0].running
