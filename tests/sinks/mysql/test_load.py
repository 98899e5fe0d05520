"""LOAD DATA LOCAL from memory: the same rows as by INSERT, or INSERT; and no file for anybody."""

from __future__ import annotations

import datetime
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_eoc.errors import ConfigError, SinkError
from spark_eoc.sinks.entries import Applied, Call, Outcome, Refused, Unit
from spark_eoc.sinks.ledger import Open, decide_open
from spark_eoc.sinks.mysql.connection import connect
from spark_eoc.sinks.mysql.load import send
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database

HOSTILE = ["it's", "\\", "\\N", "\\\\N", "\t", "\n", "\\\t\n\\n", "\r\n", "\x00", "\x1a", "NULL",
           "", " ", '"', "'); DROP TABLE t;--",
           "😀👩‍👩‍👧", "é\\", "\\0\\Z", "a\tb\nc", None]  # fmt: skip
BYTES = [b"\xff\xf0\t\x9f\n", b"\\N", b"\\", b"\x00\x1a", b"\xf0\x9f", b"", b"\t\n", b"'", None]
Edit = Callable[[bytes], bytes]
UTC = datetime.UTC

#: Spark's type, the table's, the Arrow type, values.
TYPES: list[tuple[str, str, pa.DataType, list[Any]]] = [
    ("tinyint", "TINYINT", pa.int8(), [-128, None, 127]),
    ("smallint", "SMALLINT", pa.int16(), [-32768, None, 32767]),
    ("int", "INT", pa.int32(), [-(2**31), None, 2**31 - 1]),
    ("bigint", "BIGINT", pa.int64(), [-(2**63), None, 2**63 - 1]),
    ("decimal(20,0)", "BIGINT UNSIGNED", pa.decimal128(20, 0), [Decimal(2**64 - 1), None]),
    ("float", "FLOAT", pa.float32(), [0.1, None, -3.4e38, 1e-40]),
    ("double", "DOUBLE", pa.float64(), [0.1 + 0.2, None, 1.7976931348623157e308, 5e-324, -0.0]),
    ("decimal(38,18)", "DECIMAL(38,18)", pa.decimal128(38, 18),
     [Decimal("0.000000000000000001"), None, Decimal("-12345678901234567890.123456789012345678")]),
    ("boolean", "BOOLEAN", pa.bool_(), [True, None, False]),
    ("date", "DATE", pa.date32(), [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    ("timestamp", "DATETIME(6)", pa.timestamp("us", "UTC"),
     [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), None]),
    ("timestamp", "TIMESTAMP(6) NULL", pa.timestamp("us", "UTC"),
     [datetime.datetime(2024, 3, 31, 1, 30, 0, 1, UTC), None]),
    ("timestamp_ntz", "DATETIME(6)", pa.timestamp("us"),
     [datetime.datetime(2024, 3, 31, 2, 30), None]),
    ("time(6)", "TIME(6)", pa.time64("ns"), [datetime.time(23, 59, 59, 999999), None]),
    ("string", "LONGTEXT", pa.string(), HOSTILE),
    ("string", "VARCHAR(99) CHARACTER SET latin1", pa.string(), ["é'\\\t", None, ""]),
    ("string", "JSON", pa.string(), ['{"a": "\\\\\\t"}', None, "[1, null]"]),
    ("string", "ENUM('a','b')", pa.string(), ["b", None]),
    ("string", "BLOB", pa.string(), ["é\t\\", None]),
    ("bigint", "VARCHAR(30)", pa.int64(), [12, None]),
    ("boolean", "DECIMAL(3,1)", pa.bool_(), [True, None]),
    ("date", "DATETIME", pa.date32(), [datetime.date(2000, 2, 29), None]),
]  # fmt: skip
BINARY = ("binary", "LONGBLOB", pa.binary(), BYTES)


def frame(types: list[tuple[str, str, pa.DataType, list[Any]]]) -> tuple[list[Column], pa.Table]:
    count = max(len(values) for *_, values in types)
    arrays = [
        pa.array([values[i % len(values)] for i in range(count)], arrow)
        for _, _, arrow, values in types
    ]
    columns = [Column(f"c {i}", of) for i, (of, *_) in enumerate(types)]
    return columns, pa.table(arrays, names=[c.name for c in columns])


def applied(database: Database, columns: list[Column], data: pa.Table, **arguments: Any) -> Outcome:
    """Writes the table as one unit of batch 0."""
    sink = MySQLWriter(database.url(), **{"retry_minutes": 0.05, **arguments})._sink
    assert isinstance(sink, MySQLSink)
    sink.check(columns)
    call = Call("w", "q", "r", 0, secrets.token_hex(16), first=True)
    name = arguments["table"]
    decision = sink.open_batch(name, 0, lambda view: decide_open(view, call))
    assert isinstance(decision, Open)
    hashes = pa.chunked_array([pa.array(range(data.num_rows), pa.int64())])
    rows = Rows(data, hashes)
    unit = Unit(name, 0, 0, decision.control.epoch, call.token, rows.fingerprint())
    return sink.apply(unit, sink.arrange(rows))


@pytest.fixture(params=["mariadb", "mysql"])
def loading(request: pytest.FixtureRequest, database_on: Any) -> Iterator[Database]:
    """A database on a server with local_infile on."""
    database: Database = database_on(request.param)
    ((before,),) = database.query("SELECT @@local_infile")
    database.query("SET GLOBAL local_infile=1")
    yield database
    database.query(f"SET GLOBAL local_infile={before}")


def content(database: Database, table: str, columns: list[Column]) -> list[Any]:
    names = ", ".join(f"`{column.name}`, HEX(`{column.name}`)" for column in columns)
    return database.query(f"SELECT {names} FROM {table}")


def loaded(caplog: pytest.LogCaptureFixture) -> bool:
    return "INSERT" not in caplog.text


@pytest.mark.parametrize("types", [TYPES, [*TYPES, BINARY], [BINARY], [TYPES[14]]],
                         ids=["texts", "bytes", "only bytes", "only text"])  # fmt: skip
def test_every_type_is_as_an_insert_leaves_it(
    loading: Database, caplog: pytest.LogCaptureFixture, types: list[Any]
) -> None:
    """M11: all types with NULLs, escapes, bytes that are no characters, and text that looks like
    SQL, like the end of a field or like NULL."""
    columns, table = frame(types)
    ddl = ", ".join(f"`c {i}` {kind}" for i, (_, kind, *_) in enumerate(types))
    for name in ("a", "b"):
        loading.query(f"CREATE TABLE {name} ({ddl}, extra INT DEFAULT 7) CHARACTER SET utf8mb4")
    assert applied(loading, columns, table, table="a") == Applied()
    assert applied(loading, columns, table, table="b", load_data=True) == Applied()
    assert loaded(caplog), caplog.text
    found = content(loading, "b", columns)
    assert found == content(loading, "a", columns)
    assert len(found) == table.num_rows
    text = [i for i, (_, kind, *_) in enumerate(types) if kind == "LONGTEXT"]
    for place in text:
        assert [row[2 * place] for row in found] == table.column(place).to_pylist()


def test_many_packets(loading: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Over the borders of packets and of blocks, below a small max_allowed_packet."""
    loading.query("CREATE TABLE t (id BIGINT, v LONGTEXT)")
    ids = pa.array(range(40_000), pa.int64())
    table = pa.table({"id": ids, "v": pa.array([f"{i}\t" * (i % 40) for i in range(40_000)])})
    columns = [Column("id", "bigint"), Column("v", "string")]
    assert applied(loading, columns, table, table="t", load_data=True) == Applied()
    assert loaded(caplog), caplog.text
    found = loading.query("SELECT id, v FROM t ORDER BY id")
    assert found == list(zip(*table.to_pydict().values(), strict=True))


HARMED = [
    ("INT NOT NULL", "int", pa.int32(), [1, None]),
    ("TINYINT", "int", pa.int32(), [1, 300]),
    ("VARCHAR(3)", "string", pa.string(), ["abc", "abcd"]),
    ("INT UNIQUE", "int", pa.int32(), [1, 1]),
    ("INT CHECK (x < 5)", "int", pa.int32(), [1, 7]),
    ("VARCHAR(9) CHARACTER SET latin1", "string", pa.string(), ["a", "😀"]),
    ("VARCHAR(9) CHARACTER SET utf8mb3", "string", pa.string(), ["a", "😀"]),
    ("DATETIME(3)", "timestamp_ntz", pa.timestamp("us"), [1000, 1]),
    ("JSON", "string", pa.string(), ["{}", "{"]),
    ("TEXT", "string", pa.string(), ["a", None]),  # its second value is no UTF-8
]


@pytest.mark.parametrize("harmed", HARMED)
def test_what_it_would_leave_out_or_change_is_refused_as_by_an_insert(
    loading: Database, caplog: pytest.LogCaptureFixture, harmed: tuple[str, str, Any, list[Any]]
) -> None:
    """LOCAL is IGNORE, in strict mode too; the ROLLBACK leaves nothing, and INSERT says why."""
    kind, of, arrow, values = harmed
    loading.query(f"CREATE TABLE t (x {kind}) CHARACTER SET utf8mb4")
    table = pa.table({"x": pa.array(values, arrow)})
    if kind == "TEXT":
        broken = pa.array([b"a", b"\xf0\t"], pa.binary()).view(pa.string())
        table = pa.table({"x": broken})
    outcome = applied(loading, [Column("x", of)], table, table="t", load_data=True)
    assert isinstance(outcome, Refused)
    assert outcome.error == "BadRowError"
    assert caplog.text.count("is written by INSERT, not LOAD DATA") == 1
    assert loading.query("SELECT * FROM t") == []
    good = table.slice(0, 1)
    assert applied(loading, [Column("x", of)], good, table="t", load_data=True) == Applied()
    assert len(loading.query("SELECT * FROM t")) == 1


def test_where_it_cannot_be_used_insert_is(
    mariadb: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that forbids it, and columns that it would fill otherwise: one line in the log."""
    mariadb.query("CREATE TABLE t (x BIT(9), y VARCHAR(30))")
    columns = [Column("x", "int"), Column("y", "double")]
    table = pa.table({"x": pa.array([5], pa.int32()), "y": [1e300]})
    with caplog.at_level(logging.WARNING, "spark_eoc.sinks"):
        assert applied(mariadb, columns, table, table="t", load_data=True) == Applied()
    assert "'x' is BIT" in caplog.text
    assert "'y' would spell a double otherwise" in caplog.text
    mariadb.query("SET GLOBAL local_infile=0")
    try:
        with caplog.at_level(logging.WARNING, "spark_eoc.sinks"):
            mariadb.query("CREATE TABLE u (x INT)")
            one = applied(mariadb, columns[:1], table.select(["x"]), table="u", load_data=True)
    finally:
        mariadb.query("SET GLOBAL local_infile=1")
    assert one == Applied()
    assert "local_infile=OFF" in caplog.text


@pytest.mark.parametrize("how", [{"mode": "upsert", "key": ["x"]}, {"atomicity": "batch"}])
def test_what_it_does_not_go_with_is_refused(how: dict[str, Any]) -> None:
    """By name, when the writer is built."""
    with pytest.raises(ConfigError, match="load_data belongs to"):
        MySQLWriter("mysql://u@h/d", "t", load_data=True, **how)


@contextmanager
def tampering(port: int, change: Edit) -> Iterator[int]:
    """A man in the middle who changes what the server says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(
            source: socket.socket, target: socket.socket, edit: Callable[[bytes], bytes]
        ) -> None:
            try:
                while data := source.recv(65536):
                    target.sendall(edit(data))
            except OSError:
                pass
            for one in (source, target):
                one.close()

        def serve() -> None:
            try:
                while True:
                    client, _ = listener.accept()
                    server = socket.create_connection(("127.0.0.1", port))
                    for pair in ((client, server, lambda data: data), (server, client, change)):
                        threading.Thread(target=pump, args=pair, daemon=True).start()
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def other_file(path: bytes) -> Edit:
    """Puts another file's name where the server asks for the rows."""

    def change(data: bytes) -> bytes:
        place = data.find(b"\xfb")
        if place == 4 and len(data) == 37:
            return data[:5] + path.rjust(32, b"/")
        return data

    return change


def test_a_server_that_asks_for_another_file_gets_none(
    mariadb: Database, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not instead of the rows, and not as the answer to any other statement."""
    mariadb.query("CREATE TABLE t (x INT)")
    opened: list[Any] = []
    real = open
    monkeypatch.setattr("builtins.open", lambda *a, **k: opened.append(a[0]) or real(*a, **k))
    with tampering(mariadb.port, other_file(b"/etc/passwd")) as port:
        sink = MySQLWriter(mariadb.url(port=port), "t", load_data=True)._sink
        assert isinstance(sink, MySQLSink)
        connection = connect(sink.address, local_files=True)
        text = "LOAD DATA LOCAL INFILE '{}' INTO TABLE t"
        with pytest.raises(SinkError, match=r"asked for the file b'/+etc/passwd'"):
            send(connection, text.format, iter([b"1\n"]))
        connection = connect(sink.address, local_files=True)
        with pytest.raises(RuntimeError, match="LOAD_LOCAL"):
            connection.query(text.format("a" * 32))
        connection._force_close()
    plain = connect(MySQLWriter(mariadb.url(), "t")._sink.address)  # type: ignore[attr-defined]
    with pytest.raises((pymysql.MySQLError, RuntimeError)):
        plain.query(text.format("x"))
    plain._force_close()
    assert [name for name in opened if "passwd" in str(name)] == []
    assert mariadb.query("SELECT * FROM t") == []
