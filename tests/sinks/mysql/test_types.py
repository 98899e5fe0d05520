"""Every type and every awkward name goes round unharmed, or is refused by name."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_eoc.errors import BadRowError, ConfigError
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.testing.plugin import Database
from tests.sinks.calls import Query

ODD = "it's \\ \"x\" `y` %s %% \x00 \n \x1a 😀 👩‍👩‍👧 é), ('z"

#: Column, type of the table, expression of Spark, what MariaDB gives back.
TYPES: list[tuple[str, str, str, Any]] = [
    ("ti", "TINYINT", "cast(-128 as tinyint)", -128),
    ("si", "SMALLINT", "cast(32767 as smallint)", 32767),
    ("i", "INT", "-2147483648", -2147483648),
    ("bi", "BIGINT", "9223372036854775807L", 2**63 - 1),
    ("ub", "BIGINT UNSIGNED", "cast('18446744073709551615' as decimal(20,0))", 2**64 - 1),
    ("f", "FLOAT", "cast(0.1 as float)", pytest.approx(0.1)),
    ("d", "DOUBLE", "1.7976931348623157e308D", 1.7976931348623157e308),
    ("d2", "DOUBLE", "cast(0.1 as double) + cast(0.2 as double)", 0.1 + 0.2),
    ("de", "DECIMAL(38,18)", "cast('-12345678901234567890.123456789012345678' as decimal(38,18))",
     Decimal("-12345678901234567890.123456789012345678")),
    ("tiny", "DECIMAL(38,18)", "cast('0.000000000000000001' as decimal(38,18))",
     Decimal("0.000000000000000001")),
    ("bo", "BOOLEAN", "true", 1),
    ("b1", "BIT(1)", "true", b"\x01"),
    ("bn", "VARBINARY(300)", "unhex('00FF27275C0A1A80')", bytes.fromhex("00FF27275C0A1A80")),
    ("em", "VARBINARY(10)", "cast('' as binary)", b""),
    ("da", "DATE", "date'0001-01-01'", datetime.date(1, 1, 1)),
    ("da9", "DATE", "date'9999-12-31'", datetime.date(9999, 12, 31)),
    ("ts", "DATETIME(6)", "timestamp'1969-12-31 23:59:59.999999Z'",
     datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ("ts9", "DATETIME(6)", "timestamp'2039-06-01 00:00:00.000001Z'",
     datetime.datetime(2039, 6, 1, 0, 0, 0, 1)),
    ("tz", "TIMESTAMP(6) NULL", "timestamp'2024-03-31 01:30:00.123456Z'",
     datetime.datetime(2024, 3, 31, 1, 30, 0, 123456)),
    ("s1", "TIMESTAMP(6) NULL", "timestamp'2024-03-10 06:59:59.999999Z'",
     datetime.datetime(2024, 3, 10, 6, 59, 59, 999999)),
    ("s2", "DATETIME(6)", "timestamp'2024-03-10 07:00:00Z'", datetime.datetime(2024, 3, 10, 7)),
    ("a1", "DATETIME(6)", "timestamp'2024-11-03 05:30:00Z'", datetime.datetime(2024, 11, 3, 5, 30)),
    ("a2", "TIMESTAMP(6) NULL", "timestamp'2024-11-03 06:30:00Z'",
     datetime.datetime(2024, 11, 3, 6, 30)),
    ("nt", "DATETIME(6)", "timestamp_ntz'2024-03-31 02:30:00.5'",
     datetime.datetime(2024, 3, 31, 2, 30, 0, 500000)),
    ("st", "JSON", "named_struct('a', 1, 'b', array('x', null), 'c', cast(null as int), "
     "'t', timestamp'2024-01-01 00:00:00.000001Z')",
     {"a": 1, "b": ["x", None], "c": None, "t": "2024-01-01T00:00:00.000001Z"}),
    ("ar", "JSON", "array(1, null, 3)", [1, None, 3]),
    ("ma", "JSON", "map('k', 1.5D)", {"k": 1.5}),
    ("no", "VARCHAR(10)", "cast(null as string)", None),
    ("nb", "VARBINARY(10)", "cast(null as binary)", None),
]  # fmt: skip


def write(spark: SparkSession, writer: MySQLWriter, *selects: str) -> None:
    Query(spark).call(writer, spark.range(1).selectExpr(*selects), 0)


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_every_type_goes_round(
    every_database: Database, spark: SparkSession, atomicity: str
) -> None:
    """M9, M11: with session, server and JVM in different zones, on both sides of the session's
    clock changes; staged or not."""
    columns = ", ".join(f"{name} {kind}" for name, kind, _, _ in TYPES)
    every_database.query(f"CREATE TABLE t ({columns}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    every_database.query("SET GLOBAL time_zone='+05:30'")
    try:
        writer = MySQLWriter(every_database.url(), "t", atomicity=atomicity)
        write(spark, writer, *[f"{e} AS {n}" for n, _, e, _ in TYPES])
    finally:
        every_database.query("SET GLOBAL time_zone='SYSTEM'")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    connection = every_database.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00'")
        cursor.execute("SELECT * FROM t")
        (row,) = cursor.fetchall()
    for (name, kind, _, expected), found in zip(TYPES, row, strict=True):
        value = json.loads(found) if kind == "JSON" else found
        assert value == expected, name


def test_text_goes_round_and_never_becomes_sql(database: Database, spark: SparkSession) -> None:
    """M8: quotes, back-slashes, NUL, percent signs and 4-byte text, with and without NULLs in the
    same column, under a server's own ANSI_QUOTES."""
    database.query(
        "CREATE TABLE t (id INT, v MEDIUMTEXT, w VARBINARY(400)) DEFAULT CHARSET=utf8mb4"
    )
    values = [ODD, "", "\\", "'", "''", "\\'", "');DROP TABLE t;--", None, "x" * 70_000]
    values += ["'" * n for n in range(9)]
    rows = [(i, v, None if v is None else v.encode()[:300]) for i, v in enumerate(values)]
    database.query("SET GLOBAL sql_mode='ANSI_QUOTES'")
    try:
        batch = spark.createDataFrame(rows, "id INT, v STRING, w BINARY").repartition(2)
        query, writer = Query(spark), MySQLWriter(database.url(), "t")
        query.call(writer, batch.filter("v IS NOT NULL"), 0)
        query.call(writer, batch.filter("v IS NULL OR id < 3"), 1)
    finally:
        database.query("SET GLOBAL sql_mode=DEFAULT")
    found = sorted(database.query("SELECT id, v, w FROM t"))
    assert found == sorted([r for r in rows if r[1] is not None] + [rows[0], rows[1], rows[2]]
                           + [r for r in rows if r[1] is None])  # fmt: skip


