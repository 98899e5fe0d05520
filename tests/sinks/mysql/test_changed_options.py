"""Options that change while a batch is partly applied."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_eoc.sinks import ledger
from spark_eoc.sinks.mysql import MySQLWriter
from spark_eoc.testing.plugin import Database
from tests.sinks.changed_options import CONDITIONS, Query, parts

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["k"]}
ORDERED = {**UPSERT, "order_by": "s", "delete_when": "n % 5 = 0"}
ASIDE = {"mode": "append", "on_bad_row": "dead_letter"}
TWO = {"mode": "upsert", "allow": ["unique_key:PRIMARY", "unique_key:pair"]}

#: What is changed, the options of the run that began the batch, those that change.
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("merge", {**UPSERT, "merge": {"n": "add"}}, {"merge": {"n": "max"}}),
    ("merge", UPSERT, {"merge": {"n": "keep"}}),
    ("mode", UPSERT, {"mode": "append", "key": []}),
    ("key", {**TWO, "key": ["k", "n"]}, {"key": ["n"]}),
    ("columns", {"columns": {"s": None}}, {"columns": {"s": None, "n": "s", "k": "n"}}),
    ("delete_when", ORDERED, {"delete_when": "n % 3 = 0"}),
    ("delete_when", ORDERED, {"delete_when": None}),
    ("order_by", ORDERED, {"order_by": ["n"]}),
    ("dead_letter_table", ASIDE, {"dead_letter_table": "letters"}),
    ("nan", ASIDE, {"nan": "null"}),
    ("nan", {**ASIDE, "nan": "null"}, {"nan": "error"}),
    ("target", {}, {"table": "u"}),
]
#: Options that change nothing of what a row does, in the same form.
ALIKE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("merge", {**UPSERT, "merge": {"n": "add"}}, {"merge": {"n": "add", "s": "replace"}}),
    ("columns", {}, {"columns": {"s": "s"}}),
    ("retry_minutes", {}, {"retry_minutes": 1, "load_data": True, "allow": ["galera"]}),
    ("nan", {"nan": "error"}, {"nan": "null"}),
    ("nan", {"nan": "null"}, {"nan": "error"}),
    ("on_bad_row", {}, {"on_bad_row": "dead_letter"}),
    ("on_bad_row", ASIDE, {"on_bad_row": "fail"}),
    ("dead_letter_limit", ASIDE, {"dead_letter_limit": 5}),
]
_COLUMNS = "k BIGINT, n BIGINT, s BIGINT, f DOUBLE"


@pytest.fixture
def query(mariadb: Database) -> Callable[..., Query]:
    """A query on the tables ``t``, or with ``table=...`` on another, which are made."""

    def build(begun: dict[str, Any], table: str = "t", **more: Any) -> Query:
        unique = {1: ", PRIMARY KEY (k)", 2: ", PRIMARY KEY (n), UNIQUE pair (k, n)"}
        key = begun.get("key", [])
        mariadb.query(f"CREATE TABLE {table} ({_COLUMNS}{unique.get(len(key), '')})")

        def writer(**options: Any) -> MySQLWriter:
            options = {"table": table, "writer_id": f"w-{table}", **options}
            return MySQLWriter(mariadb.url(), **options)

        return Query(writer, **more)

    return build


def content(database: Database, table: str = "t") -> list[Any]:
    return sorted(database.query(f"SELECT * FROM {table}"), key=repr)


def undisturbed(database: Database, query: Callable[..., Query], begun: dict[str, Any]) -> Any:
    other = query(begun, "x")
    other.call(**begun)
    return content(database, "x")


@pytest.mark.parametrize(("name", "begun", "changes"), CHANGES)
def test_other_options_in_mid_batch_are_refused(
    mariadb: Database,
    query: Callable[..., Query],
    name: str,
    begun: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """Nothing is written by them; put back, they complete the batch exactly once."""
    wanted, run = undisturbed(mariadb, query, begun), query(begun)
    mariadb.query(f"CREATE TABLE u ({_COLUMNS})")
    run.dies(7 if "order_by" in begun else 2, **begun)
    half = content(mariadb)
    assert 0 < len(half) < len(wanted)
    for _ in range(2):
        run.is_refused(name, **{**begun, **changes})
        assert content(mariadb) == half
    assert content(mariadb, "u") == []
    run.call(**begun)
    assert content(mariadb) == wanted
    run.call(**{**begun, **changes})  # a complete batch is compared, and not written
    assert (content(mariadb), content(mariadb, "u")) == (wanted, [])


@pytest.mark.parametrize(("name", "begun", "changes"), ALIKE)
def test_options_that_change_nothing_of_a_row_may_change(
    mariadb: Database,
    query: Callable[..., Query],
    name: str,
    begun: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """As do those that only decide whether a row fails: no such row was written."""
    wanted, run = undisturbed(mariadb, query, begun), query(begun)
    run.dies(2, **begun)
    run.call(**{**begun, **changes})
    assert content(mariadb) == wanted


def test_one_table_of_dead_letters_has_one_name() -> None:
    """Named with the connection's database or without it, or left out."""

    def name(table: str | None, ledger: str = "spark_eoc") -> object:
        writer = MySQLWriter("mysql://u@h/d", "t", dead_letter_table=table, ledger=ledger, **ASIDE)
        return writer._sink.options()["dead_letter_table"]

    alike = (
        name("d.spark_eoc_dead_letters"),
        name("spark_eoc_dead_letters"),
        name(None, "d.spark_eoc"),
    )
    assert set(alike) == {name(None)}
    assert name("other.spark_eoc_dead_letters") == "other.spark_eoc_dead_letters"


