"""Failpoints are inert unless asked for, and act once, at the hit that was named."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FailpointError, hit, parse

PACKAGE = Path(__file__).parent.parent.parent / "spark_eoc"


@pytest.fixture(autouse=True)
def fresh_counts(monkeypatch: pytest.MonkeyPatch):
    """Hits are counted from 0 in every test."""
    monkeypatch.delitem(sys.__dict__, "_spark_eoc_failpoint_hits", raising=False)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.delenv(DIRECTORY, raising=False)
    yield
    sys.__dict__.pop("_spark_eoc_failpoint_hits", None)


def test_without_the_environment_nothing_happens():
    """Also for a name that does not exist: nothing is looked at."""
    hit("mysql.before_commit")
    hit("no such point")


def test_the_named_hit_raises_and_no_other(monkeypatch: pytest.MonkeyPatch):
    """``:3`` is the third hit of that name."""
    monkeypatch.setenv(ENVIRONMENT, "mysql.after_rows:3=raise")
    for _ in range(2):
        hit("mysql.after_rows")
        hit("mysql.before_rows")
    with pytest.raises(FailpointError, match=r"mysql\.after_rows"):
        hit("mysql.after_rows")
    hit("mysql.after_rows")


def test_sleep_takes_its_milliseconds(monkeypatch: pytest.MonkeyPatch):
    """``sleep:50`` waits at least 50 ms."""
    monkeypatch.setenv(ENVIRONMENT, "batch.before_open=sleep:50")
    began = time.monotonic()
    hit("batch.before_open")
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize(
    "wanted",
    ["nothing.such=kill", "mysql.after_rows", "mysql.after_rows=explode", "mysql.after_rows:x=kill",
     "mysql.after_rows=sleep", "mysql.after_rows=kill:3"],
)  # fmt: skip
def test_a_wrong_entry_is_refused_with_the_known_names(wanted: str):
    """A typing error must not look like a test that passes."""
    with pytest.raises(ConfigError, match=r"mysql\.before_commit"):
        parse(wanted)


def test_a_file_arms_and_disarms_a_running_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """``@PATH`` is read at every hit; a missing file names nothing."""
    armed = tmp_path / "armed"
    monkeypatch.setenv(ENVIRONMENT, f"@{armed}")
    hit("batch.after_open")
    armed.write_text("batch.after_open=raise")
    with pytest.raises(FailpointError):
        hit("batch.after_open")
    armed.write_text("")
    hit("batch.after_open")


def test_with_a_folder_each_fires_once_among_all_processes(tmp_path: Path):
    """Three processes hit a point armed to kill at the second hit: exactly the second dies."""
    code = "from spark_eoc.failpoints import hit; hit('redis.after_chunk')"
    environment = {
        ENVIRONMENT: "redis.after_chunk:2=kill",
        DIRECTORY: str(tmp_path),
        "PYTHONPATH": str(PACKAGE.parent),
    }
    codes = [
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode
        for _ in range(3)
    ]
    assert codes == [0, -signal.SIGKILL, 0]
    assert (tmp_path / "redis.after_chunk.fired").exists()