NAMES = ["a%s", "b)", "values", "c`d", "e f", "select", "g.h", "ö", "%", "i'j", 'k"l', "new"]


@pytest.mark.parametrize(
    ("mode", "atomicity"), [("append", "partition"), ("upsert", "partition"), ("upsert", "batch")]
)
def test_awkward_names(database: Database, spark: SparkSession, mode: str, atomicity: str) -> None:
    """M5, M10: names with signs and reserved words, another order in the table, other case, and
    an extra column with a default."""
    quoted = ["`" + name.replace("`", "``") + "`" for name in NAMES]
    columns = ", ".join(f"{name} INT" for name in reversed(quoted))
    database.query(
        f"CREATE TABLE `t%` (extra INT NOT NULL DEFAULT 7, {columns}, `Id` INT PRIMARY KEY)"
    )
    key = {"mode": "upsert", "key": ["id"]} if mode == "upsert" else {}
    query, writer = Query(spark), MySQLWriter(database.url(), "t%", atomicity=atomicity, **key)
    selects = ["cast(id as int) id", *[f"{n} AS {name}" for n, name in enumerate(quoted)]]
    query.call(writer, spark.range(2).selectExpr(*selects), 0)
    if mode == "upsert":
        selects[2] = f"99 AS {quoted[1]}"
        query.call(writer, spark.range(3).selectExpr(*selects), 1)
    found = database.query(f"SELECT {', '.join(quoted)}, extra FROM `t%` ORDER BY id")
    expected = list(range(len(NAMES)))
    if mode == "upsert":
        expected[1] = 99
    assert found == [(*expected, 7)] * (3 if mode == "upsert" else 2)


