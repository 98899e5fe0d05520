"""Building a frame: columns, types, refusals; and that it touches nothing."""

from __future__ import annotations

import socket
from datetime import datetime, timezone

import pytest
from pyspark.errors import AnalysisException

from spark_eoc.testing.wait import until

pytestmark = pytest.mark.compat


def test_creating_a_frame_never_connects_or_locks(frame, tmp_path):
    """S5: a probing connection broke netcat. Frame, schema and explain() leave all alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        port = server.getsockname()[1]
        lines = frame(tmp_path / "b", host="127.0.0.1", port=port)
        assert lines.schema.simpleString() == "struct<value:string>"
        lines.explain()
        lines.selectExpr("upper(value)").explain(extended=True)
        with pytest.raises(TimeoutError):
            server.accept()
    listening = frame(tmp_path / "b", listen=f"127.0.0.1:{port}")
    listening.explain()
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert not (tmp_path / "b").exists()


def test_a_server_that_takes_one_connection_is_enough(start, tmp_path, spark):
    """S5: the whole life of a query is one connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        port = server.getsockname()[1]
        run = start(path=tmp_path / "b", host="127.0.0.1", port=port)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"one\ntwo\n")
            run.drain(2)
            server.settimeout(0.5)
            with pytest.raises(TimeoutError):
                server.accept()
        run.stop()
    assert run.values == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({}, "value:string"),
        ({"includeTimestamp": "true"}, "value:string,timestamp:timestamp"),
        ({"includeOffset": "true"}, "value:string,offset:bigint"),
        (
            {"includeTimestamp": "true", "includeOffset": "true", "encodingErrors": "binary"},
            "value:binary,timestamp:timestamp,offset:bigint",
        ),
    ],
)
def test_columns_follow_the_options(frame, tmp_path, options, columns):
    assert frame(tmp_path, **options).schema.simpleString() == f"struct<{columns}>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"maxRowsPerTrigger": "many"}, "digits only"),
        ({"host": "localhost"}, "without port"),
    ],
)
def test_a_bad_option_is_refused_when_the_frame_is_built(frame, tmp_path, options, words):
    """Not at start, and not by a task: with the option's name and the remedy."""
    with pytest.raises(AnalysisException, match=words):
        frame(tmp_path, **options)


def test_another_schema_is_refused(spark, start, tmp_path, buffer):
    reader = spark.readStream.format("replayable_socket").schema("line STRING")
    lines = reader.option("bufferPath", str(buffer.path)).load()
    query = (
        lines.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    until(lambda: not query.isActive, 60, "the refusal")
    assert "leave out .schema" in str(query.exception())


def test_all_columns_of_all_batches(start, buffer):
    """Types as Spark declares them, the time in UTC, the offset the record's number."""
    buffer.add(["a", "b"], time_us=1_700_000_000_123_456)
    run = start(includeTimestamp="true", includeOffset="true").drain(2)
    buffer.add(["c"], time_us=1_700_000_001_000_000)
    rows = [row for batch in sorted(run.drain(3).batches) for row in run.batches[batch]]
    assert [(row[0], row[2]) for row in rows] == [("a", 0), ("b", 1), ("c", 2)]
    first = rows[0][1].astimezone(timezone.utc)
    assert first == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc)


def test_the_time_of_receipt_is_equal_on_replay(start, buffer, checkpoint):
    """It is stored with the line: a window aggregate gives the same again."""
    buffer.add(["a", "b"], time_us=1_700_000_000_123_456)
    first = start(includeTimestamp="true").drain(2).settle().stop()
    batch = checkpoint.drop_last_commit()
    buffer.restart()
    second = start(includeTimestamp="true").drain(2)
    assert second.batches[batch] == first.batches[batch]


def test_invalid_utf8_is_replaced_by_default(start, buffer):
    """Spark passes it on unchecked, and functions on such strings give nonsense."""
    buffer.add([b"good", b"caf\xe9", "grün".encode()])
    run = start(change=lambda f: f.selectExpr("value", "encode(value, 'utf-8') AS bytes")).drain(3)
    rows = run.batches[0]
    assert [row[0] for row in rows] == ["good", "caf\ufffd", "grün"]
    assert bytes(rows[1][1]) == b"caf\xef\xbf\xbd"


def test_invalid_utf8_ends_a_strict_query_naming_the_line(start, buffer):
    buffer.add([b"good", b"caf\xe9"])
    error = start(encodingErrors="strict").error()
    assert "BadLineError" in error
    assert "line 1 is not valid UTF-8" in error


def test_binary_is_as_received(start, buffer):
    lines = [b"good", b"caf\xe9", b"\x00\xff", b"", b"\r"]
    buffer.add(lines)
    run = start(encodingErrors="binary").drain(5)
    assert [bytes(value) for value in run.values] == lines


def test_odd_but_valid_lines_come_as_they_are(start, buffer):
    lines = ["", "\ufeffbom", "a\x00b", "\r", "👩‍👩‍👧", "x" * 100_000]
    buffer.add(lines)
    assert start().drain(len(lines)).values == lines


def test_a_path_that_holds_no_buffer_is_refused_in_plain_words(start, tmp_path):
    """Read-only use, and nobody has filled it."""
    error = start(path=tmp_path / "nowhere").error()
    assert "holds no buffer" in error
    assert "spark-eoc receive" in error
