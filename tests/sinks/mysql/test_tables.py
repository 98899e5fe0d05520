"""Tables that are made, completed and matched: ``create_table``, ``add_columns``, ``columns``."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.store import Column
from spark_eoc.testing.plugin import Database

SERVERS = ("mariadb", "mysql")


def check(database: Database, frame: list[Column], **arguments: Any) -> None:
    """What a run does before its first batch."""
    MySQLWriter(database.url(), "t", **arguments)._sink.check(frame)


def types(database: Database) -> dict[str, str]:
    """Each column's type, with its length where that was chosen, and whether it may be NULL."""
    found = database.query(
        "SELECT column_name, column_type, is_nullable, character_set_name "
        "FROM information_schema.columns WHERE table_schema=DATABASE() AND table_name='t'"
    )
    return {name: _spelled(kind, null, charset) for name, kind, null, charset in found}


def _spelled(kind: Any, null: str, charset: str | None) -> str:
    text = kind if isinstance(kind, str) else kind.decode()
    short = text.partition("(")[0] if "int(" in text and text != "tinyint(1)" else text
    return short + (f" {charset}" if charset else "") + ("" if null == "YES" else " not null")


#: Spark's type, whether it is nested, what is made of it as a key, beside it, and on MySQL.
MADE = [
    ("tinyint", False, "tinyint", "tinyint", None),
    ("bigint", False, "bigint", "bigint", None),
    ("double", False, "double", "double", None),
    ("decimal(38,18)", False, "decimal(38,18)", "decimal(38,18)", None),
    ("boolean", False, "tinyint(1)", "tinyint(1)", None),
    ("date", False, "date", "date", None),
    ("time(6)", False, "time(6)", "time(6)", None),
    ("timestamp", False, "datetime(6)", "datetime(6)", None),
    ("timestamp_ntz", False, "datetime(6)", "datetime(6)", None),
    ("string", False, "varchar(255) utf8mb4", "longtext utf8mb4", None),
    ("string collate UNICODE_CI", False, "varchar(255) utf8mb4", "longtext utf8mb4", None),
    ("varchar(700)", False, "varchar(700) utf8mb4", "longtext utf8mb4", None),
    ("char(9)", False, "varchar(9) utf8mb4", "longtext utf8mb4", None),
    ("varchar(900)", False, "varchar(255) utf8mb4", "longtext utf8mb4", None),
    ("binary", False, "varbinary(255)", "longblob", None),
    ("array<int>", True, None, "longtext utf8mb4", "json"),
    ("struct<a:decimal(38,18)>", True, None, "longtext utf8mb4", "longtext utf8mb4"),
    ("variant", True, None, "longtext utf8mb4", "longtext utf8mb4"),
]


@pytest.mark.parametrize("server", SERVERS)
def test_the_type_of_every_column_that_is_made(
    database_on: Callable[[str], Database], server: str
) -> None:
    """M11: the same by create_table and by add_columns, also where the table is not utf8mb4; keys
    get types that an index holds."""
    database = database_on(server)
    columns = [Column(f"c{i}", of, nested) for i, (of, nested, *_) in enumerate(MADE)]
    expected = {
        f"c{i}": (on_mysql or kind) if server == "mysql" else kind
        for i, (_, _, _, kind, on_mysql) in enumerate(MADE)
    }
    check(database, columns, create_table=True)
    assert types(database) == expected
    ((engine, collation),) = database.query(
        "SELECT engine, table_collation FROM information_schema.tables "
        "WHERE table_schema=DATABASE() AND table_name='t'"
    )
    assert (engine, collation[:8]) == ("InnoDB", "utf8mb4_")
    database.query("DROP TABLE t")
    database.query("CREATE TABLE t (c0 TINYINT) CHARACTER SET latin1")
    database.query("INSERT INTO t VALUES (1)")
    check(database, columns, add_columns=True)
    assert types(database) == expected
    assert database.query("SELECT * FROM t") == [(1, *[None] * (len(MADE) - 1))]
    for i, (of, nested, as_key, *_) in enumerate(MADE):
        if as_key:
            database.query("DROP TABLE t")
            column = Column(f"c{i}", of, nested)
            check(database, [column], create_table=True, mode="upsert", key=[column.name])
            assert types(database) == {column.name: f"{as_key} not null"}