@pytest.mark.parametrize("value", ["double('NaN')", "double('inf')", "float('-inf')"])
def test_nan_and_infinity_by_option(database: Database, spark: SparkSession, value: str) -> None:
    """M7: refused by name, or NULL where it is asked for."""
    database.query("CREATE TABLE t (x DOUBLE)")
    with pytest.raises(BadRowError, match="column 'x' holds NaN or infinity"):
        write(spark, MySQLWriter(database.url(), "t"), f"{value} AS x")
    assert database.query("SELECT * FROM t") == []
    write(spark, MySQLWriter(database.url(), "t", nan="null", writer_id="n"), f"{value} AS x")
    assert database.query("SELECT * FROM t") == [(None,)]


BAD_ROWS = [
    ("INT NOT NULL", "cast(null as int)", "cannot be null"),
    ("TINYINT", "300", "Out of range"),
    ("VARCHAR(3)", "'four'", "too long"),
    ("VARCHAR(9) CHARACTER SET utf8mb3", "'😀'", "Incorrect string"),
    ("DATETIME(3)", "timestamp'2024-01-01 00:00:00.0001Z'", "finer than the 3 decimals"),
    ("DECIMAL(10,2)", "cast(1.005 as decimal(10,3))", "more than the 2 decimals"),
    ("CHAR(3)", "'a '", "more than the table's column keeps"),
    ("BINARY(3)", "unhex('00')", "fewer than the 3 bytes"),
    ("ENUM('a','1')", "'2'", "no member of the table's ENUM"),
    ("YEAR", "'24'", "more than the table's column keeps"),
    ("INT", "cast(1.5 as decimal(10,1))", "more than the 0 decimals"),
    ("TIMESTAMP NULL", "timestamp'1969-01-01 00:00:00Z'", "Incorrect datetime"),
    ("DATE", "date'10000-01-01'", "Incorrect date"),
    ("JSON", "'{'", "CONSTRAINT|Invalid JSON"),
]


@pytest.mark.parametrize(("kind", "expression", "message"), BAD_ROWS)
def test_a_value_that_would_be_harmed_is_refused(
    database: Database, spark: SparkSession, kind: str, expression: str, message: str
) -> None:
    """M8, M11: strict, also where the server alone would round silently; nothing is written."""
    database.query(f"CREATE TABLE t (x {kind})")
    with pytest.raises(BadRowError, match=message):
        write(spark, MySQLWriter(database.url(), "t"), f"{expression} AS x")
    assert database.query("SELECT * FROM t") == []


BAD_TARGETS = [
    ("CREATE TABLE t (x INT)", "INTERVAL '1' DAY AS x", "interval day"),
    ("CREATE TABLE t (x INT)", "make_interval(1) AS x", "interval"),
    ("CREATE TABLE t (x INT)", "1 AS xx", "no column 'xx'; did you mean"),
    ("CREATE TABLE t (x INT, z INT NOT NULL)", "1 AS x", "needs a value for 'z'"),
    ("CREATE TABLE t (x INT, y INT AS (x + 1))", "1 AS x, 2 AS y", "generated by the server"),
    ("CREATE TABLE t (x INT) ENGINE=MyISAM", "1 AS x", "only InnoDB"),
    ("CREATE VIEW t AS SELECT 1 AS x", "1 AS x", "only InnoDB"),
    ("CREATE TABLE t (x INT)", "1.5D AS x", "round it silently"),
    ("CREATE TABLE t (x DATE)", "current_timestamp() AS x", "cut it silently"),
    ("CREATE TABLE t (x DATE)", "20240101 AS x", "cut it silently, or take it for another"),
    ("CREATE TABLE t (x YEAR)", "24 AS x", "cut it silently, or take it for another"),
    ("CREATE TABLE t (x TIME)", "current_date() AS x", "cut it silently, or take it for another"),
    ("CREATE TABLE t (x BIT(9))", "'1' AS x", "not keep it unharmed"),
    ("CREATE TABLE t (x ENUM('a'))", "1 AS x", "not keep it unharmed"),
    ("CREATE TABLE t (x INT)", "array(1) AS x", "not keep it unharmed"),
    ("CREATE TABLE t (x INT)", "null AS x", "has type void"),
    ("CREATE TABLE u (x INT)", "1 AS x", "no table"),
    ("CREATE TABLE t (x INT)", "1 AS x, 2 AS x", "used twice"),
]


