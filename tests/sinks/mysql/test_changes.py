"""Change streams: what insert, update and delete in one batch leave behind, by ``order_by``."""

from __future__ import annotations

import random
import secrets
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_eoc.errors import BadRowError, ConfigError, ReplayMismatchError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Call, Outcome, Refused, Unit
from spark_eoc.sinks.ledger import Open, decide_open
from spark_eoc.sinks.mysql.changes import DELETED, arranged, labels, settle
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database
from tests.sinks.broken import LastPartitionFails
from tests.sinks.calls import Query
from tests.sinks.mysql.whole import Whole

NAMES = ["id", "ts", "n", "op"]


def rows_of(*rows: tuple[Any, ...]) -> Rows:
    """Rows of (id, ts, n, op), with the mark that the JVM would compute."""
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, pa.int64()) for c in columns[:3]]
    table = pa.table([*arrays, pa.array(columns[3])], names=NAMES)
    hashes = pa.chunked_array([pa.array([hash(row) for row in rows], pa.int64())])
    return Rows(table, hashes, marks=pa.table({DELETED: [row[3] == "D" for row in rows]}))


def settled(rows: Rows, *, last_only: bool = True) -> tuple[list[int], list[tuple[Any, ...]]]:
    changes = settle(arranged(rows, ["id"], ["ts"]), ["id"], ["ts"], last_only=last_only)
    written = changes.written.table.select(NAMES[:3])
    return changes.deleted.table["id"].to_pylist(), [tuple(r.values()) for r in written.to_pylist()]


TABLE = [
    # rows in order of arrival, deleted keys, written rows
    ([(1, 1, 10, "I")], [], [(1, 1, 10)]),
    ([(1, 1, 10, "D")], [1], []),
    ([(1, 2, 10, "D"), (1, 1, 20, "I")], [1], []),
    ([(1, 1, 10, "D"), (1, 2, 20, "I")], [1], [(1, 2, 20)]),
    ([(1, 3, 30, "U"), (1, 1, 10, "I"), (1, 2, 20, "D")], [1], [(1, 3, 30)]),
    ([(2, 1, 20, "I"), (1, 1, 10, "I"), (2, 2, 21, "U")], [], [(1, 1, 10), (2, 2, 21)]),
    ([(1, 1, 10, "D"), (1, 1, 20, "D")], [1], []),  # a tie that decides nothing
    ([(1, 1, 10, "I"), (1, 1, 10, "I")], [], [(1, 1, 10)]),  # equal rows
    ([(1, 1, 1, "I"), (1, 1, 2, "U"), (1, 2, 3, "U")], [], [(1, 2, 3)]),  # a tie that is replaced
]


@pytest.mark.parametrize(("rows", "deleted", "written"), TABLE)
def test_what_the_rows_of_a_key_amount_to(
    rows: list[Any], deleted: list[int], written: list[Any]
) -> None:
    """The last by order_by wins; any delete among them is carried out first."""
    assert settled(rows_of(*rows)) == (deleted, written)


TIES = [
    ([(1, 1, 10, "I"), (1, 1, 20, "U")], True),
    ([(1, 1, 10, "I"), (1, 1, 10, "D")], True),
    ([(1, 1, 10, "D"), (1, 1, 10, "I"), (1, 0, 5, "I")], True),
    ([(0, 0, 0, "I"), (1, 1, 1, "I"), (1, 1, 2, "U"), (1, 2, 3, "U")], False),
    ([(1, 1, 1, "D"), (1, 1, 2, "U"), (1, 2, 3, "U")], False),
]


@pytest.mark.parametrize(("rows", "last_only"), TIES)
@pytest.mark.parametrize("seed", range(3))
def test_rows_whose_order_decides_and_is_not_known_are_refused(
    rows: list[Any], last_only: bool, seed: int
) -> None:
    """By the key's value, whatever the order of arrival; a sum needs all rows, not the last."""
    random.Random(seed).shuffle(rows)
    with pytest.raises(BadRowError, match=r"key id=1 which are equal in order_by=\['ts'\]"):
        settled(rows_of(*rows), last_only=last_only)


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.timestamp("us"), pa.string()])
def test_a_row_without_a_place_in_the_order_is_refused(kind: pa.DataType) -> None:
    """NULL would be the newest for one engine and the oldest for another."""
    rows = rows_of((1, 1, 1, "I"), (2, 2, 2, "I"))
    table = rows.table.set_column(1, "ts", pa.array([None, 1]).cast(kind))
    with pytest.raises(BadRowError, match="'ts' of order_by holds NULL"):
        settled(Rows(table, rows.hashes, marks=rows.marks))


