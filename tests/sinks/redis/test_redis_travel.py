"""E10: a Redis writer works in a process that has the drivers, and not this package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from spark_eoc import RedisWriter
from spark_eoc.registration import travel_by_value
from spark_eoc.sinks.entries import Unit
from tests.sinks.redis.driving import Run, counters, rows_of, stored, totals

pytestmark = pytest.mark.compat

SCRIPT = """
import pathlib, pickle, sys
sink, writer, unit, rows = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
assert "spark_eoc" not in sys.modules
print(type(sink.apply(unit, sink.arrange(rows))).__name__, repr(writer))
"""


def test_e10_a_unit_is_applied_where_the_package_is_absent(
    new_run: Callable[..., Run], redis_server: Any, prefix: str, tmp_path: Path
) -> None:
    """Pickled by value as Spark does it, loaded by an isolated Python, applied; no secret shows."""
    travel_by_value()
    run = new_run("{k}", "hincrby", chunk_rows=3)
    run.open(0)
    rows = rows_of(counters())
    unit = Unit(run.writer_id, 0, 0, run.control.epoch, run.control.token, rows.fingerprint())
    writer = RedisWriter("redis://app:tr0ub4dor@127.0.0.1/0", key="u:{k}", command="del")
    pickled = cloudpickle.dumps((run.sink, writer, unit, rows))
    assert b"tr0ub4dor" not in pickled
    path = tmp_path / "pickled"
    path.write_bytes(pickled)
    done = subprocess.run(
        [sys.executable, "-I", "-c", SCRIPT, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("Applied"), done.stderr[-2000:]
    assert "tr0ub4dor" not in done.stdout + done.stderr
    run.reported[0] = rows.fingerprint()
    run.close()
    assert stored(redis_server.client(), prefix) == totals(counters())