KEYS = [
    ([Column("k", "array<int>", json=True)], "key column 'k' is array<int>, which no index holds"),
    ([Column(f"k{i}", "string") for i in range(4)], "longer than the 3072 bytes"),
    ([Column(f"k{i}", "int") for i in range(17)], "and 16 columns that an index holds"),
]


@pytest.mark.parametrize(("columns", "message"), KEYS)
def test_keys_that_no_index_holds_are_refused(
    mariadb: Database, columns: list[Column], message: str
) -> None:
    """By name, before the server says it in its own way; no table is left."""
    names = [column.name for column in columns]
    with pytest.raises(ConfigError, match=message):
        check(mariadb, columns, create_table=True, mode="upsert", key=names)
    assert types(mariadb) == {}


def test_a_table_that_is_there_is_never_changed_without_add_columns(mariadb: Database) -> None:
    """create_table leaves it as it is, and what it lacks is refused with both remedies."""
    mariadb.query("CREATE TABLE t (a INT)")
    columns = [Column("a", "int"), Column("B", "string")]
    with pytest.raises(ConfigError, match=r"no column 'B'.*add_columns=True.*columns="):
        check(mariadb, columns, create_table=True)
    assert types(mariadb) == {"a": "int"}
    check(mariadb, columns, add_columns=True, columns={"B": "a b`c"})
    check(mariadb, [Column("A", "int")], create_table=True, add_columns=True)
    assert types(mariadb) == {"a": "int", "a b`c": "longtext utf8mb4"}


def test_added_columns_that_do_not_fit_are_refused(mariadb: Database) -> None:
    """A column of that name but another type is not changed; a key's column is not added."""
    mariadb.query("CREATE TABLE t (a INT, b DATE)")
    with pytest.raises(ConfigError, match="column 'b' is bigint, and date in table"):
        check(mariadb, [Column("a", "int"), Column("b", "bigint")], add_columns=True)
    with pytest.raises(ConfigError, match="no primary key or unique index on exactly"):
        check(mariadb, [Column("k", "int")], add_columns=True, mode="upsert", key=["k"])
    assert types(mariadb)["b"] == "date"


@pytest.mark.parametrize("server", SERVERS)
def test_runs_that_race_make_one_table_and_each_column_once(
    database_on: Callable[[str], Database], server: str
) -> None:
    """Two runs that start at the same time; each finds what the other made."""
    database = database_on(server)
    some = [Column(f"c{i}", "string") for i in range(3)]
    more = [*some, *(Column(f"d{i}", "bigint") for i in range(6))]
    for columns in (some, more):

        def make(_: int, columns: list[Column] = columns) -> None:
            check(database, columns, create_table=True, add_columns=True)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(make, range(4)))
        assert list(types(database)) == [column.name for column in columns]


def test_columns_keep_their_default_and_may_have_other_names(mariadb: Database) -> None:
    """M10: reserved names, another case and another order; unknown names come with the nearest."""
    mariadb.query("CREATE TABLE t (`Select` INT, extra INT NOT NULL DEFAULT 7, `from` INT)")
    columns = [Column("user", "int"), Column("FROM", "int"), Column("op", "string")]
    check(mariadb, columns, columns={"user": "select", "op": None})
    with pytest.raises(ConfigError, match="no column of the frame; did you mean 'user'"):
        check(mariadb, columns, columns={"usr": "select", "op": None})
    with pytest.raises(ConfigError, match="no column 'selct'; did you mean 'Select'"):
        check(mariadb, columns, columns={"user": "selct", "op": None})
    with pytest.raises(ConfigError, match="two columns of the frame are one column"):
        check(mariadb, columns, columns={"user": "From", "op": None})


def test_a_dot_in_a_name_is_that_of_the_database(mariadb: Database) -> None:
    """Before the last dot stands the database. So no two tables have one name, which would be one
    writer_id and one table of staged rows."""
    dotted = f"{mariadb.name}.x"
    mariadb.query("CREATE TABLE `x.t` (a INT)")
    mariadb.query(f"CREATE DATABASE `{dotted}`")
    try:
        mariadb.query(f"CREATE TABLE `{dotted}`.t (a INT)")
        columns = [Column("a", "int")]
        sink = MySQLWriter(mariadb.url(), f"{dotted}.t")._sink
        assert sink.check(columns) == f"{dotted}.t"
        with pytest.raises(ConfigError, match=r"no table `x`\.`t`"):
            MySQLWriter(mariadb.url(), "x.t")._sink.check(columns)
    finally:
        mariadb.query(f"DROP DATABASE `{dotted}`")