@pytest.mark.parametrize(("ddl", "select", "message"), BAD_TARGETS)
def test_what_cannot_be_written_is_refused_before_the_first_row(
    database: Database, spark: SparkSession, ddl: str, select: str, message: str
) -> None:
    """By name, with the next step, and without a ledger entry."""
    database.query(ddl)
    with pytest.raises(ConfigError, match=message):
        write(spark, MySQLWriter(database.url(), "t"), *select.split(", "))


def test_another_unique_key_is_refused_unless_allowed(
    database: Database, spark: SparkSession
) -> None:
    """M6: an upsert that meets another unique key overwrites a stranger."""
    database.query("CREATE TABLE t (id INT PRIMARY KEY, mail VARCHAR(9), UNIQUE KEY m (mail))")
    how: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
    with pytest.raises(ConfigError, match="another unique index, 'm'"):
        write(spark, MySQLWriter(database.url(), "t", **how), "1 AS id", "'a' AS mail")
    with pytest.raises(ConfigError, match="no primary key or unique index on exactly"):
        write(spark, MySQLWriter(database.url(), "t", mode="upsert", key=["id", "mail"]),
              "1 AS id", "'a' AS mail")  # fmt: skip
    allowed = MySQLWriter(database.url(), "t", allow=["unique_key:m"], **how)
    write(spark, allowed, "1 AS id", "'a' AS mail")


MERGES = [
    ("replace", 5, 3, 3), ("replace", 5, None, None), ("keep", 5, 3, 5), ("keep", 5, None, 5),
    ("add", 5, 3, 8), ("add", 5, None, 5), ("add", None, 3, 3), ("min", 5, 3, 3),
    ("min", 5, None, 5), ("max", 5, 3, 5), ("max", None, 3, 3), ("coalesce", 5, 3, 3),
    ("coalesce", 5, None, 5),
]  # fmt: skip