@pytest.mark.parametrize("last_only", [True, False])
def test_a_large_partition_is_judged_some_keys_at_a_time(
    monkeypatch: pytest.MonkeyPatch, eoc_random: random.Random, last_only: bool
) -> None:
    """With what is left in files, and the same to the row; a hot key is judged whole."""
    keys = [*(eoc_random.randrange(30) for _ in range(300)), *[7] * 100]
    rows = rows_of(*((k, n, eoc_random.randrange(3), eoc_random.choice("DIU")) for n, k in
                     enumerate(keys)))  # fmt: skip
    tied = rows_of(*((k, 0, n, "U") for n, k in enumerate([1, 2, 3, 4, 4])))

    def outcome() -> Any:
        ordered = arranged(rows, ["id"], ["ts"])
        found = labels(ordered, ["id"], ["ts"], last_only=last_only).to_pylist()
        with pytest.raises(BadRowError, match="key id=4"):
            settled(tied, last_only=last_only)
        return settled(rows, last_only=last_only), found

    expected = outcome()
    monkeypatch.setattr("spark_eoc.sinks.mysql.changes._JUDGED_ROWS", 3)
    assert outcome() == expected
    monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", 1000)
    assert outcome() == expected


def one_after_another(
    table: dict[int, tuple[int, int]], rows: list[Any], rule: str
) -> dict[int, tuple[int, int]]:
    """The reference: rows in order, each a DELETE or an upsert; (n, extra), extra defaults to 7."""
    for key, _, n, op in rows:
        if op == "D":
            table.pop(key, None)
        elif key in table:
            old, extra = table[key]
            table[key] = ({"replace": n, "add": old + n, "keep": old}[rule], extra)
        else:
            table[key] = (n, 7)
    return table


@dataclass
class Stream:
    """Batches of one partition into table t, by hand."""

    sink: MySQLSink
    batch_id: int = -1
    run_id: str = "r"
    first: bool = True

    def apply(self, rows: Rows) -> Outcome:
        self.batch_id += 1
        token = secrets.token_hex(16)
        call = Call("w", "q", self.run_id, self.batch_id, token, first=self.first)
        self.first = False
        decision = self.sink.open_batch("w", self.batch_id, lambda view: decide_open(view, call))
        assert isinstance(decision, Open)
        control = decision.control
        unit = Unit("w", 0, self.batch_id, control.epoch, call.token, rows.fingerprint())
        outcome = self.sink.apply(unit, self.sink.arrange(rows))
        assert isinstance(self.sink.apply(unit, self.sink.arrange(rows)), (AlreadyApplied, Refused))
        self.sink.close_batch("w", self.batch_id, lambda view, units: _close(view, units, call))
        return outcome


class Batches(Stream):
    """The same in batch atomicity."""

    def __init__(self, sink: MySQLSink, frame: list[Column]) -> None:
        super().__init__(sink)
        self.whole = Whole(sink, "r", frame, lambda rows: rows)

    def apply(self, rows: Rows) -> Outcome:
        self.batch_id += 1
        self.whole.write(self.batch_id, [rows])
        return Applied()


def _close(view: Any, units: Any, call: Call) -> Any:
    from spark_eoc.sinks.ledger import decide_close  # noqa: PLC0415

    return decide_close(view, units, {u.partition: u.fingerprint for u in units}, call, 1)


class Fails(MySQLSink):
    """A run that ends before it writes a row."""

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        raise RuntimeError("it fails")


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def stream(database: Database, frame: list[Column], **arguments: Any) -> Stream:
    how: dict[str, Any] = {"mode": "upsert", "key": ["id"], "delete_when": "op = 'D'"}
    sink = MySQLWriter(database.url(), "t", **{**how, **arguments})._sink
    assert isinstance(sink, MySQLSink)
    sink.check(frame)
    return Stream(sink) if arguments.get("atomicity") != "batch" else Batches(sink, frame)


COLUMNS = [Column("id", "bigint"), Column("ts", "bigint"), Column("n", "bigint")]
COLUMNS += [Column("op", "string")]


