"""The plugin's fixtures."""

from __future__ import annotations

import os
import sys

import pyarrow as pa
import pytest

from spark_eoc.buffer import BufferOptions, LogWriter
from spark_eoc.receiver import Receiver, ReceiverOptions
from spark_eoc.testing.evidence import read_buffer
from spark_eoc.testing.wait import until

pytest_plugins = ["pytester"]


def test_the_seed_of_a_failed_test_is_printed_and_can_be_given(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    """A failure prints ``--eoc-seed=N``; with that option the test has the same seed."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    pytester.makepyfile("def test_it(eoc_seed):\n    assert eoc_seed == 7\n")
    arguments = ["-p", "no:cacheprovider", "-p", "spark_eoc.testing.plugin"]
    failed = pytester.runpytest_subprocess(*arguments, "--eoc-seed=8")
    failed.stdout.fnmatch_lines(["*--eoc-seed=8*"])
    passed = pytester.runpytest_subprocess(*arguments, "--eoc-seed=7")
    passed.assert_outcomes(passed=1)


TIERS = """
import pytest
from spark_eoc.testing.kills import Kill, KillSchedule
from spark_eoc.testing.supervisor import Supervisor
from spark_eoc.testing.tiers import Tier, case

@pytest.mark.parametrize("again", [0, 1])
def test_surgery(again):
    with case(Tier.SURGERY):
        assert not again

def test_kills(tmp_path):
    ticks = iter(range(10**6))
    with Supervisor(["sleep", "9"], folder=tmp_path, progress=ticks.__next__) as supervisor:
        supervisor.carry_out(KillSchedule(1, count=3, kinds=[Kill.DRIVER_PYTHON]))
"""


def test_each_tier_that_was_used_ends_the_run_with_a_line(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    """How many cases and how long, failed ones too; of several processes together."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    pytester.makepyfile(TIERS)
    arguments = ["-p", "no:cacheprovider", "-p", "spark_eoc.testing.plugin", "-n2"]
    done = pytester.runpytest_subprocess(*arguments)
    done.assert_outcomes(passed=2, failed=1)
    told = [line for line in done.outlines if line.startswith("tier ")]
    assert [line.rpartition(", ")[0] for line in told] == [
        "tier 1, checkpoint surgery: 2 cases",
        "tier 3, random kills: 3 kills",
    ]


def test_the_warm_session_runs_python_workers_of_this_interpreter(spark):
    """Workers are this interpreter, so that they find pyarrow."""

    def where(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"x": [sys.prefix]})

    rows = spark.range(1).mapInArrow(where, "x string").collect()
    assert [row.x for row in rows] == [sys.prefix]


def test_a_producer_writes_down_what_it_was_told(eoc_place, eoc_producer):
    """What is acknowledged is in the buffer, and a place's folders are the test's own."""
    log = LogWriter.open(eoc_place.buffer, BufferOptions())
    receiver = Receiver(log, ReceiverOptions(listen=("127.0.0.1", eoc_place.port))).start()
    try:
        feeder = eoc_producer(eoc_place.port, [b"a", b"b", b"c"])
        until(lambda: feeder.flushed, 20, "three lines durable")
        transcript = feeder.transcript()
    finally:
        receiver.stop()
        log.close()
    assert transcript.acknowledged == 3
    assert [line.value for line in read_buffer(eoc_place.buffer)] == [b"a", b"b", b"c"]
