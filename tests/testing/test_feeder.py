"""A producer in a thread of the harness."""

from __future__ import annotations

from pathlib import Path

from spark_eoc.testing.daemons import ReceiverDaemon
from spark_eoc.testing.feeder import Feeder
from spark_eoc.testing.wait import until


def test_a_feeder_that_has_sent_all_stays_flushed_when_it_is_told_to_go_on(tmp_path: Path) -> None:
    """A rig feeds again after each comparison; the next one waited until its time was up."""
    with (
        ReceiverDaemon.on(tmp_path / "buffer") as receiver,
        Feeder(receiver.port, "p", tmp_path / "transcript", iter([b"1", b"2"])) as feeder,
    ):
        until(lambda: feeder.flushed, 30, "all durable")
        feeder.go_on()
        feeder.pause()
        until(lambda: feeder.flushed, 5, "all durable, still")


def test_a_pause_of_before_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """The thread may see a pause just when that is ended, and tell of it afterwards: a line that it
    is sending by then was not waited for."""
    with Feeder(1, "p", tmp_path / "transcript", iter([b"1"])) as feeder:
        until(lambda: feeder.transcript().announced, 10, "a line given to be sent")
        feeder._paused.set()
        feeder.pause()
        assert not feeder.flushed
