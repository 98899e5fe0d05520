"""Named points in product code at which a test may kill, stop, delay or fail the process.

Inert unless the environment variable ``SPARK_EOC_FAILPOINT`` names one::

    SPARK_EOC_FAILPOINT="mysql.before_commit:3=kill,buffer.after_fsync=sleep:200"

Each entry is ``name[:count]=action``; ``count`` is the hit that fires (default 1, the first).
Actions: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP), ``raise``
(:class:`FailpointError`) and ``sleep:ms``.

Hits are counted per process. When ``SPARK_EOC_FAILPOINT_DIR`` names a folder, hits are counted
over all processes that share it, and each entry fires **once** among them, leaving a file
``<name>.fired`` that a test can wait for. Without it a restarted process fires again.

``SPARK_EOC_FAILPOINT="@PATH"`` reads the entries from that file at every hit, so that processes
that already run can be armed and disarmed; a file that is not there names nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from spark_eoc.errors import ConfigError, SparkEocError

ENVIRONMENT = "SPARK_EOC_FAILPOINT"
DIRECTORY = "SPARK_EOC_FAILPOINT_DIR"

#: Every failpoint of the product, with the step that it stands at. A test checks that each is
#: reached by product code, and `python -m spark_eoc.testing.failpoints` runs through them all.
FAILPOINTS: dict[str, str] = {
    # receiver
    "receiver.after_read": "bytes were read from a socket, none is in the log",
    "receiver.before_ack": "lines are durable, the producer has not been told",
    "receiver.after_ack": "the producer has been told",
    # buffer
    "buffer.before_append": "before a frame is written",
    "buffer.after_append": "a frame is written, not synced",
    "buffer.after_fsync": "a frame is synced, the published end is old",
    "buffer.after_publish": "the published end is new",
    "buffer.roll_before_header": "the new segment exists, empty",
    "buffer.roll_after_header": "the new segment has its header, the directory is not synced",
    "buffer.trim_before_start": "before the new start is written",
    "buffer.trim_after_start": "the new start is durable, no segment is deleted",
    "buffer.trim_after_unlink": "one segment is deleted, the directory is not synced",
    # source
    "source.after_latest_offset": "an end offset is about to be returned to Spark",
    "source.before_partitions": "a batch is about to be split",
    "source.read_partition": "a task is about to read its first record",
    "source.before_commit": "Spark says that a batch is done, its position is not stored",
    # a batch, on the driver
    "batch.before_open": "nothing of this batch is in the ledger",
    "batch.after_open": "the control entry is committed, no unit has run",
    "batch.before_close": "every unit is applied, the batch is open",
    "batch.after_close": "the batch is complete in the ledger, Spark does not know",
    # in batch atomicity, on the driver
    "batch.before_publish": "every partition is staged, nothing is in the target",
    "batch.after_publish": "the batch is published and complete, Spark does not know",
    # a unit, in a task
    "mysql.before_rows": "the partition is read, the transaction is not begun",
    "mysql.after_rows": "rows are sent, the unit entry is not",
    "mysql.after_unit": "rows and unit entry are sent",
    "mysql.before_commit": "the same, directly before COMMIT",
    "mysql.after_commit": "the unit is committed, the task has not returned",
    # in batch atomicity, a task stages, the driver publishes
    "mysql.before_stage": "the partition is read, nothing of it is staged",
    "mysql.after_stage": "the partition is staged, the task has not returned",
    "mysql.publish_after_rows": "the rows are moved, the ledger's entries are not sent",
    "mysql.publish_before_commit": "rows and entries are sent",
    "mysql.publish_after_commit": "the batch is published, the driver has not gone on",
    "redis.before_chunk": "the partition is read, this chunk is not sent",
    "redis.after_chunk": "a chunk is applied, more may follow",
    "redis.before_stage": "the partition is read, this chunk is not staged",
    "redis.after_stage": "the partition is staged, the task has not returned",
    "redis.after_unit": "the unit is applied, the task has not returned",
}


class FailpointError(SparkEocError):
    """Raised by the action ``raise``; never raised otherwise."""


def hit(name: str) -> None:
    """Marks that the step ``name`` is reached; does nothing unless a test asked for it."""
    wanted = os.environ.get(ENVIRONMENT)
    if wanted:
        _fire(name, wanted)


def parse(wanted: str) -> dict[str, tuple[int, str]]:
    """Name to (count, action) of a ``SPARK_EOC_FAILPOINT`` value; raises ConfigError."""
    entries: dict[str, tuple[int, str]] = {}
    for entry in filter(None, (part.strip() for part in wanted.split(","))):
        point, equals, action = entry.partition("=")
        name, _, count = point.partition(":")
        verb, _, millis = action.partition(":")
        if (
            name not in FAILPOINTS
            or not equals
            or not (count or "1").isdigit()
            or verb not in ("kill", "stop", "raise", "sleep")
            or (verb == "sleep") != millis.isdigit()
        ):
            raise ConfigError(
                f"{ENVIRONMENT} entry {entry!r} is not name[:count]=kill|stop|raise|sleep:ms "
                "with a known name",
                next_step=f"use one of {', '.join(sorted(FAILPOINTS))}",
            )
        entries[name] = (int(count or "1"), action)
    return entries


def _fire(name: str, wanted: str) -> None:
    entry = parse(_read(wanted[1:]) if wanted.startswith("@") else wanted).get(name)
    if entry is None:
        return
    count, action = entry
    folder = os.environ.get(DIRECTORY)
    if (_shared_hits(Path(folder), name) if folder else _own_hits(name)) != count:
        return
    if folder:
        (Path(folder) / f"{name}.fired").touch()
    _act(name, action)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except FileNotFoundError:
        return ""


def _own_hits(name: str) -> int:
    # Pickled by value, this module's globals are fresh in every task of a reused worker; `sys`
    # is the one place that every copy shares.
    hits: dict[str, int] = sys.__dict__.setdefault("_spark_eoc_failpoint_hits", {})
    hits[name] = hits.get(name, 0) + 1
    return hits[name]


def _shared_hits(folder: Path, name: str) -> int:
    # O_APPEND makes the write atomic, and our own position after it is our number.
    descriptor = os.open(folder / f"{name}.hits", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    finally:
        os.close(descriptor)


def _act(name: str, action: str) -> None:
    verb, _, millis = action.partition(":")
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif verb == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif verb == "sleep":
        time.sleep(int(millis) / 1000)
    else:
        raise FailpointError(f"failpoint {name}")
