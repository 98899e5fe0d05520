"""One batch to several sinks, computed once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.writer import Writer, repeated_stage

LOGGER = logging.getLogger("spark_eoc.sinks")


class FanOut:
    """The callable that :func:`fan_out` returns."""

    def __init__(self, writers: tuple[Writer, ...]) -> None:
        self._writers = writers

    def __repr__(self) -> str:
        return f"fan_out({', '.join(map(repr, self._writers))})"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Writes ``df`` to every sink, also after one has failed; then raises the first error.

        Not to those that are left once Spark has attempted a stage twice: see ``repeated_stage``.
        """
        failed: list[Exception] = []
        watch = StageWatch(df)
        kept = _is_kept(df)
        frame = df if kept else df.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for number, writer in enumerate(self._writers):
                if number and watch.repeated():
                    # What is kept may be of two attempts that do not fit, and no later writer's
                    # own watch would see that.
                    failed.append(repeated_stage(batch_id, "what the sinks before have reported"))
                    break
                error = _tried(writer, frame, batch_id)
                failed += [error] if error else []
        finally:
            if not kept:  # the caller's own cache is the caller's to drop
                frame.unpersist()
        for error in failed[1:]:
            LOGGER.error("another sink failed too: %s", error)
        if failed:
            raise failed[0]


def _is_kept(df: DataFrame) -> bool:
    level = df.storageLevel
    return bool(level.useMemory or level.useDisk)


def _tried(writer: Writer, frame: DataFrame, batch_id: int) -> Exception | None:
    try:
        writer(frame, batch_id)
    except Exception as error:  # noqa: BLE001  it is raised once every sink was tried
        return error
    return None


def fan_out(*writers: Any) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that gives each batch to every writer and computes it once.

    A sink that fails does not keep the others from the batch: each is tried, then the first error
    is raised, so that Spark runs the batch again; sinks that have it compare it and write nothing.
    Two writers to one target need a ``writer_id`` each. Raises ConfigError.
    """
    if not writers or not all(isinstance(writer, Writer) for writer in writers):
        raise ConfigError(
            "fan_out takes writers, at least one",
            next_step="call it as fan_out(MySQLWriter(…), RedisWriter(…))",
        )
    if len({id(writer) for writer in writers}) < len(writers):
        raise ConfigError(
            "fan_out has one writer twice, which would write each batch once and refuse it then",
            next_step="name it once, or make a second one with a writer_id of its own",
        )
    return FanOut(writers)
