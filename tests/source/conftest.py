"""Fixtures of the source's tests."""

from __future__ import annotations

import pytest

import spark_eoc
from tests.source.source_runs import Buffer, Checkpoint, Run, frame_of


@pytest.fixture
def buffer_of():
    """Makes buffers with other options, closed after the test."""
    made = []

    def make(path, **options):
        made.append(Buffer(path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def buffer(tmp_path, buffer_of):
    return buffer_of(tmp_path / "buffer")


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints by name, for several queries."""
    return lambda name: Checkpoint(tmp_path / f"checkpoint-{name}")


@pytest.fixture
def start(spark, stop_queries, buffer, checkpoint):
    """Starts a run on the test's buffer and checkpoint, or on others."""
    spark_eoc.register(spark)

    def begin(*, path=None, to=None, **more):
        return Run(spark, path or buffer.path, to or checkpoint, **more)

    return begin


@pytest.fixture
def frame(spark):
    """Builds a frame and starts nothing."""
    spark_eoc.register(spark)

    def build(path, **given):
        return frame_of(spark, path, **given)

    return build
