"""The stream reader that Spark talks to, one class for pyspark 4.0 to 4.3.

Spark builds it in several processes: one plans (``initialOffset`` to ``commit``, one process for
the life of a query), the others only call ``read``. So nothing is opened before the first
offset-side call. Which offset-side call comes first depends on version and checkpoint, so each
begins with ``_ensure_open``.

What it says next comes from its arguments and the log. The one exception is ``_last``: pyspark
4.0 and 4.1 call ``latestOffset`` without a start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_eoc.buffer.objects.store import is_object_url
from spark_eoc.buffer.slices import Slice
from spark_eoc.failpoints import hit
from spark_eoc.source.admission import Admission, admission_of, default_limit_of, partitions_of
from spark_eoc.source.attachment import Attachment, attach
from spark_eoc.source.compat import SupportsTriggerAvailableNow, since_4_2
from spark_eoc.source.offsets import (
    SourceOffset,
    decode_offset,
    encode_offset,
    initial_symbol,
    is_initial,
)
from spark_eoc.source.options import SourceOptions
from spark_eoc.source.reading import TaskReader
from spark_eoc.source.reading_objects import ObjectTaskReader

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

LOG = logging.getLogger("spark_eoc.source")

Encoded = dict[str, Any]

#: A batch asks for its start, its end and the end before.
_LOCATED_KEPT = 4


@dataclass(frozen=True)
class _Begin:
    """Where the next batch begins; ``floor`` is the least end that it may have."""

    offset: int
    floor: int
    is_first: bool


class ReplayableSocketReader(TaskReader, SupportsTriggerAvailableNow):
    """Plans batches of the log by offsets that Spark stores, and reads them in tasks.

    A batch is the half-open range of records ``[start, end)``, and is split as its end offset
    says, whatever the options are by then.
    """

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._attachment: Attachment | None = None
        self._located: list[tuple[Encoded, int]] = []
        self._reported: tuple[int, Encoded] | None = None
        self._last: Encoded | None = None
        self._target: int | None = None

    # --- offset-side: one process ---------------------------------------------------------

    def initialOffset(self) -> Encoded:
        """A constant: Spark asks again on a restart within batch 0, and must hear the same."""
        self._ensure_open()
        return initial_symbol()

    def latestOffset(self, start: Encoded | None = None, limit: ReadLimit | None = None) -> Encoded:
        """The end of the next batch, or ``start`` as it was given if there is nothing new.

        A batch without records comes once: the first, which fixes where the query began.
        """
        opened = self._ensure_open()
        opened.check()
        given = self._last if start is None else start
        end = self._next_end(opened, given, admission_of(self._options, limit))
        self._last = end
        hit("source.after_latest_offset")
        return end

    def partitions(self, start: Encoded, end: Encoded) -> list[InputPartition]:
        """The slices of ``[start, end)``; none if both are the same."""
        opened = self._ensure_open()
        hit("source.before_partitions")
        self._last = end
        stop = decode_offset(end)
        last = self._locate(opened, end)
        first = self._batch_start(opened, start, stop)
        opened.continuity.ordered(first, last)
        _hold_back(opened, first)
        if first >= last:
            return []
        slices = opened.log.split(
            first, last, stop.partitions, skip_gaps=not self._options.fail_on_data_loss
        )
        opened.position.hand_out(last)
        return [InputPartition(_pack(part)) for part in slices]

    def commit(self, end: Encoded) -> None:
        """What lies before ``end`` is never asked for again: the log may be trimmed there.

        Spark calls it after it has written ``offsets/N`` and ``commits/N-1``, which makes it safe
        for every crash. An error here would kill the query for lines that are safe, so it is
        logged; the next commit tries again.
        """
        opened = self._ensure_open()
        hit("source.before_commit")
        try:
            opened.position.commit(self._locate(opened, end))
        except Exception:
            LOG.warning(
                "the position of consumer %r could not be stored; nothing is trimmed until it can",
                self._options.consumer,
                exc_info=True,
            )

    def reportLatestOffset(self) -> Encoded:
        """How far the log is durable, for the progress report."""
        opened = self._ensure_open()
        end = opened.end_offset()
        if self._reported is None or self._reported[0] != end:
            self._reported = (end, encode_offset(_at(opened, end, 1, None)))
        return self._reported[1]

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on, what is durable at this moment is all there is."""
        opened = self._ensure_open()
        self._target = opened.end_offset()
        if self._options.receives:
            LOG.warning(
                "Trigger.AvailableNow on buffer %s: this run ends before record %d, the end of "
                "what was durable when it started; what %s brings from now on is for the next run",
                self._options.buffer_path,
                self._target,
                "host and port" if self._options.connect else "listen",
            )

    def stop(self) -> None:
        """Frees port and locks; Spark nearly never calls it, and nothing depends on it."""
        opened, self._attachment = self._attachment, None
        if opened is not None:
            opened.close()

    # --- anywhere: opens nothing ----------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As the reader that travels to tasks; called where a subclass travels whole."""
        return _task_reader(self._options)(self._options).read(partition)

    def getDefaultReadLimit(self) -> ReadLimit:
        """The one limit that Spark hands to ``latestOffset``; only asked by 4.2 and later."""
        kind, arguments = default_limit_of(self._options)
        limit: ReadLimit = since_4_2(kind)(**arguments)
        return limit

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Spark pickles a reader for its tasks only. A subclass travels whole, for its own `read`.
        if type(self) is ReplayableSocketReader:
            # Tasks connect to nothing, so no secret travels to them.
            return _task_reader(self._options), (replace(self._options, token=None),)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    # --- inside ---------------------------------------------------------------------------

    def _ensure_open(self) -> Attachment:
        if self._attachment is None:
            self._attachment = attach(self._options)
            self._warn_about_old_spark()
        return self._attachment

    def _warn_about_old_spark(self) -> None:
        limited = self._options.max_rows_per_trigger or self._options.max_bytes_per_trigger
        if limited and since_4_2("ReadLimit") is None:
            LOG.warning(
                "before pyspark 4.2, Trigger.AvailableNow is one batch: with maxRowsPerTrigger or "
                "maxBytesPerTrigger the rest stays for the next run"
            )

    def _next_end(self, opened: Attachment, given: Encoded | None, allowed: Admission) -> Encoded:
        begin = self._begin(opened, given)
        end = self._admitted(opened, begin.floor, allowed)
        if end == begin.offset and given is not None and not begin.is_first:
            return given
        _hold_back(opened, begin.offset)
        # Before Spark can store it: no offset of a checkpoint lies beyond what was handed out.
        opened.position.hand_out(end)
        partitions = partitions_of(self._options, end - begin.offset)
        first = begin.offset if begin.is_first else None
        return encode_offset(_at(opened, end, partitions, first))

    def _admitted(self, opened: Attachment, start: int, allowed: Admission) -> int:
        durable, least = opened.end_offset(), max(1, allowed.min_rows)
        if self._target is not None:
            # A batch of too few rows is the last one then, not one to wait for.
            durable, least = min(durable, self._target), 1
        if durable - start < least:
            return start
        return min(durable, opened.log.bound(start, allowed.max_rows, allowed.max_bytes))

    def _begin(self, opened: Attachment, given: Encoded | None) -> _Begin:
        if given is not None and not is_initial(given):
            offset = self._locate(opened, given)
            return _Begin(offset, offset, is_first=False)
        first = opened.continuity.first_record()
        if given is not None:
            return _Begin(first, first, is_first=True)
        # 4.0 and 4.1 with Trigger.AvailableNow: on a restart this call comes before any that
        # tells the checkpoint's offset. It is at most what this consumer has planned so far, and
        # an end before it would take the query backwards.
        return _Begin(first, max(first, opened.position.handed_out), is_first=True)

    def _batch_start(self, opened: Attachment, start: Encoded, stop: SourceOffset) -> int:
        if not is_initial(start):
            return self._locate(opened, start)
        # `from` is missing where the checkpoint is another source's, or was edited.
        first = stop.offset if stop.from_offset is None else stop.from_offset
        return opened.continuity.within(first, "the start of batch 0")

    def _locate(self, opened: Attachment, offset: Encoded) -> int:
        # An idle query asks 90 times a second with the same offset.
        for known, number in self._located:
            if known == offset:
                return number
        number = opened.continuity.locate(decode_offset(offset), "the checkpoint's offset")
        self._located = [(offset, number), *self._located[: _LOCATED_KEPT - 1]]
        return number


def _task_reader(options: SourceOptions) -> type[TaskReader]:
    return ObjectTaskReader if is_object_url(options.buffer_path) else TaskReader


def _hold_back(opened: Attachment, first: int) -> None:
    # A restored checkpoint, or a new one under an old name, needs again what was committed.
    if first < opened.position.committed:
        opened.position.rewind(first)


def _at(opened: Attachment, offset: int, partitions: int, first: int | None) -> SourceOffset:
    before = offset - 1 if offset > opened.log.start_offset() else offset
    epoch = opened.log.epoch_of(before)
    return SourceOffset(opened.log.buffer_id, epoch, offset, partitions, first)


def _pack(part: Slice) -> tuple[Any, ...]:
    # Plain values, so that each partition is 100 bytes and not the code of a class again.
    return (
        part.path,
        part.buffer_id,
        part.epoch,
        part.segment,
        part.position,
        part.first_offset,
        part.count,
    )
