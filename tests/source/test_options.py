"""The options of format("replayable_socket"): what is accepted, and how the rest is refused."""

from __future__ import annotations

import pickle

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.source.options import OPTION_NAMES, SourceOptions, parse_options
from spark_eoc.source.reader import ReplayableSocketReader
from spark_eoc.source.values import Retention

LISTEN = {"bufferPath": "/b", "listen": "127.0.0.1:9999"}
CONNECT = {"bufferPath": "/b", "host": "localhost", "port": "9999"}
READ = {"bufferPath": "/b"}

#: Every option of the table, with a value that works, and what it becomes.
ACCEPTED = [
    (CONNECT, {}, "connect", ("localhost", 9999)),
    (LISTEN, {}, "listen", ("127.0.0.1", 9999)),
    (LISTEN, {"listen": "[::1]:9"}, "listen", ("::1", 9)),
    (READ, {}, "buffer_path", "/b"),
    (READ, {"consumer": "Other-1.x"}, "consumer", "Other-1.x"),
    (READ, {"includeTimestamp": "TRUE"}, "include_timestamp", True),
    (READ, {"includeOffset": "true"}, "include_offset", True),
    (READ, {"startingOffsets": "Latest"}, "starting_offsets", "latest"),
    (READ, {"startingOffsets": "17"}, "starting_offsets", 17),
    (READ, {"maxRowsPerTrigger": "5"}, "max_rows_per_trigger", 5),
    (READ, {"maxBytesPerTrigger": "5"}, "max_bytes_per_trigger", 5),
    (READ, {"minPartitions": "5"}, "min_partitions", 5),
    (READ, {"maxRowsPerPartition": "5"}, "max_rows_per_partition", 5),
    (READ, {"failOnDataLoss": "false"}, "fail_on_data_loss", False),
    (READ, {"encodingErrors": "strict"}, "encoding_errors", "strict"),
    (CONNECT, {"maxLineBytes": "100"}, "max_line_bytes", 100),
    (CONNECT, {"onOversizeLine": "skip"}, "on_oversize_line", "skip"),
    (CONNECT, {"segmentBytes": "8192"}, "segment_bytes", 8192),
    (CONNECT, {"flushIntervalMs": "0"}, "flush_interval_ms", 0),
    (CONNECT, {"maxBufferBytes": "268435456"}, "max_buffer_bytes", 268435456),
    (CONNECT, {"retention": "12h, 20GiB"}, "retention", Retention(43_200_000, 20 << 30)),
    (CONNECT, {"retention": "90min"}, "retention", Retention(5_400_000, None)),
    (CONNECT, {"retention": "0 b"}, "retention", Retention(None, 0)),
    (CONNECT, {"takeoverMs": "3000"}, "takeover_ms", 3000),
    (LISTEN, {"token": " a b "}, "token", " a b "),
    (LISTEN, {"tlsCert": "/c", "tlsKey": "/k"}, "tls_cert", "/c"),
    (LISTEN, {"tlsCert": "/c", "tlsKey": "/k"}, "tls_key", "/k"),
    (LISTEN, {"tlsCert": "/c", "tlsKey": "/k", "tlsCa": "/a"}, "tls_ca", "/a"),
    (LISTEN, {"maxConnections": "3"}, "max_connections", 3),
    (LISTEN, {"idleTimeoutMs": "3"}, "idle_timeout_ms", 3),
    (CONNECT, {"maxBytesPerSecond": "3"}, "max_bytes_per_second", 3),
]

