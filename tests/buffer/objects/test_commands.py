"""``spark-eoc buffer`` on S3: what an operator sees, and what he can and can't do."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("obstore", reason="pip install 'spark-eoc[objectstore]'")

from spark_eoc.buffer import BufferOptions, LineBlock, Run
from spark_eoc.buffer.objects import ObjectPosition, ObjectWriter, ObstoreObjects
from spark_eoc.buffer.objects.verify import verify_objects
from spark_eoc.buffer.opening import open_position
from spark_eoc.cli.command import main
from spark_eoc.errors import FencedError
from tests.buffer.objects.stores import memory

SMALL = BufferOptions(segment_bytes=4096, max_buffer_bytes=1 << 20)


def fill(writer: ObjectWriter, chunks: int) -> None:
    """So many chunks of one line, two in a group."""
    for _ in range(chunks):
        first = writer.next_offset + 1
        block = LineBlock.from_lines([b"%04d" % first + b"x" * 3000], [Run(b"p", 1, first)])
        writer.append(block, receive_time_us=0)
        writer.sync()


@pytest.fixture
def says(capfd):
    """``says(argument, ...)`` is (exit code, output) of ``spark-eoc buffer``."""

    def call(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(["buffer", *arguments])
        out, err = capfd.readouterr()
        return code, out + err

    return call


def test_ls_cat_and_verify(s3_url, says):
    """For people, and as one JSON object; each reads beside the writer."""
    writer = ObjectWriter.open(s3_url, SMALL)
    fill(writer, 5)
    open_position(s3_url, "clicks").commit(2)
    code, shown = says("ls", s3_url)
    assert code == 0
    assert "records  0 up to, not including, 5" in shown
    assert "consumer clicks: committed 2" in shown
    assert "producer p: sent 5" in shown
    listed = json.loads(says("ls", s3_url, "--json")[1])
    code, text = says("verify", s3_url, "--json")
    verified = json.loads(text)
    assert (code, verified["damages"]) == (0, [])
    for facts in (listed, verified):
        assert facts["buffer_id"] == writer.buffer_id
        assert (facts["chunks"], facts["epoch"], facts["end_offset"]) == (6, 1, 5)
        assert [g["base_offset"] for g in facts["groups"]] == [0, 2, 4]
        assert facts["producers"]["p"]["last_sequence"] == 5
    code, text = says("cat", s3_url, "--from", "3", "--count", "1", "--json")
    assert json.loads(text)["value"] == "0004" + "x" * 3000
    writer.close()


def test_trim_works_beside_the_writer(s3_url, says):
    """Whatever the retention; the writer goes on, and the next one finds everything."""
    writer = ObjectWriter.open(s3_url, SMALL)
    fill(writer, 5)
    open_position(s3_url, "clicks").commit(5)
    open_position(s3_url, "gone")
    assert json.loads(says("trim", s3_url, "--json")[1])["start_offset"] == 0
    facts = json.loads(says("trim", s3_url, "--forget", "gone", "--json")[1])
    assert facts == {"start_offset": 4, "before": 0, "forgotten": True}
    fill(writer, 5)
    assert says("verify", s3_url)[0] == 0
    open_position(s3_url, "clicks").commit(10)
    writer.apply_trim()
    assert json.loads(says("trim", s3_url, "--json")[1]) == {
        "start_offset": 8,
        "before": 4,
        "forgotten": False,
    }
    writer.close()
    after = ObjectWriter.open(s3_url, SMALL)
    assert (after.start_offset, after.end_offset) == (8, 10)
    fill(after, 1)
    assert says("verify", s3_url)[0] == 0
    after.close()


def test_expire_takes_the_buffer_over(s3_url, says):
    """So that what it stores is the newest; the writer before is fenced, and may start again."""
    writer = ObjectWriter.open(s3_url, SMALL)
    fill(writer, 1)
    facts = json.loads(says("expire", s3_url, "--idle-days", "1", "--json")[1])
    assert facts == {"expired": 1, "left": 0, "remembered": 1}
    with pytest.raises(FencedError):
        fill(writer, 1)
    report = json.loads(says("verify", s3_url, "--json")[1])
    assert (report["damages"], report["producers"], report["expired_producers"]) == ([], {}, 1)
    assert report["end_offset"] == 1


def test_verify_names_what_is_damaged_or_missing(s3_url, says):
    """And repair, which can't make it again, says where it may come from."""
    writer = ObjectWriter.open(s3_url, SMALL)
    fill(writer, 5)
    writer.close()
    objects = ObstoreObjects(s3_url)
    name = "chunks/00000000000000000003"
    data = bytearray(objects.get(name))
    data[-100] ^= 1
    objects.delete([name, "chunks/00000000000000000005"])
    objects.create(name, bytes(data))
    code, shown = says("verify", s3_url)
    assert code == 1
    assert f"{name} at byte 128: its crc is not that of its bytes" in shown
    assert "chunks/00000000000000000005 at byte 0: it is missing" in shown
    code, shown = says("repair", s3_url)
    assert code == 2
    assert "copy of the bucket" in shown


def test_no_buffer_is_said_plainly(s3_url, says):
    """With exit code 1, and nothing is created."""
    for action in ("ls", "verify", "trim", "cat"):
        code, shown = says(action, s3_url)
        assert code == 1
        assert "there is no buffer" in shown


def test_a_trim_while_verify_reads_is_no_damage():
    """What is gone then isn't part of the buffer any more."""
    objects = memory()
    writer = ObjectWriter.open(objects.url, SMALL, objects=objects)
    fill(writer, 5)
    position = ObjectPosition(objects, "c")
    position.commit(5)
    names = objects.names

    def names_then_trim(folder):
        found = names(folder)
        if folder == "chunks":
            objects.names = names
            writer.options = BufferOptions(retention_ms=0, retention_bytes=0)
            writer.apply_trim()
        return found

    objects.names = names_then_trim
    report = verify_objects(objects)
    assert report.damages == ()
    assert report.start_offset == 4
