"""Finding start and end among dense numbers, also while chunks are trimmed."""

from __future__ import annotations

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.buffer import BufferOptions, LineBlock
from spark_eoc.buffer.objects import ObjectPosition, ObjectReader, ObjectWriter
from spark_eoc.buffer.objects.extent import chunk_name, find_extent, read_header
from spark_eoc.errors import CorruptLogError
from tests.buffer.objects.stores import memory

OPTIONS = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20, retention_ms=0)


def filled(objects, lines):
    """A writer that has stored each line as a chunk of its own."""
    writer = ObjectWriter.open(objects.url, OPTIONS, objects=objects, poll_seconds=0)
    add(writer, lines)
    return writer


def add(writer, lines):
    for number in range(lines):
        writer.append(LineBlock.from_lines([b"%d" % number * 400]), receive_time_us=1)
        writer.sync()


def trim_all(objects, writer):
    ObjectPosition(objects, "default").commit(writer.end_offset)
    assert writer.apply_trim() > 0


def test_the_end_is_found_from_every_chunk_that_was_seen_before():
    """And from none, for every number of chunks."""
    objects = memory()
    writer = filled(objects, 0)
    buffer_id = bytes.fromhex(writer.buffer_id)
    for end in range(1, 34):
        for seen in [None, *range(1, end + 1)]:
            known = None if seen is None else read_header(objects, seen, buffer_id)
            extent = find_extent(objects, buffer_id, known)
            assert extent.last is not None
            assert extent.last.number == end
        add(writer, 1)


def test_a_follower_whose_place_was_trimmed_finds_the_end():
    """The chunk behind the last that it has seen is missing, and not because it is the end."""
    objects = memory()
    writer = filled(objects, 3)
    reader = ObjectReader(objects.url, objects=objects, poll_seconds=0)
    assert reader.end_offset() == 3
    add(writer, 60)
    trim_all(objects, writer)
    assert reader.end_offset() == 63
    assert reader.start_offset() == writer.start_offset


@pytest.mark.parametrize("at", range(1, 12))
def test_a_trim_in_the_middle_of_the_search_misleads_nobody(at):
    """Whichever request it comes before."""
    objects = memory()
    writer = filled(objects, 60)
    buffer_id = bytes.fromhex(writer.buffer_id)

    class Trimming:
        url, requests = objects.url, 0

        def _ask(self, call, *arguments):
            self.requests += 1
            if self.requests == at:
                trim_all(objects, writer)
            return call(*arguments)

        def head(self, name, length):
            return self._ask(objects.head, name, length)

        def names(self, folder):
            return self._ask(objects.names, folder)

    extent = find_extent(Trimming(), buffer_id, read_header(objects, 2, buffer_id))
    assert extent.last is not None
    assert extent.last.end_offset == 60


def test_a_buffer_whose_first_chunk_is_missing_is_refused():
    """Somebody else has deleted it, such as a lifecycle rule: never taken for an empty buffer."""
    objects = memory()
    writer = filled(objects, 40)
    trim_all(objects, writer)
    objects.delete([chunk_name(number) for number in range(1, 60)])
    with pytest.raises(CorruptLogError, match="missing"):
        ObjectReader(objects.url, objects=objects).end_offset()
    with pytest.raises(CorruptLogError, match="missing"):
        filled(objects, 0)