def test_a_bad_row_of_a_partly_applied_batch_can_still_be_put_aside(
    mariadb: Database, query: Callable[..., Query]
) -> None:
    """Or written as NULL: else such a batch could never be completed. But not the one and then the
    other."""
    run = query({}, partitions=parts(3, 25))
    run.partitions = run.partitions[::-1]  # its last partition has NaN, as the first one
    run.dies(2, nan="null")
    run.dies(2, nan="error")
    run.is_refused("nan", on_bad_row="dead_letter")
    run.call(nan="null")
    assert len(mariadb.query("SELECT * FROM t WHERE f IS NULL")) == 2
    later = query({}, "later", partitions=parts(25))
    later.dies(2)
    later.call(on_bad_row="dead_letter")
    assert len(content(mariadb, "later")) == 29
    assert len(mariadb.query("SELECT * FROM spark_eoc_dead_letters")) == 1


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_options_hold_at_once_where_nothing_is_applied(
    mariadb: Database, query: Callable[..., Query], atomicity: str
) -> None:
    """What was staged for a whole batch is never published by another run."""
    begun = {**UPSERT, "merge": {"n": "add"}}
    changed = {**begun, "merge": {"n": "min"}}
    wanted, run = undisturbed(mariadb, query, changed), query(begun)
    run.dies(0 if atomicity == "partition" else 2, **begun, atomicity=atomicity)
    run.call(**changed, atomicity=atomicity)
    assert content(mariadb) == wanted


def test_a_whole_batch_that_partitions_began_keeps_its_options(
    mariadb: Database, query: Callable[..., Query]
) -> None:
    """It is completed by partitions, so it can be half applied."""
    wanted, run = undisturbed(mariadb, query, UPSERT), query(UPSERT)
    run.dies(2, **UPSERT)
    run.is_refused("merge", **UPSERT, merge={"n": "add"}, atomicity="batch")
    run.call(**UPSERT, atomicity="batch")
    assert content(mariadb) == wanted


def test_a_ledger_that_knows_no_options_lets_every_run_go_on(
    mariadb: Database, query: Callable[..., Query]
) -> None:
    """Of before there were any; what is found then is kept."""
    run = query(UPSERT)
    run.dies(2, **UPSERT)
    assert _kept(mariadb)["mode"] == "upsert"
    mariadb.query("UPDATE spark_eoc_control SET split=JSON_REMOVE(split, '$.options')")
    run.dies(2, **UPSERT, merge={"n": "add"})
    assert _kept(mariadb)["merge"] == {"n": "add"}
    run.is_refused("merge", **UPSERT)
    run.call(**UPSERT, merge={"n": "add"})


def test_long_options_fit_the_ledger(mariadb: Database, query: Callable[..., Query]) -> None:
    """By a digest; a change at the end of them is seen."""
    condition = " AND ".join(["n % 5 = 0"] * 9000)

    def told(last: str) -> dict[str, Any]:
        return {**ORDERED, "delete_when": condition + last}

    run = query(UPSERT)
    for last in ("", " "):
        CONDITIONS[condition + last] = CONDITIONS["n % 5 = 0"]
    run.dies(7, **told(""))
    run.is_refused("delete_when", **told(" "))
    run.call(**told(""))


def _kept(database: Database) -> Any:
    return json.loads(database.query("SELECT split FROM spark_eoc_control")[0][0])["options"]


def test_without_the_rule_a_batch_is_written_in_two_ways(
    mariadb: Database, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rule is for: rows as neither of the runs would have written all of them."""
    add, keep = ({**UPSERT, "merge": {"n": rule}} for rule in ("add", "keep"))
    wanted, run = undisturbed(mariadb, query, add), query(UPSERT)
    monkeypatch.setattr(ledger, "changed_options", lambda *_: [])
    run.dies(2, **add)
    run.call(**keep)
    mixed = content(mariadb)
    assert mixed != wanted
    assert mixed[:10] == wanted[:10]