@pytest.mark.parametrize(
    "server_and_rule",
    [("mariadb", "replace"), ("mariadb", "keep"), ("mariadb", "add"), ("mysql", "add"),
     pytest.param(("mysql", "replace"), marks=pytest.mark.slow)],
)  # fmt: skip
@pytest.mark.parametrize("piece_rows", [0, 3])
def test_a_batch_is_as_good_as_its_rows_one_after_another(
    database_on: Any,
    eoc_seed: int,
    server_and_rule: tuple[str, str],
    piece_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random batches of few keys, in random order of arrival; a column that the frame lacks tells
    whether a row was deleted in between. In batch atomicity too, moved in pieces of three rows, so
    that a key is cut."""
    server, rule = server_and_rule
    database = database_on(server)
    monkeypatch.setattr("spark_eoc.sinks.mysql.staging_sql.PIECE_ROWS", piece_rows)
    database.query("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, extra INT DEFAULT 7)")
    where = {"columns": {"op": None, "ts": None}, "order_by": "ts", "merge": {"n": rule}}
    atomicity = "batch" if piece_rows else "partition"
    writes = stream(database, COLUMNS, atomicity=atomicity, **where)
    chance = random.Random(eoc_seed)
    expected: dict[int, tuple[int, int]] = {}
    for _ in range(6):
        ordered = [
            (chance.randrange(6), ts, chance.randrange(99), chance.choice("IUUD"))
            for ts in range(chance.randrange(1, 30))
        ]
        expected = one_after_another(expected, ordered, rule)
        assert writes.apply(rows_of(*chance.sample(ordered, len(ordered)))) == Applied()
        found = {key: (n, extra) for key, n, extra in database.query("SELECT id, n, extra FROM t")}
        assert found == expected, f"seed {eoc_seed}"
        database.query("UPDATE t SET extra = 8")
        expected = {key: (n, 8) for key, (n, _) in expected.items()}


def test_without_order_by_a_key_comes_once(mariadb: Database) -> None:
    """A shuffle leaves no order of arrival; nothing of the unit is written."""
    mariadb.query("CREATE TABLE t (id BIGINT PRIMARY KEY, ts BIGINT, n BIGINT, op CHAR(1))")
    writes = stream(mariadb, COLUMNS)
    assert writes.apply(rows_of((1, 1, 1, "I"), (2, 1, 1, "I"), (3, 1, 1, "D"))) == Applied()
    refused = writes.apply(rows_of((4, 1, 1, "I"), (1, 1, 1, "U"), (1, 2, 1, "D")))
    assert isinstance(refused, Refused)
    assert "key id=1 which have no order_by" in refused.what
    assert sorted(mariadb.query("SELECT id FROM t")) == [(1,), (2,)]


KEYS = [
    # Each value is kept apart from its neighbour, which a comparison as DOUBLE would take for it.
    ("BIGINT", "bigint", pa.int64(), [2**53, 2**53 + 1]),
    ("BIGINT UNSIGNED", "decimal(20,0)", pa.decimal128(20, 0),
     [Decimal(2**64 - 2), Decimal(2**64 - 1)]),
    ("DECIMAL(38,18)", "decimal(38,18)", pa.decimal128(38, 18),
     [Decimal("0.000000000000000001"), Decimal("0.000000000000000002")]),
    ("FLOAT", "float", pa.float32(), [0.1, 0.2]),
    ("DATETIME(6)", "timestamp", pa.timestamp("us"), [1, 2]),
    ("DATE", "date", pa.date32(), [1, 2]),
    ("TIME(6)", "time(6)", pa.time64("ns"), [1000, 2000]),
    ("VARCHAR(9) COLLATE utf8mb4_bin", "string", pa.string(), ["a'\\", "A'\\"]),
    ("VARCHAR(9)", "bigint", pa.int64(), [12, 13]),
    ("CHAR(9) COLLATE utf8mb4_bin", "string", pa.string(), ["a", "b"]),
    ("VARBINARY(9)", "binary", pa.binary(), [b"\xff\x00", b"\xff\x01"]),
    ("BINARY(2)", "binary", pa.binary(), [b"\xff\x00", b"\xff\x01"]),
    ("BOOLEAN", "boolean", pa.bool_(), [True, False]),
    ("ENUM('x','y')", "string", pa.string(), ["x", "y"]),
]  # fmt: skip


@pytest.mark.parametrize("server", ["mariadb", pytest.param("mysql", marks=pytest.mark.slow)])
@pytest.mark.parametrize("key", KEYS)
def test_exactly_the_key_is_deleted(
    database_on: Any, server: str, key: tuple[str, str, pa.DataType, list[Any]]
) -> None:
    """Keys of every type, alone and with a second column, are found as an upsert finds them."""
    database, (kind, of, arrow, values) = database_on(server), key
    database.query(f"CREATE TABLE t (k {kind}, l INT, extra INT DEFAULT 7, PRIMARY KEY (k, l))")
    columns = [Column("k", of), Column("l", "int")]
    writes = stream(database, columns, key=["k", "l"], delete_when="true")

    def rows(which: list[Any], gone: bool) -> Rows:
        table = pa.table({"k": pa.array(which, arrow), "l": pa.array([1] * len(which), pa.int32())})
        hashes = pa.chunked_array([pa.array(range(len(which)), pa.int64())])
        return Rows(table, hashes, marks=pa.table({DELETED: [gone] * len(which)}))

    assert writes.apply(rows(values, gone=False)) == Applied()
    before = database.query("SELECT * FROM t ORDER BY k")
    assert len(before) == 2
    assert writes.apply(rows(values[:1], gone=True)) == Applied()
    left = database.query("SELECT * FROM t ORDER BY k")
    assert len(left) == 1
    assert left[0] in before
    assert writes.apply(rows(values[:1], gone=False)) == Applied()
    assert database.query("SELECT * FROM t ORDER BY k") == before


REFUSED = [
    ({"mode": "append", "key": []}, 'belong to mode="upsert"'),
    ({"on_bad_row": "dead_letter", "atomicity": "batch"}, "comes too late"),
    ({"partition_by": ["n"]}, "not part of the key"),
    ({"order_by": ["tss"]}, r"order_by names 'tss', .*; did you mean 'ts'"),
    ({"order_by": "doc"}, "order_by names 'doc', of type array<int>, whose JSON text has no order"),
    ({"key": ["idd"]}, r"key names 'idd', .*; did you mean 'id'"),
    ({"columns": {"Op": None}}, r"names no column of the frame; did you mean 'op'"),
    ({"columns": {"id": None}}, "leaves out a column that key or merge needs"),
    ({"columns": {"n": "m"}}, "has no column 'm'"),
    ({"columns": {"n": "id"}}, "are one column of"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_arguments_that_cannot_work_are_refused(
    mariadb: Database, arguments: dict[str, Any], message: str
) -> None:
    """By name, with the nearest, before any row."""
    mariadb.query(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, ts BIGINT, n BIGINT, op CHAR(1), doc JSON)"
    )
    with pytest.raises(ConfigError, match=message):
        stream(mariadb, [*COLUMNS, Column("doc", "array<int>", json=True)], **arguments)


def changes_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Ten changes of each key in [start, end), spread over partitions: an insert, eight updates,
    and a delete where the key is a multiple of three."""
    changes = spark.range(start * 10, end * 10, 1, 4).selectExpr("id % 100 AS n", "id DIV 10 AS id")
    changes = changes.withColumn("ts", F.col("n") % 10)
    op = F.when((F.col("ts") == 9) & (F.col("id") % 3 == 0), "D").when(F.col("ts") == 0, "I")
    return changes.withColumn("op", op).repartition(4, "n")


@pytest.mark.compat
def test_a_change_stream_through_spark(mariadb: Database, spark: SparkSession) -> None:
    """Insert, updates and delete of a key come from four partitions, and meet in one; NULL in
    delete_when is no delete. A batch that was cut off goes on, and is not written again. The next
    is published whole."""
    how: dict[str, Any] = {"mode": "upsert", "key": ["id"], "create_table": True}
    how |= {"delete_when": "op = 'D'", "order_by": "ts", "columns": {"op": None, "ts": "at"}}
    how["num_partitions"] = 4
    query, failing = Query(spark), MySQLWriter(mariadb.url(), "made", **how)
    failing._sink.__class__ = LastPartitionFails
    with pytest.raises(Exception, match="the last partition fails"):
        query.call(failing, changes_of(spark, 0, 30), 0)
    assert 0 < len(mariadb.query("SELECT id FROM made")) < 20
    for _ in range(2):
        query.restart()
        query.call(MySQLWriter(mariadb.url(), "made", **how), changes_of(spark, 0, 30), 0)
        found = mariadb.query("SELECT id, n, at FROM made ORDER BY id")
        assert found == [(key, key * 10 % 100 + 9, 9) for key in range(30) if key % 3]
    how["atomicity"] = "batch"
    gone = changes_of(spark, 0, 30).filter("ts = 9").withColumn("op", F.lit("D"))
    query.call(MySQLWriter(mariadb.url(), "made", **how), gone, 1)
    assert mariadb.query("SELECT * FROM made") == []


@pytest.mark.parametrize("applied", [False, True])
def test_a_batch_that_was_begun_without_order_by_does_not_part_its_keys(
    mariadb: Database, spark: SparkSession, applied: bool
) -> None:
    """Begun as the frame is, it is completed by the key where nothing of it is applied; else it is
    refused."""
    mariadb.query("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT, ts BIGINT, op CHAR(1))")
    query, how = Query(spark), {"mode": "upsert", "key": ["id"]}
    failing = MySQLWriter(mariadb.url(), "t", **how)
    failing._sink.__class__ = LastPartitionFails if applied else Fails
    batch = changes_of(spark, 0, 20).repartition(4)
    with pytest.raises(Exception, match="fails"):
        query.call(failing, batch, 0)
    before = mariadb.query("SELECT COUNT(*) FROM t")
    query.restart()
    again = MySQLWriter(mariadb.url(), "t", order_by="ts", delete_when="op = 'D'", **how)
    if applied:
        with pytest.raises(ReplayMismatchError, match="delete_when was null, now"):
            query.call(again, batch, 0)
        assert mariadb.query("SELECT COUNT(*) FROM t") == before
        return
    query.call(again, batch, 0)
    found = mariadb.query("SELECT id, ts FROM t ORDER BY id")
    assert found == [(key, 9) for key in range(20) if key % 3]
