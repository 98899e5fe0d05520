"""The plugin's fixtures."""

from __future__ import annotations

import os
import sys

import pyarrow as pa
import pytest

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


def test_the_warm_session_runs_python_workers_of_this_interpreter(spark):
    """Workers are this interpreter, so that they find pyarrow."""

    def where(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"x": [sys.prefix]})

    rows = spark.range(1).mapInArrow(where, "x string").collect()
    assert [row.x for row in rows] == [sys.prefix]
