"""Producer to buffer is exactly once, with the receiver killed and the connection cut at random.

The same feeder, proxy, supervisor and checker as the runs on Spark, in seconds.
"""

from __future__ import annotations

import itertools
import random
import sys
import textwrap
from pathlib import Path

from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FAILPOINTS
from spark_eoc.testing.checker import Row, check
from spark_eoc.testing.evidence import read_buffer
from spark_eoc.testing.feeder import Feeder
from spark_eoc.testing.kills import Instants, Kill, KillSchedule
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.proxy import Proxy, Rules
from spark_eoc.testing.supervisor import Supervisor

RECEIVER = textwrap.dedent(
    """
    import sys, time
    from spark_eoc.buffer import BufferOptions, LogWriter
    from spark_eoc.receiver import Receiver, ReceiverOptions

    writer = LogWriter.open(sys.argv[1], BufferOptions(segment_bytes=4096, retention_ms=3600_000))
    receiver = Receiver(writer, ReceiverOptions(listen=("127.0.0.1", int(sys.argv[2])))).start()
    while receiver.running:
        time.sleep(0.02)
    sys.exit(repr(receiver.error))
    """
)


class Stand:
    """A receiver process on a buffer, behind a proxy, with two feeders."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.buffer = folder / "buffer"
        script = folder / "receiver.py"
        script.write_text(RECEIVER)
        port = free_port()
        self.proxy = Proxy(port)
        self.feeders = [
            Feeder(
                self.proxy.port,
                name,
                folder / name,
                (b"%s %d" % (name.encode(), n) for n in itertools.count(1)),
                per_second=1000,
            )
            for name in ("one", "two")
        ]
        self.supervisor = Supervisor(
            [sys.executable, str(script), str(self.buffer), str(port)],
            folder=folder,
            progress=lambda: min(feeder.acknowledged for feeder in self.feeders),
            env=env,
        )

    def __enter__(self) -> Stand:
        self.supervisor.start()
        return self

    def __exit__(self, *_: object) -> None:
        for feeder in self.feeders:
            feeder.close()
        self.proxy.close()
        self.supervisor.close()

    def settle(self) -> None:
        """All acknowledged, then compared."""
        for feeder in self.feeders:
            feeder.pause()
        self.supervisor.until(
            lambda: all(feeder.flushed for feeder in self.feeders), timeout=60, what="durable"
        )
        lines = read_buffer(self.buffer)
        check(
            [feeder.transcript() for feeder in self.feeders],
            [Row(line.value) for line in lines],
            buffer=lines,
        ).require_clean()
        for feeder in self.feeders:
            feeder.go_on()


def test_random_kills_and_cuts_of_the_receiver(tmp_path: Path, eoc_seed: int):
    """Eight SIGKILLs, and a cut after a random number of bytes, in either direction, after each."""
    rng = random.Random(eoc_seed)
    schedule = KillSchedule(
        eoc_seed, count=8, kinds=[Kill.DRIVER_PYTHON], instants=Instants(0.1, 0.0)
    )
    with Stand(tmp_path) as stand:
        for strike in schedule:
            stand.supervisor.carry_out([strike])
            size = rng.randrange(2000)
            side = rng.choice(["cut_to_server", "cut_to_client"])
            stand.proxy.set(Rules(**{side: size}), times=2)
        stand.settle()


def test_each_failpoint_of_receiver_and_buffer(tmp_path: Path):
    """Killed at each step: what was acknowledged is there once, in the order it was sent."""
    armed, fired = tmp_path / "armed", tmp_path / "fired"
    fired.mkdir()
    names = [
        name
        for name in FAILPOINTS
        if name.startswith(("receiver.", "buffer.")) and not name.startswith("buffer.trim")
    ]
    with Stand(tmp_path, {ENVIRONMENT: f"@{armed}", DIRECTORY: str(fired)}) as stand:
        for name in names:
            armed.write_text(f"{name}=kill")
            stand.supervisor.until((fired / f"{name}.fired").exists, timeout=30, what=name)
            stand.settle()
    assert len(stand.supervisor.unexpected) == len(names)