def test_merges(database: Database, spark: SparkSession) -> None:
    """Each rule with and without NULL on either side, and two rows of one key in one batch."""
    names = [f"c{i}" for i in range(len(MERGES))]
    database.query(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{n} INT' for n in names)})")
    merge = {name: rule for name, (rule, *_) in zip(names, MERGES, strict=True)}
    writer = MySQLWriter(database.url(), "t", mode="upsert", key=["id"], merge=merge)
    query, schema = Query(spark), "id INT, " + ", ".join(f"{n} INT" for n in names)
    old, new = (1, *[m[1] for m in MERGES]), (1, *[m[2] for m in MERGES])
    query.call(writer, spark.createDataFrame([old], schema), 0)
    query.call(writer, spark.createDataFrame([new], schema), 1)
    assert database.query("SELECT * FROM t") == [(1, *[m[3] for m in MERGES])]
    query.call(writer, spark.createDataFrame([(2, *old[1:]), (2, *new[1:])], schema).coalesce(1), 2)
    assert database.query("SELECT * FROM t WHERE id = 2") == [(2, *[m[3] for m in MERGES])]


def test_a_batch_beyond_max_allowed_packet(database: Database, spark: SparkSession) -> None:
    """M3: 5 MB in packets of 1 MiB; one row of 2 MB names the setting."""
    database.query("CREATE TABLE t (id INT, v LONGTEXT)")
    database.query("SET GLOBAL max_allowed_packet=1048576")
    try:
        query, writer = Query(spark), MySQLWriter(database.url(), "t")
        query.call(writer, spark.range(50).selectExpr("cast(id as int) id",
                                                      "repeat('x', 100000) v"), 0)  # fmt: skip
        with pytest.raises(BadRowError, match="max_allowed_packet"):
            query.call(writer, spark.range(1).selectExpr("1 AS id", "repeat('x', 2000000) v"), 1)
    finally:
        database.query("SET GLOBAL max_allowed_packet=16777216")
    assert database.query("SELECT COUNT(*), SUM(LENGTH(v)) FROM t") == [(50, 5_000_000)]
    query.call(writer, spark.range(1).selectExpr("1 AS id", "repeat('x', 2000000) v"), 1)


@pytest.mark.parametrize("key", [[], ["st", "i"]])
def test_a_created_table_keeps_every_type(
    every_database: Database, spark: SparkSession, key: list[str]
) -> None:
    """create_table makes it once; what is read back by Spark's rules is what was written, and
    keys that differ by case or a trailing space are two rows."""
    kept = {name: (e, v) for name, _, e, v in TYPES if name not in ("st", "b1", "tz", "s1", "a2")}
    selects = [f"{e} AS {n}" for n, (e, _) in kept.items()]
    selects.append("explode(array('k', 'K', 'k ')) AS st")
    how: dict[str, Any] = {"mode": "upsert", "key": key} if key else {}
    query, writer = (
        Query(spark),
        MySQLWriter(every_database.url(), "made", create_table=True, **how),
    )
    for batch_id in range(2):
        query.call(writer, spark.range(1).selectExpr(*selects), batch_id)
    names = ", ".join(kept)
    rows = every_database.query(f"SELECT {names} FROM made")
    assert len(rows) == (3 if key else 6)
    for row in rows:
        for name, found in zip(kept, row, strict=True):
            expected = kept[name][1]
            value = json.loads(found) if isinstance(expected, (dict, list)) else found
            assert value == expected, name


NUMBER = '{"a":0.1234567890123456789}'
#: Type of the table, Spark's expression, what is read back there and from a table that is made.
NEWER = [
    ("LONGTEXT", f"parse_json('{NUMBER}')", NUMBER, NUMBER),
    ("VARCHAR(9)", "'Ab' collate UNICODE_CI", "Ab", "Ab"),
]
SINCE_4_1 = [
    ("TIME(6)", "time'23:59:59.999999'", datetime.timedelta(0, 86399, 999999),
     datetime.timedelta(0, 86399, 999999)),
    ("VARCHAR(20)", "time'01:02:03.5'", "01:02:03.500000", datetime.timedelta(0, 3723, 500000)),
]  # fmt: skip


def test_newer_types_go_round(mariadb: Database, spark: SparkSession) -> None:
    """M11: VARIANT, collated text and TIME, in a table that is there and in one that is made."""
    version = tuple(map(int, spark.version.split(".")[:2]))
    known = NEWER + (SINCE_4_1 if version >= (4, 1) else [])
    ddl = ", ".join(f"c{i} {kind}" for i, (kind, *_) in enumerate(known))
    mariadb.query(f"CREATE TABLE t ({ddl}) CHARACTER SET utf8mb4")
    selects = [f"{expression} AS c{i}" for i, (_, expression, *_) in enumerate(known)]
    write(spark, MySQLWriter(mariadb.url(), "t"), *selects)
    assert mariadb.query("SELECT * FROM t") == [tuple(there for *_, there, _ in known)]
    write(spark, MySQLWriter(mariadb.url(), "made", create_table=True), *selects)
    assert mariadb.query("SELECT * FROM made") == [tuple(made for *_, made in known)]


def test_geometry_is_refused_by_name(mariadb: Database, spark: SparkSession) -> None:
    """M11: alone and nested, before a job that would fail; Spark has it from 4.1 on."""
    mariadb.query("CREATE TABLE t (x GEOMETRY)")
    point = "ST_GeomFromWKB(unhex('0101000000000000000000f03f0000000000000040'))"
    try:
        assert spark.range(1).selectExpr(f"{point} AS x").schema.fields
    except AnalysisException:
        pytest.skip("this Spark has no geometry")
    for select in (point, f"array({point})"):
        with pytest.raises(ConfigError, match=r"has type geometry\(.*which no sink can keep"):
            write(spark, MySQLWriter(mariadb.url(), "t"), f"{select} AS x")
