"""What ``spark-eoc buffer ls`` shows to people."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_eoc.buffer import LogReport
    from spark_eoc.buffer.objects.verify import ObjectReport


def head_lines(report: LogReport | ObjectReport) -> Iterator[str]:
    """What a buffer is, its consumers and its producers, one a line."""
    yield f"buffer   {report.buffer_id}"
    yield f"records  {report.start_offset} up to, not including, {report.end_offset}"
    yield f"epoch    {report.epoch}"
    for name, position in report.consumers.items():
        yield f"consumer {name}: committed {position.committed}, planned {position.handed_out}"
    for name, state in report.producers.items():
        seen = datetime.fromtimestamp(state.last_time_us / 1e6, timezone.utc)
        yield f"producer {name}: sent {state.last_sequence}, last {seen:%Y-%m-%d %H:%M:%S}Z"
    if report.expired_producers:
        yield f"producers whose number expired: {report.expired_producers}"


def log_table(report: LogReport) -> Iterator[str]:
    """A buffer in a folder, with its segments."""
    yield from head_lines(report)
    yield f"{'segment':>20} {'records':>12} {'bytes':>12} {'frames':>8}  epochs  created"
    for segment in report.segments:
        created = datetime.fromtimestamp(segment.created_us / 1e6, timezone.utc)
        yield (
            f"{segment.base_offset:>20} {segment.end_offset - segment.base_offset:>12} "
            f"{segment.size:>12} {segment.frames:>8}  {segment.first_epoch}-{segment.last_epoch}"
            f"     {created:%Y-%m-%d %H:%M:%S}Z{'  after a gap' if segment.after_gap else ''}"
        )


def object_table(report: ObjectReport) -> Iterator[str]:
    """A buffer in an object store, with its groups."""
    yield from head_lines(report)
    yield f"{'first chunk':>20} {'records':>12} {'bytes':>12}  last written"
    for group in report.groups:
        written = datetime.fromtimestamp(group.sealed_us / 1e6, timezone.utc)
        records = group.end_offset - group.base_offset
        yield f"{group.number:>20} {records:>12} {group.size:>12}  {written:%Y-%m-%d %H:%M:%S}Z"
