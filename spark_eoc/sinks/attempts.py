"""Whether Spark attempted a stage twice while a batch was computed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

LOGGER = logging.getLogger("spark_eoc.sinks")
_LISTENER_WAIT_MS = 10_000


class StageWatch:
    """Watches the jobs of this thread's job group from its construction on.

    A lost executor makes Spark run parts of a stage again, and after a shuffle whose order is not
    fixed the two halves need not fit: rows were lost and doubled in a job that succeeded. PySpark's
    TaskContext does not tell the stage's attempt, so Spark's status store is asked; it knows the
    stages before a shuffle as well. In local mode no stage is attempted twice.
    """

    def __init__(self, df: DataFrame) -> None:
        session = df.sparkSession
        context: Any | None = session.sparkContext if hasattr(session, "_jsparkSession") else None
        self._context: Any = None if context is None or _is_local(context) else context
        self._group = self._context and self._context.getLocalProperty("spark.jobGroup.id")
        self._before = set(self._jobs())

    def repeated(self) -> bool:
        """True if any stage of a job since construction was attempted more than once, and where
        that can't be known in time."""
        if self._context is None:
            return False
        if not self._settle():
            return True
        tracker = self._context.statusTracker()
        return any(
            stage is not None and stage.currentAttemptId > 0
            for job in set(self._jobs()) - self._before
            for stage in map(tracker.getStageInfo, _stages(tracker, job))
        )

    def _jobs(self) -> list[int]:
        if self._context is None:
            return []
        return list(self._context.statusTracker().getJobIdsForGroup(self._group))

    def _settle(self) -> bool:
        # The status store is fed by a queue; a stage's second attempt may still be in it.
        try:
            self._context._jsc.sc().listenerBus().waitUntilEmpty(_LISTENER_WAIT_MS)
        except Py4JJavaError:
            LOGGER.warning(
                "Spark's listener queue is %d s behind, so a stage that was attempted twice may "
                "not be known yet; the batch is not completed in this run",
                _LISTENER_WAIT_MS // 1000,
            )
            return False
        except Py4JError as error:
            LOGGER.debug("Spark's listener queue can't be waited for: %s", type(error).__name__)
        return True


def _is_local(context: Any) -> bool:
    return bool(context._jsc.sc().isLocal())


def _stages(tracker: Any, job: int) -> Iterator[int]:
    info = tracker.getJobInfo(job)
    return iter(() if info is None else info.stageIds)
