"""`make soak`: producer, receiver and link, each killed again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import partial

import pytest

from spark_eoc.buffer import LogReader
from spark_eoc.errors import LogError
from spark_eoc.testing.proxy import Proxy, Rules
from spark_eoc.testing.wait import until
from tests.receiver.conftest import stored
from tests.receiver.test_kills import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 1_000_000
KILLS = 50
SEND = [sys.executable, "-c", "import sys; from spark_eoc.cli import main; sys.exit(main())"]


def test_a_million_lines_through_fifty_kills_of_each_part(tmp_path, eoc_seed):
    """Every line of the file is stored once, in its order."""
    rng = random.Random(eoc_seed)
    lines = [b"line %d %s" % (number, b"x" * 45) for number in range(LINES)]
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(lines))
    kills = {"producer": 0, "receiver": 0, "link": 0}
    schedule = rng.sample([part for part in kills for _ in range(KILLS)], 3 * KILLS)
    places = sorted(rng.sample(range(1, LINES - LINES // 50), len(schedule)))
    reader = LogReader(tmp_path / "buffer")
    with Daemon(tmp_path / "buffer", segment_bytes=1 << 20) as daemon, Proxy(daemon.port) as proxy:
        command = [*SEND, "send", "--to", f"127.0.0.1:{proxy.port}", "--name", "soak", str(file)]
        proxy.set(Rules(delay_s=0.05))  # so that kills find it at work
        sender = subprocess.Popen(command)
        until(reader.path.exists, 30, "the first receiver")
        for place, part in zip(places, schedule, strict=True):
            reached = partial(has_reached, reader, place)
            until(reached, 60, f"line {place} is durable", interval=0.002)
            time.sleep(rng.uniform(0.0, 0.02))
            kills[part] += 1
            if part == "receiver":
                deaths = daemon.deaths
                daemon.kill()
                until(lambda: daemon.deaths > deaths, 20, "it died")  # noqa: B023
            elif part == "link":
                proxy.cut_all()
            else:
                sender.kill()
                sender.wait()
                sender = subprocess.Popen(command)
        assert sender.wait(300) == 0
    assert min(kills.values()) == KILLS
    found = stored(tmp_path / "buffer")
    lost, twice = len(set(lines) - set(found)), len(found) - len(set(found))
    print(f"\nseed {eoc_seed}: {LINES} lines, kills {kills}: {lost} lost, {twice} twice")
    assert found == lines


def has_reached(reader: LogReader, place: int) -> bool:
    """Whether so many lines are durable."""
    try:
        return reader.end_offset() >= place
    except LogError:
        return False  # the very first receiver makes the buffer now
