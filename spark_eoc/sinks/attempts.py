"""Whether Spark attempted a stage twice while a batch was computed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

LOGGER = logging.getLogger("spark_eoc.sinks")
_LISTENER_WAIT_MS = 10_000
#: Jobs of the same run before the watch, which may have computed a part of a kept frame.
_EARLIER_JOBS = 32
#: With fewer, what a batch's jobs did may be forgotten before it is asked for.
_RETAINED = 200


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
        tracker, jobs = self._context.statusTracker(), self._jobs()
        lost, written = self._lost_executors(), set[str]()
        if lost and self._forgets():
            return True
        earlier = sorted(self._before.intersection(jobs))[-_EARLIER_JOBS:] if lost else []
        for job in (*earlier, *sorted(set(jobs) - self._before)):
            new = job not in self._before
            for stage in _stages(tracker, job):
                info = tracker.getStageInfo(stage)
                if info is not None and new and info.currentAttemptId > 0:
                    return True
                if info is None or not lost or not info.numCompletedTasks:
                    continue
                shuffle = self._shuffle(stage)
                if new and shuffle in written:
                    return True
                written |= {shuffle} if shuffle else set()
        return False

    def _lost_executors(self) -> bool:
        store = self._context._jsc.sc().statusStore()
        return bool(store.executorList(False).size() > store.executorList(True).size())

    def _forgets(self) -> bool:
        """Whether Spark's status store may have dropped jobs or stages of this batch."""
        conf = self._context.getConf()
        names = ("spark.ui.retainedJobs", "spark.ui.retainedStages")
        return any(int(conf.get(name, "1000")) < _RETAINED for name in names)

    def _shuffle(self, stage: int) -> str | None:
        """What names the shuffle that a stage wrote, None where it wrote none.

        Once the job of a shuffle has ended, what an executor took with it is computed by a *new*
        stage, of which that is the first attempt: with AQE, where each shuffle is a job of its own,
        and under a frame that is kept. Only the RDDs tell that it is the same shuffle.
        """
        data = self._context._jsc.sc().statusStore().lastStageAttempt(stage)
        return str(data.rddIds().mkString(",")) if data.shuffleWriteRecords() else None

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
