"""Who calls, and with which offsets: query, run, and the digest of Spark's offsets log.

The only module of the sinks that looks into Spark's streaming engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

from spark_eoc.errors import ConfigError

LOGGER = logging.getLogger("spark_eoc.sinks")

_SETTINGS = ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")


@dataclass(frozen=True)
class Identity:
    """Who a run is. ``root`` is its checkpoint, None where it is not known.

    ``trigger_age_us`` is how long before ``identify`` Spark began its trigger, 0 where it is not
    told; ``settings`` decide how a batch is split.
    """

    query_id: str
    run_id: str
    root: str | None
    trigger_age_us: int
    settings: dict[str, str]


def run_key(df: DataFrame, own_run: str) -> tuple[str, str]:
    """What tells this call's run from others at the price of two questions to Spark."""
    context = _classic_context(df)
    if context is None:
        return "", own_run
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return str(query_id or ""), str(context.getLocalProperty("spark.jobGroup.id") or own_run)


def identify(df: DataFrame, location: str | None, own_run: str) -> Identity:
    """The identity of the run that calls; ConfigError if there is none.

    On Classic, Spark's local properties tell query and run, and its engine the checkpoint. On
    Spark Connect neither is set: ``location`` is read as a local path, and ``own_run`` names the
    run.
    """
    context = _classic_context(df)
    query_id = context and context.getLocalProperty("sql.streaming.queryId")
    execution = _execution(df, query_id) if query_id else None
    root = location or (execution and _checkpoint_root(execution))
    return Identity(
        query_id or _query_id_of(df, root),
        _run_id(context, execution) or own_run,
        root,
        _trigger_age_us(df, execution),
        _settings(df, context),
    )


def offsets_digest(df: DataFrame, root: str | None, batch_id: int) -> str | None:
    """The digest of Spark's ``offsets/<batch_id>``, None where it can't be read."""
    content = _read(df, root, f"offsets/{batch_id}") if root else None
    return None if content is None else hashlib.sha256(content).hexdigest()


def new_run_id() -> str:
    """A name for a run that Spark does not name."""
    return f"process-{uuid.uuid4()}"


def _classic_context(df: DataFrame) -> Any:
    session = df.sparkSession
    return session.sparkContext if hasattr(session, "_jsparkSession") else None


def _execution(df: DataFrame, query_id: str) -> Any:
    """The engine's object of the running query; foreachBatch gets a cloned session, whose own
    list of queries is empty, so the list that all sessions share is asked."""
    try:
        session: Any = df.sparkSession
        jvm = session.sparkContext._jvm
        shared = session._jsparkSession.sharedState().activeStreamingQueries()
        return shared.get(jvm.java.util.UUID.fromString(query_id))
    except (Py4JError, TypeError) as error:
        LOGGER.debug("Spark's running queries can't be listed: %s", type(error).__name__)
        return None


def _run_id(context: Any, execution: Any) -> str | None:
    """The engine's own; else the job group, which is the same unless the user has set another."""
    if execution is not None:
        try:
            return str(execution.runId().toString())
        except (Py4JError, TypeError):
            LOGGER.debug("Spark does not tell the run id")
    return str(context.getLocalProperty("spark.jobGroup.id") or "") if context else None


def _checkpoint_root(execution: Any) -> str | None:
    try:
        return str(execution.resolvedCheckpointRoot())
    except (Py4JError, TypeError):
        LOGGER.debug("Spark does not tell the checkpoint's location")
        return None


def _trigger_age_us(df: DataFrame, execution: Any) -> int:
    """Microseconds since the engine began this trigger, and so read the checkpoint."""
    if execution is None:
        return 0
    try:
        session: Any = df.sparkSession
        began = execution.getLatestExecutionContext().currentTriggerStartTimestamp()
        now = session.sparkContext._jvm.java.lang.System.currentTimeMillis()
        return max(0, now - began) * 1000 if began > 0 else 0
    except (Py4JError, TypeError):
        LOGGER.debug("Spark does not tell when the trigger began")
        return 0


def _query_id_of(df: DataFrame, root: str | None) -> str:
    text = _read(df, root, "metadata") if root else None
    if text is None:
        raise ConfigError(
            "the writer can't tell which query calls it: Spark gives no query id here (Spark "
            f"Connect, or no streaming query), and {root or 'no checkpoint_location'} has no "
            "readable metadata file",
            applied="nothing",
            next_step="pass checkpoint_location=<the query's checkpointLocation> to the writer, "
            "as a path that the driver's host can read",
        )
    return str(json.loads(text)["id"])


def _read(df: DataFrame, root: str, name: str) -> bytes | None:
    """A file of the checkpoint: by its local path, else by Hadoop where there is a JVM.

    The driver's Python and its JVM share a host, and a local read saves a dozen questions to it.
    """
    root = root.rstrip("/")
    content = _read_local(root, name)
    if content is None and _classic_context(df) is not None:
        content = _read_hadoop(df, root, name)
    if content is None:
        LOGGER.warning("%s/%s can't be read", root, name)
    return content


def _read_hadoop(df: DataFrame, root: str, name: str) -> bytes | None:
    try:
        session: Any = df.sparkSession
        jvm = session.sparkContext._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{root}/{name}")
        conf = session._jsparkSession.sessionState().newHadoopConf()
        stream = path.getFileSystem(conf).open(path)
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()
    except (Py4JError, TypeError) as error:
        LOGGER.debug("Hadoop can't read %s/%s: %s", root, name, type(error).__name__)
        return None


def _read_local(root: str, name: str) -> bytes | None:
    path = unquote(urlparse(root).path) if root.startswith("file:") else root
    try:
        return (Path(path) / name).read_bytes()
    except OSError:
        return None


def _settings(df: DataFrame, context: Any) -> dict[str, str]:
    """The settings that decide how a batch is split, for the message of a mismatch."""
    conf = df.sparkSession.conf
    settings = {name: str(conf.get(name)) for name in _SETTINGS}
    if context is not None:
        settings["spark.default.parallelism"] = str(context.defaultParallelism)
    return settings
