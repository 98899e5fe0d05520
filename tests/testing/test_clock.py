"""A clock that is set while programs run, and what the buffer makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_eoc.buffer import ConsumerPosition, LogReader
from spark_eoc.testing.checker import Row, check
from spark_eoc.testing.clock import Clock
from spark_eoc.testing.daemons import ProducerProcess, ReceiverDaemon
from spark_eoc.testing.evidence import read_buffer
from spark_eoc.testing.wait import until

DAY = 86_400

#: Prints hours and waits for a line, until there is none; then waits by each kind of clock.
TELL = """
import sys, threading, time
for line in sys.stdin:
    print(round(time.time() / 3600), flush=True)
begun = time.monotonic()
threading.Event().wait(0.2), time.sleep(0.1)
print(0.2 < time.monotonic() - begun < 5)
"""


def test_only_the_time_of_day_jumps(eoc_clock: Clock) -> None:
    """In a process that runs, at once; waits last as long as they should."""
    command = [sys.executable, "-c", TELL]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    env = {"PATH": "/usr/bin:/bin", **eoc_clock.environment}
    with subprocess.Popen(command, env=env, **pipes) as process:  # type: ignore[call-overload]

        def hour() -> int:
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        hours = [hour()]
        for ahead in (5, -48):
            eoc_clock.set(ahead * 3600)
            hours.append(hour())
        rest, _ = process.communicate(timeout=30)
    assert [each - hours[0] for each in hours] == [0, 5, -48]
    assert rest.strip() == "True"


def test_a_clock_far_ahead_trims_nothing_that_a_consumer_has_not_committed(
    tmp_path: Path, eoc_clock: Clock
) -> None:
    """Retention by time counts for what every consumer has committed alone; a clock that goes back
    neither stops the receiver nor keeps for ever what is committed."""
    buffer, env = tmp_path / "buffer", eoc_clock.environment
    options = ["--segment-bytes", "4096", "--retention", "1h"]
    with (
        ReceiverDaemon.on(buffer, tmp_path / "receiver", options, env=env) as receiver,
        ProducerProcess.to(receiver.port, tmp_path / "producer", per_second=3000) as producer,
    ):
        reader = LogReader(buffer)

        def more(lines: int = 400) -> int:
            end = producer.acknowledged + lines
            until(lambda: producer.acknowledged > end, 30, "more lines")
            return reader.end_offset()

        position = ConsumerPosition.open(buffer)
        end = more()
        position.hand_out(end)
        eoc_clock.set(10 * DAY)
        receiver.restart()
        more()
        assert reader.start_offset() == 0, "trimmed what nobody has committed"
        before = read_buffer(buffer)
        position.commit(end)
        eoc_clock.set(-10 * DAY)
        more()
        eoc_clock.set(20 * DAY)
        until(lambda: reader.start_offset() > 0, 30, "what is committed and old is gone")
        assert reader.start_offset() <= end
        receiver.restart()
        eoc_clock.set(-20 * DAY)
        more()
        producer.pause()
        until(lambda: producer.flushed, 30, "all durable")
        after = read_buffer(buffer)
    lines = {line.offset: line for line in [*before, *after]}
    whole = [lines[offset] for offset in range(len(lines))]
    check(
        [producer.transcript()], [Row(line.value) for line in whole], buffer=whole
    ).require_clean()
