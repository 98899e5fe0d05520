"""Checking a whole log, frame by frame, without changing it; `spark-eoc buffer verify` and `ls`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from spark_eoc.buffer.block import ProducerState
from spark_eoc.buffer.consumers import Position, read_positions
from spark_eoc.buffer.directory import Identity, list_segments, read_identity, segment_path
from spark_eoc.buffer.expiry import count_expired, known_producers
from spark_eoc.buffer.published import PublishedEnd, read_published, read_start
from spark_eoc.buffer.scan import ProducerTable
from spark_eoc.buffer.segment import AFTER_GAP
from spark_eoc.buffer.survey import Damage, SegmentSurvey, survey_segment
from spark_eoc.errors import LogError


@dataclass(frozen=True)
class SegmentReport:
    """One segment: records ``[base_offset, end_offset)``, ``size`` in bytes, the epochs of its
    frames; ``after_gap`` if a repair gave up records before it."""

    file: str
    base_offset: int
    end_offset: int
    size: int
    frames: int
    first_epoch: int
    last_epoch: int
    created_us: int
    after_gap: bool


@dataclass(frozen=True)
class LogReport:
    """A whole log, and every damage that was found. ``torn_bytes`` lie behind the published end;
    the next writer cuts or keeps them, and they are no damage. Of ``expired_producers`` only
    digests of the names are known."""

    path: str
    buffer_id: str
    start_offset: int
    end_offset: int
    epoch: int
    segments: tuple[SegmentReport, ...]
    consumers: dict[str, Position]
    producers: dict[str, ProducerState]
    damages: tuple[Damage, ...]
    torn_bytes: int
    expired_producers: int


def verify(path: str | Path) -> LogReport:
    """Reads the whole log and checks every frame, beside a writer if there is one.

    Raises LogError if there is no buffer; damage is reported, not raised.
    """
    directory = Path(path)
    identity = read_identity(directory)
    if identity is None:
        raise LogError(f"there is no buffer at {directory}", path=str(directory))
    published = read_published(directory)
    bases = [
        base for base in list_segments(directory) if published is None or base <= published.segment
    ]
    surveys = list(_surveys(directory, bases, identity, published))
    start = read_start(directory)
    table = _producers(surveys)
    return LogReport(
        path=str(directory),
        buffer_id=identity.buffer_id,
        start_offset=start if start is not None else min(bases, default=0),
        end_offset=published.end_offset if published else max(bases, default=0),
        epoch=published.epoch if published else 0,
        segments=tuple(_report(survey) for survey in surveys),
        consumers=read_positions(directory),
        producers={
            name.decode("utf-8", "replace"): state for name, state in known_producers(table).items()
        },
        expired_producers=count_expired(table),
        damages=(*_damages(surveys), *_missing(directory, surveys, start, published)),
        torn_bytes=_torn_bytes(surveys, published),
    )


def _surveys(
    directory: Path, bases: list[int], identity: Identity, published: PublishedEnd | None
) -> Iterator[SegmentSurvey]:
    for base in bases:
        is_active = published is not None and published.segment == base
        end = published.position if published is not None and is_active else None
        yield survey_segment(directory, base, identity, end)


def _report(survey: SegmentSurvey) -> SegmentReport:
    frames = [found for piece in survey.pieces for found, _ in piece.frames]
    epochs = [found.header.epoch for found in frames] or [0]
    return SegmentReport(
        file=str(survey.path),
        base_offset=survey.base_offset,
        end_offset=survey.end_offset,
        size=survey.size,
        frames=len(frames),
        first_epoch=epochs[0],
        last_epoch=epochs[-1],
        created_us=survey.header.created_us if survey.header else 0,
        after_gap=bool(survey.header and survey.header.flags & AFTER_GAP),
    )


def _producers(surveys: list[SegmentSurvey]) -> dict[bytes, ProducerState]:
    table = ProducerTable()
    for survey in surveys:
        for piece in survey.pieces:
            for _, change in piece.frames:
                table.apply(change)
    return table.states


def _damages(surveys: list[SegmentSurvey]) -> Iterator[Damage]:
    for survey, following in zip(surveys, [*surveys[1:], None], strict=True):
        for damage in survey.damages:
            # Behind the records of a sealed segment recovery may have left what it moved on.
            done = following is not None and survey.end_offset >= following.base_offset
            if not done or survey.header is None or len(survey.pieces) > 1:
                yield damage


def _missing(
    directory: Path,
    surveys: list[SegmentSurvey],
    start: int | None,
    published: PublishedEnd | None,
) -> Iterator[Damage]:
    """What should be there by the start pointer, the headers and the published end."""
    if surveys and start is not None and surveys[0].base_offset > start:
        path = segment_path(directory, start)
        yield Damage(str(path), 0, f"records {start} to {surveys[0].base_offset} are missing")
    for survey, following in pairwise(surveys):
        gap = following.header is not None and following.header.flags & AFTER_GAP
        if survey.end_offset < following.base_offset and not gap:
            why = f"records {survey.end_offset} to {following.base_offset} are missing"
            yield Damage(str(survey.path), survey.size, why)
    end = surveys[-1].end_offset if surveys else 0
    if published is not None and end < published.end_offset:
        file = str(surveys[-1].path if surveys else directory)
        yield Damage(file, 0, f"records {end} to {published.end_offset} are missing")


def _torn_bytes(surveys: list[SegmentSurvey], published: PublishedEnd | None) -> int:
    if not surveys or published is None or surveys[-1].base_offset != published.segment:
        return 0
    return max(surveys[-1].size - published.position, 0)
