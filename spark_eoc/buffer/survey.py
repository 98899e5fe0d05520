"""What can still be read of a segment, whatever happened to it; changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spark_eoc.buffer.directory import Identity, read_segment_header, segment_path
from spark_eoc.buffer.frame import Place
from spark_eoc.buffer.scan import (
    ByteReader,
    Change,
    Found,
    change_of,
    later_frames,
    walk,
)
from spark_eoc.buffer.segment import SEGMENT_HEADER_BYTES, SegmentHeader


@dataclass(frozen=True)
class Damage:
    """Bytes that are not what was written."""

    file: str
    position: int
    why: str


@dataclass
class Piece:
    """Whole frames one behind the other, with what each does to the table of producers."""

    frames: list[tuple[Found, Change | None]] = field(default_factory=list)

    @property
    def base_offset(self) -> int:
        """Its first record."""
        return self.frames[0][0].header.base_offset

    @property
    def end_offset(self) -> int:
        """One past its last record."""
        return self.frames[-1][0].header.end_offset


@dataclass
class SegmentSurvey:
    """A segment as it is: the pieces that can be read, rising, and what is wrong between."""

    path: Path
    base_offset: int
    size: int
    header: SegmentHeader | None
    pieces: list[Piece] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        """One past the last record that can be read; its base offset if there is none."""
        return self.pieces[-1].end_offset if self.pieces else self.base_offset


def survey_segment(
    directory: Path, base: int, identity: Identity, end_position: int | None = None
) -> SegmentSurvey:
    """Reads all of a segment, or up to ``end_position``, and checks every frame."""
    path = segment_path(directory, base)
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        end = size if end_position is None else min(size, end_position)
        survey = SegmentSurvey(path, base, size, _header(path, base, identity))
        if survey.header is None:
            survey.damages.append(Damage(str(path), 0, "the header is not what was written"))
        reader = ByteReader(file.fileno())
        for piece, bad_position in _pieces(reader, survey, end, identity.tag):
            if piece.frames:
                survey.pieces.append(piece)
            if bad_position < end:
                survey.damages.append(
                    Damage(str(path), bad_position, f"no frame with {survey.end_offset} is here")
                )
    return survey


def _header(path: Path, base: int, identity: Identity) -> SegmentHeader | None:
    header = read_segment_header(path)
    sound = header and header.buffer_id == identity.raw and header.base_offset == base
    return header if sound else None


def _pieces(
    reader: ByteReader, survey: SegmentSurvey, end: int, tag: bytes
) -> Iterator[tuple[Piece, int]]:
    """(piece, where it ends) until nothing more can be read."""
    place: Place | None = None
    if survey.header is not None:
        place = Place(SEGMENT_HEADER_BYTES, survey.base_offset, survey.header.crc)
    position = 0
    while True:
        piece = Piece()
        if place is not None:
            for found in walk(reader, place, end, tag):
                piece.frames.append((found, change_of(reader, found)))
            position = piece.frames[-1][0].after.position if piece.frames else place.position
            yield piece, position
        least = max(survey.end_offset, survey.base_offset)
        found_again = _next_frame(reader, position, end, tag, least)
        if found_again is None:
            return
        header = found_again.header
        place = Place(found_again.position, header.base_offset, header.previous_crc)


def _next_frame(
    reader: ByteReader, position: int, end: int, tag: bytes, least: int
) -> Found | None:
    for found in later_frames(reader, position, end, tag):
        if found.header.records and found.header.base_offset >= least:
            return found
    return None