#: What is refused, and a word that the message must hold so that the reader can mend it.
REFUSED = [
    ({}, "bufferPath"),
    ({**READ, "bufferpat": "/b"}, "'bufferPath'"),
    ({**READ, "max_rows_per_trigger": "5"}, "'maxRowsPerTrigger'"),
    ({**READ, "startingOffset": "earliest"}, "'startingOffsets'"),
    ({**READ, "path": "/b"}, "load()"),
    ({"bufferPath": "s3://bucket"}, "prefix"),
    ({"bufferPath": "s3://key:secret@bucket/b"}, "environment"),
    ({"bufferPath": "az://container/b?sig=secret"}, "environment"),
    ({"bufferPath": "s3://bucket/b", "listen": "127.0.0.1:1", "takeoverMs": "1000"}, "newest"),
    ({"bufferPath": "file:/b"}, "scheme"),
    ({"bufferPath": "/dbfs/b"}, "fsync"),
    ({"bufferPath": "/Volumes/a/b"}, "fsync"),
    ({"bufferPath": "  "}, "bufferPath"),
    ({**READ, "host": "localhost"}, "port"),
    ({**READ, "port": "9"}, "host"),
    ({**CONNECT, "listen": "localhost:9"}, "listen"),
    ({**CONNECT, "port": "0"}, "65535"),
    ({**CONNECT, "port": "65536"}, "65535"),
    ({**CONNECT, "port": "http"}, "'http'"),
    ({**READ, "listen": "9999"}, "host:port"),
    ({**READ, "listen": ":9999"}, "host:port"),
    ({**READ, "consumer": "../x"}, "consumer"),
    ({**READ, "consumer": ""}, "consumer"),
    ({**READ, "includeTimestamp": "yes"}, "true or false"),
    ({**READ, "includeOffset": "1"}, "true or false"),
    ({**READ, "failOnDataLoss": "no"}, "true or false"),
    ({**READ, "startingOffsets": "-1"}, "earliest"),
    ({**READ, "startingOffsets": "first"}, "earliest"),
    ({**READ, "maxRowsPerTrigger": "0"}, "at least 1"),
    ({**READ, "maxRowsPerTrigger": "1e3"}, "digits"),
    ({**READ, "maxBytesPerTrigger": "-5"}, "digits"),
    ({**READ, "minPartitions": "0"}, "minPartitions"),
    ({**READ, "maxRowsPerPartition": "0"}, "maxRowsPerPartition"),
    ({**READ, "encodingErrors": "ignore"}, "strict"),
    ({**CONNECT, "maxLineBytes": "0"}, "maxLineBytes"),
    ({**CONNECT, "onOversizeLine": "cut"}, "truncate"),
    ({**CONNECT, "segmentBytes": "1"}, "segmentBytes"),
    ({**CONNECT, "flushIntervalMs": "fast"}, "digits"),
    ({**CONNECT, "maxBufferBytes": "1000000"}, "4 segments"),
    ({**CONNECT, "retention": "5m"}, "min"),
    ({**CONNECT, "retention": "1h, 2h"}, "comma"),
    ({**CONNECT, "takeoverMs": "0"}, "takeoverMs"),
    ({**READ, "segmentBytes": "8192"}, "no effect"),
    ({**READ, "retention": "1h"}, "no effect"),
    ({**READ, "maxLineBytes": "8192"}, "no effect"),
    ({**CONNECT, "token": "t"}, "listen"),
    ({**CONNECT, "maxConnections": "3"}, "listen"),
    ({**READ, "idleTimeoutMs": "3"}, "listen"),
    ({**READ, "maxBytesPerSecond": "3"}, "no effect"),
    ({**LISTEN, "maxBytesPerSecond": "0"}, "at least 1"),
    ({**LISTEN, "tlsCert": "/c"}, "tlsKey"),
    ({**LISTEN, "tlsKey": "/c"}, "tlsCert"),
    ({**LISTEN, "tlsCa": "/a"}, "tlsCert"),
]


@pytest.mark.parametrize(("base", "more", "field", "value"), ACCEPTED)
def test_each_option_becomes_a_field(base, more, field, value):
    """Every option of the table is accepted under its exact name."""
    assert getattr(parse_options({**base, **more}), field) == value


def test_every_option_is_tried():
    """No option is in the table without a test that accepts it."""
    tried = {name for base, more, _, _ in ACCEPTED for name in {**base, **more}}
    assert set(OPTION_NAMES) == tried


@pytest.mark.parametrize(("base", "more", "field", "value"), ACCEPTED)
def test_names_come_in_any_case(base, more, field, value):
    """Spark hands option names on in lower case."""
    lower = {name.lower(): text for name, text in {**base, **more}.items()}
    assert getattr(parse_options(lower), field) == value


@pytest.mark.parametrize(("options", "word"), REFUSED)
def test_what_cannot_work_is_refused_with_a_remedy(options, word):
    """Unknown names, wrong types and bad combinations: value and remedy are named."""
    with pytest.raises(ConfigError) as caught:
        parse_options(options)
    assert word in str(caught.value)
    assert caught.value.next_step


def test_the_defaults_are_those_of_the_manual():
    """Nothing but bufferPath is needed."""
    assert parse_options(READ) == SourceOptions(
        buffer_path="/b",
        consumer="default",
        include_timestamp=False,
        include_offset=False,
        starting_offsets="earliest",
        min_partitions=1,
        max_rows_per_partition=250_000,
        fail_on_data_loss=True,
        encoding_errors="replace",
        max_line_bytes=16 * 1024 * 1024,
        on_oversize_line="error",
    )


def test_a_relative_path_is_the_drivers(tmp_path, monkeypatch):
    """Tasks run in folders of their own: the path is made absolute where the frame is built."""
    monkeypatch.chdir(tmp_path)
    assert parse_options({"bufferPath": "clicks"}).buffer_path == str(tmp_path / "clicks")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("s3://bucket/clicks/", "s3://bucket/clicks"),
        ("gs://bucket/a/b", "gs://bucket/a/b"),
        ("az://container/clicks", "az://container/clicks"),
    ],
)
def test_a_buffer_may_be_in_an_object_store(given, kept):
    """Scheme, bucket and prefix; nothing is connected to."""
    assert parse_options({"bufferPath": given}).buffer_path == kept


def test_credentials_in_a_url_are_refused_unshown():
    """They come from the environment alone."""
    with pytest.raises(ConfigError) as caught:
        parse_options({"bufferPath": "s3://key:hidden@bucket/b"})
    assert "hidden" not in str(caught.value) + repr(caught.value.facts)


def test_secrets_are_not_shown():
    """A token never appears in a repr, and so in no log."""
    options = parse_options({**LISTEN, "token": "s3cret", "tlsCert": "/c", "tlsKey": "/secret"})
    assert "s3cret" not in repr(options)
    assert "/secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).token == "s3cret"


def test_no_token_travels_to_tasks():
    """Tasks only read; what is pickled for them may lie on every executor."""
    options = parse_options({**LISTEN, "token": "s3cret"})
    assert b"s3cret" not in pickle.dumps(ReplayableSocketReader(options))
