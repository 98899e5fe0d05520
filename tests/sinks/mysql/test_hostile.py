"""Hostile texts in every place of a MySQL writer change their own row and nothing else, whatever
SQL mode the server has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import MySQLWriter
from spark_eoc.errors import SparkEocError
from spark_eoc.testing.local import LocalFrame, local_run
from spark_eoc.testing.plugin import Database
from tests.sinks.hostile import HOSTILE, NAMES, rotated

MODES = ("NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,PIPES_AS_CONCAT,IGNORE_SPACE")
ROWS = pa.schema([("k", pa.binary()), ("s", pa.string()), ("b", pa.binary())])


@pytest.fixture(params=MODES)
def database(request: pytest.FixtureRequest, mariadb: Database) -> Iterator[Database]:
    """A database whose server's sessions begin in another SQL mode; with a stranger's table."""
    ((before,),) = mariadb.query("SELECT @@GLOBAL.sql_mode")
    mariadb.query("SET GLOBAL sql_mode=%s", (request.param,))
    mariadb.query("CREATE TABLE bystander (id INT PRIMARY KEY, s VARCHAR(9))")
    mariadb.query("INSERT INTO bystander VALUES (1, 'one')")
    yield mariadb
    mariadb.query("SET GLOBAL sql_mode=%s", (before,))


def write(database: Database, frame: LocalFrame, table: str, run: str = "run", **more: Any) -> None:
    """Batch 0, without Spark."""
    writer = MySQLWriter(database.url(), table, retry_minutes=0.05, **more)
    local_run(writer, "query", run)(frame, 0)  # type: ignore[arg-type]


def tables(database: Database) -> set[str]:
    """All tables but the ledger's; the stranger's one is as it was."""
    assert database.query("SELECT * FROM bystander") == [(1, "one")]
    return {name for (name,) in database.query("SHOW TABLES") if "spark_eoc" not in name}


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_hostile_keys_and_values(database: Database, mode: str, atomicity: str) -> None:
    """Every text as a key, as text and as bytes, new and over a row that is there."""
    database.query(
        "CREATE TABLE t (k VARBINARY(99) PRIMARY KEY, s LONGTEXT CHARACTER SET utf8mb4, b LONGBLOB)"
    )
    told: dict[str, Any] = {"mode": mode, "atomicity": atomicity}
    if mode == "upsert":
        told["key"] = ["k"]
        database.query("INSERT INTO t (k, s, b) VALUES (%s, 'old', 'old')", (HOSTILE[0],))
    keys, texts, data = HOSTILE, rotated(5), rotated(11)
    rows = [
        {"k": k.encode(), "s": s, "b": b.encode()}
        for k, s, b in zip(keys, texts, data, strict=True)
    ]
    write(database, LocalFrame([rows[::2], rows[1::2]], ROWS), "t", **told)
    found = {bytes(k): (s, bytes(b)) for k, s, b in database.query("SELECT k, s, b FROM t")}
    assert found == {row["k"]: (row["s"], row["b"]) for row in rows}
    assert tables(database) == {"bystander", "t"}


@pytest.mark.parametrize(
    ("database", "atomicity"),
    [*zip(MODES, ["partition", "batch"], strict=True)],
    indirect=["database"],
)
def test_hostile_names(database: Database, atomicity: str) -> None:
    """Each text as the table, a column, the writer_id and the ledger's table: the server makes
    a table of that name, or it is refused by name; never more."""
    worked = 0
    for number, text in enumerate(NAMES):
        schema = pa.schema([("id", pa.int64()), (text, pa.int64())])
        frame = LocalFrame([[{"id": 1, text: 2}], [{"id": 3, text: 4}]], schema)
        told: dict[str, Any] = {"create_table": True, "atomicity": atomicity, "writer_id": text}
        if number % 2:
            told |= {"mode": "upsert", "key": ["id"], "merge": {text: "add"}}
        try:
            write(database, frame, text, **told)
        except SparkEocError:
            assert tables(database) == {"bystander"}, text
            continue
        worked += 1
        assert tables(database) == {"bystander", text}
        name = "`" + text.replace("`", "``") + "`"
        assert database.query(f"SELECT * FROM {name} ORDER BY id") == [(1, 2), (3, 4)]
        assert [c[0] for c in database.query(f"SHOW COLUMNS FROM {name}")] == ["id", text]
        database.query(f"DROP TABLE {name}")
    assert (
        worked == 6
    )  # the server has no names with NUL, beyond the BMP, or with a blank at the end


@pytest.mark.parametrize("database", MODES[1:], indirect=True)
def test_hostile_names_of_the_ledger(database: Database) -> None:
    """The ledger's tables and that of the dead letters: a name, or refused."""
    database.query("CREATE TABLE t (id BIGINT NOT NULL, s VARCHAR(200) CHARACTER SET utf8mb4)")
    worked = 0
    for text in NAMES:
        bad = {"id": None, "s": text}
        schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
        before = tables(database)
        told = {"ledger": "spark_eoc" + text, "on_bad_row": "dead_letter", "writer_id": text}
        try:
            write(database, LocalFrame([[{"id": 1, "s": text}, bad]], schema), "t", **told)
        except SparkEocError:
            assert database.query("SELECT COUNT(*) FROM t") == [(0,)]
            continue
        worked += 1
        assert database.query("SELECT * FROM t") == [(1, text)]
        assert tables(database) == before
        name = "`" + ("spark_eoc" + text).replace("`", "``") + "_dead_letters`"
        ((row,),) = database.query(f"SELECT COUNT(*) FROM {name}")
        assert row == 1
        database.query("DELETE FROM t")
    assert worked > 4
