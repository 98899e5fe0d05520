"""Receiver and producer as processes of their own, killed at random: nothing lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.testing.checker import Row, check
from spark_eoc.testing.daemons import ProducerProcess, ReceiverDaemon
from spark_eoc.testing.evidence import read_buffer
from spark_eoc.testing.kills import DAEMON_KILLS, Instants, Kill, KillSchedule
from spark_eoc.testing.programs import UnavailableServerError
from spark_eoc.testing.supervisor import NoProgressError, Supervisor
from spark_eoc.testing.transcript import Transcript, TranscriptWriter
from spark_eoc.testing.wait import until

IDLE = ["sleep", "1000"]


def require_once(producer: ProducerProcess, buffer: Path) -> int:
    lines = read_buffer(buffer)
    rows = [Row(line.value) for line in lines]
    check([producer.transcript()], rows, buffer=lines).require_clean()
    return len(lines)


def test_kills_of_receiver_and_producer_lose_and_double_nothing(
    tmp_path: Path, eoc_seed: int
) -> None:
    """Six, of both kinds; the producer's transcript, written by each of its lives, says what is
    due, and a pause is one of the moment and not of a life."""
    instants = Instants(spread_s=0.1, hold_s=(0.0, 0.1))
    schedule = KillSchedule(eoc_seed, count=6, kinds=DAEMON_KILLS, instants=instants)
    options = ["--segment-bytes", "16384", "--retention", "1h"]
    with (
        ReceiverDaemon.on(tmp_path / "buffer", tmp_path / "receiver", options) as receiver,
        ProducerProcess.to(receiver.port, tmp_path / "producer", per_second=2000) as producer,
        Supervisor(
            IDLE,
            folder=tmp_path,
            progress=lambda: producer.acknowledged,
            servers={Kill.RECEIVER: receiver, Kill.PRODUCER: producer},
        ) as supervisor,
    ):
        supervisor.carry_out(schedule)
        producer.pause()
        supervisor.until(lambda: producer.flushed, timeout=30, what="all durable")
        seen = require_once(producer, tmp_path / "buffer")
        producer.restart()
        until(lambda: producer.flushed, 30, "paused after a restart")
        assert require_once(producer, tmp_path / "buffer") == seen
        producer.go_on()
        until(lambda: producer.acknowledged > seen, 30, "more lines")
    assert not supervisor.unexpected, supervisor.unexpected


def test_lines_of_a_list_are_sent_up_to_a_mark(tmp_path: Path) -> None:
    """And the end is told when all of them are durable."""
    lines = [b"a \xff\x00 %d" % number for number in range(300)]
    with (
        ReceiverDaemon.on(tmp_path / "buffer") as receiver,
        ProducerProcess.to(receiver.port, lines=lines, mark=100, per_second=1e6) as producer,
    ):
        until(lambda: producer.acknowledged == 100, 30, "the first hundred")
        assert not producer.flushed
        producer.release(300)
        until(lambda: producer.flushed, 30, "all")
        assert require_once(producer, tmp_path / "buffer") == 300
    assert [line.value for line in read_buffer(tmp_path / "buffer")] == lines


def test_a_producer_that_ends_by_itself_is_started_again_and_told(tmp_path: Path) -> None:
    """Here one to whom fewer lines are durable than it was told: lost ones are never hidden by
    sending them again."""
    with (
        ReceiverDaemon.on(tmp_path / "buffer") as receiver,
        ProducerProcess.to(receiver.port, tmp_path / "producer", limit=10) as producer,
    ):
        until(lambda: producer.flushed, 30, "ten lines")
        with (tmp_path / "producer" / "transcript").open("ab") as file:
            file.write(b"12\n")
        supervisor = Supervisor(
            IDLE, folder=tmp_path, progress=lambda: 0, servers={Kill.PRODUCER: producer}
        )
        producer.kill()
        producer.restart()
        with supervisor, pytest.raises(NoProgressError, match="12 lines were acknowledged"):
            supervisor.until(lambda: False, timeout=60, what="nothing")
    assert len(supervisor.unexpected) == 6


def test_a_receiver_whose_disk_is_full_keeps_its_producer_waiting(tmp_path: Path) -> None:
    """Nothing is acknowledged until there is room again, and then everything is there once."""
    try:
        receiver = ReceiverDaemon.on(tmp_path / "buffer", tmp_path / "receiver", disk_mib=2)
    except UnavailableServerError as error:
        pytest.skip(str(error))
    strike = KillSchedule(1, count=1, kinds=[Kill.FULL], instants=Instants(hold_s=(1.0, 1.1)))
    seen: list[int] = []
    with (
        receiver,
        ProducerProcess.to(receiver.port, tmp_path / "producer", per_second=500) as producer,
        Supervisor(
            IDLE,
            folder=tmp_path,
            progress=lambda: producer.acknowledged,
            servers={Kill.RECEIVER: receiver},
            tick=lambda: seen.append(producer.acknowledged) if receiver.disk.room == 0 else None,
        ) as supervisor,
    ):
        supervisor.carry_out(strike)
        producer.pause()
        supervisor.until(lambda: producer.flushed, timeout=30, what="all durable")
        assert require_once(producer, tmp_path / "buffer") > seen[-1]
    assert len(seen) > 10
    assert seen[len(seen) // 2] == seen[-1], "lines were acknowledged on a full disk"


@pytest.mark.parametrize(
    "kind", [*DAEMON_KILLS, Kill.FULL, Kill.CLOCK, Kill.MARIADB, Kill.NETWORK, Kill.SPARK_WORKER]
)
def test_a_kind_without_its_process_is_refused_by_name(tmp_path: Path, kind: Kill) -> None:
    """Before anything is done."""
    supervisor = Supervisor(IDLE, folder=tmp_path, progress=lambda: 0)
    with pytest.raises(ConfigError, match=f"kill {kind}:"):
        supervisor.carry_out(KillSchedule(1, count=1, kinds=[kind]))


def test_a_transcript_goes_on_after_half_an_entry(tmp_path: Path) -> None:
    """What a kill left of the last one is dropped; what is whole was written before it was sent."""
    path = tmp_path / "transcript"
    writer = TranscriptWriter(path, "p", outlives=True)
    writer.announce(1, b"one")
    with path.open("ab") as file:
        file.write(b'[2, "tw')
    TranscriptWriter(path, "p", outlives=True).announce(2, b"two")
    assert Transcript.read(path).announced == {1: b"one", 2: b"two"}
