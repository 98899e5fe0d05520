"""Dead letters of change streams: what a key keeps when one of its rows is refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_eoc.errors import DeadLetterLimitError
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Refused
from spark_eoc.sinks.mysql import aside_changes, changes
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.testing.plugin import Database
from tests.sinks.calls import Query
from tests.sinks.mysql.test_changes import COLUMNS, Stream, one_after_another, rows_of, stream
from tests.sinks.mysql.test_dead_letters import POINTS

#: More than the column n holds.
BAD = 99_999
LIMIT = 1000


@pytest.fixture(autouse=True)
def _fresh_failpoints(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))


def aside(database: Database, rule: str = "replace", limit: int = LIMIT) -> Stream:
    how: dict[str, Any] = {"order_by": "ts", "merge": {"n": rule}, "on_bad_row": "dead_letter"}
    how |= {"columns": {"op": None, "ts": None}, "retry_minutes": 0.1}
    made = stream(database, COLUMNS, **how)
    made.sink = made.sink.with_dead_letters(limit)
    made.sink.check(COLUMNS)
    return made


def create(database: Database, more: str = "") -> Database:
    database.query(f"CREATE TABLE t (id BIGINT PRIMARY KEY, n SMALLINT, extra INT DEFAULT 7{more})")
    return database


@pytest.fixture
def table(mariadb: Database) -> Database:
    return create(mariadb)


def content(database: Database) -> dict[int, tuple[int, int]]:
    return {key: (n, extra) for key, n, extra in database.query("SELECT id, n, extra FROM t")}


def letters(database: Database) -> list[tuple[Any, ...]]:
    """(id, ts, n, op, column, error) of each, in the order in which they were written."""
    found = database.query(
        "SELECT row_json, column_name, error FROM spark_eoc_dead_letters ORDER BY id"
    )
    return [(*json.loads(row).values(), column, error) for row, column, error in found]


def reasons(database: Database) -> list[str]:
    return [r for (r,) in database.query("SELECT reason FROM spark_eoc_dead_letters ORDER BY id")]


def counted(rows: list[Any], rule: str) -> list[Any]:
    """Those of a key's rows that make up its new state: its last delete, and what follows it."""
    ordered = sorted(rows, key=lambda row: row[1])
    deletes = [at for at, row in enumerate(ordered) if row[3] == "D"]
    last = deletes[-1] if deletes else -1
    after = ordered[last + 1 :]
    return ordered[last : last + 1] * bool(deletes) + (after[-1:] if rule == "replace" else after)


def expect(
    state: dict[int, tuple[int, int]], rows: list[Any], rule: str
) -> tuple[dict[int, tuple[int, int]], Counter[Any]]:
    """The reference: each key has all that its rows amount to, or what it had."""
    put_aside: Counter[Any] = Counter()
    for key in {row[0] for row in rows}:
        of = [row for row in rows if row[0] == key]
        if any(row[2] == BAD and row[3] != "D" for row in counted(of, rule)):
            put_aside.update(counted(of, rule))
        else:
            good = [row if row[2] != BAD else (*row[:2], 0, row[3]) for row in of]
            state = one_after_another(state, sorted(good, key=lambda row: row[1]), rule)
    return state, put_aside


@pytest.mark.parametrize(
    ("server", "rule"),
    [("mariadb", "replace"), ("mariadb", "add"),
     pytest.param("mariadb", "keep", marks=pytest.mark.slow),
     pytest.param("mysql", "replace", marks=pytest.mark.slow),
     pytest.param("mysql", "add", marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_key_has_all_that_its_rows_amount_to_or_what_it_had(
    database_on: Any, eoc_seed: int, monkeypatch: pytest.MonkeyPatch, server: str, rule: str
) -> None:
    """Random batches, of which every sixth row is bad; only those that count are put aside, and
    no older row takes their place. Every other batch is judged as one that is large."""
    database = create(database_on(server))
    writes = aside(database, rule)
    chance = random.Random(eoc_seed)
    expected: dict[int, tuple[int, int]] = {}
    wanted: Counter[Any] = Counter()
    for batch in range(6):
        monkeypatch.setattr(changes, "_JUDGED_ROWS", 3 if batch % 2 else 1000)
        monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", 100 if batch % 2 else 1 << 25)
        ordered = [
            (chance.randrange(9), ts, BAD if chance.random() < 1 / 6 else chance.randrange(99),
             chance.choice("IUUD"))
            for ts in range(chance.randrange(1, 40))
        ]  # fmt: skip
        expected, more = expect(expected, ordered, rule)
        wanted += more
        rows = rows_of(*chance.sample(ordered, len(ordered)))
        assert writes.apply(rows) == Applied(more.total()), f"seed {eoc_seed}"
        assert content(database) == expected, f"seed {eoc_seed}"
        database.query("UPDATE t SET extra = 8")
        expected = {key: (n, 8) for key, (n, _) in expected.items()}
    assert Counter(letter[:4] for letter in letters(database)) == wanted, f"seed {eoc_seed}"
    assert wanted, "nothing was bad"


def test_a_bad_winner_leaves_its_key_as_it_was(table: Database) -> None:
    """Neither the delete before it nor an older row is carried out; other keys are."""
    writes = aside(table)
    writes.apply(rows_of((1, 1, 10, "I"), (2, 1, 20, "I"), (3, 1, 30, "I")))
    outcome = writes.apply(
        rows_of(
            (1, 2, 11, "U"), (1, 3, BAD, "U"),
            (2, 2, 21, "D"), (2, 3, BAD, "I"),
            (3, 2, BAD, "U"), (3, 3, 31, "D"), (4, 1, BAD, "I"), (4, 2, 40, "U"),
        )
    )  # fmt: skip
    assert outcome == Applied(3)
    assert content(table) == {1: (10, 7), 2: (20, 7), 4: (40, 7)}
    assert letters(table) == [
        (1, 3, BAD, "U", "n", 1264), (2, 2, 21, "D", None, None), (2, 3, BAD, "I", "n", 1264)
    ]  # fmt: skip
    assert reasons(table)[1] == f"another row of its key is refused: {reasons(table)[2]}"


@pytest.mark.parametrize("spill", [0, 1 << 25])
@pytest.mark.parametrize(
    "rows",
    [
        [(None, 1, 1, "I"), (None, 2, 2, "I")],
        [(1, None, 1, "I"), (1, 2, 2, "D")],
        [(1, 1, 1, "I"), (1, 1, 2, "I")],
        [(1, 1, BAD, "I"), (2, 1, BAD, "I")],
    ],
)
def test_a_partition_of_which_nothing_is_left(
    table: Database, monkeypatch: pytest.MonkeyPatch, rows: list[Any], spill: int
) -> None:
    """Rows without a key are in one partition, often by themselves."""
    writes = aside(table)
    monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", spill)
    assert writes.apply(rows_of(*rows)) == Applied(2)
    assert (content(table), len(letters(table))) == ({}, 2)


def test_rows_without_a_known_order_go_aside_with_their_key(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NULL in the key, alone; NULL in order_by and ties, with all rows of the key; wherever the
    rows are cut to be judged."""
    monkeypatch.setattr(changes, "_JUDGED_ROWS", 2)
    writes = aside(table)
    writes.apply(rows_of((1, 1, 10, "I"), (2, 1, 20, "I")))
    outcome = writes.apply(
        rows_of(
            (None, 1, 1, "I"), (None, 1, 2, "I"), (1, None, 11, "U"), (1, 5, 12, "D"),
            (2, 7, 21, "U"), (2, 7, 22, "U"), (2, 1, 23, "D"), (3, 1, 30, "I"),
        )
    )  # fmt: skip
    assert outcome == Applied(7)
    assert content(table) == {1: (10, 7), 2: (20, 7), 3: (30, 7)}
    assert Counter(reason.partition(",")[0] for reason in reasons(table)) == {
        "column 'id' of key holds NULL or NaN": 2,
        "column 'ts' of order_by holds NULL or NaN": 1,
        "another row of its key is refused: column 'ts' of order_by holds NULL or NaN": 1,
        "different rows of its key are equal in order_by=['ts']": 3,
    }
    only_bad = rows_of((None, 1, 1, "I"), (5, None, 1, "I"))
    assert writes.apply(only_bad) == Applied(2)


def test_a_delete_that_is_refused(mariadb: Database) -> None:
    """By a foreign key: found by halving, and what should follow it goes aside too; a key that the
    table can't have."""
    table = create(mariadb)
    table.query("CREATE TABLE c (id BIGINT, FOREIGN KEY (id) REFERENCES t (id))")
    writes = aside(table)
    writes.apply(rows_of(*[(i, 1, i, "I") for i in range(40)]))
    table.query("INSERT INTO c VALUES (7), (31)")
    gone = [(i, 2, 0, "D") for i in range(5, 40)] + [(31, 3, 9, "I"), (32, 3, 9, "I")]
    assert writes.apply(rows_of(*gone)) == Applied(3)
    assert content(table).keys() == {*range(5), 7, 31, 32}
    assert content(table)[31] == (31, 7)
    assert [letter[:4] for letter in letters(table)] == [
        (7, 2, 0, "D"), (31, 2, 0, "D"), (31, 3, 9, "I")
    ]  # fmt: skip
    assert [letter[5] for letter in letters(table)] == [1451, 1451, None]
    table.query("DROP TABLE c")
    table.query("ALTER TABLE t MODIFY id TINYINT")
    assert writes.apply(rows_of((3, 1, 0, "D"), (999, 1, 0, "D"), (998, 1, 1, "I"))) == Applied(2)
    assert content(table).keys() == {0, 1, 2, 4, 7, 31, 32}


@pytest.mark.parametrize("point", POINTS[1:4:2])
def test_dying_at_each_step_leaves_each_key_and_letter_once(
    table: Database, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Sums, so that a row that counted twice shows; the same batch again, in another order."""
    rows = [(i % 10, i, BAD if i in (33, 47) else 1, "D" if i == 5 else "U") for i in range(60)]
    writes = aside(table, "add")
    writes.apply(rows_of(*[(i, 0, 100, "I") for i in range(10)]))
    with monkeypatch.context() as failing:
        failing.setenv(ENVIRONMENT, f"{point}=raise")
        with pytest.raises(FailpointError):
            writes.apply(rows_of(*rows))
    again = aside(table, "add")
    again.batch_id, again.run_id = 0, "next"
    assert again.apply(rows_of(*rows[::-1])) in (Applied(12), AlreadyApplied())
    wanted = dict.fromkeys(range(10), (106, 7)) | {5: (5, 7), 3: (100, 7), 7: (100, 7)}
    assert content(table) == wanted
    assert Counter(letter[:2] for letter in letters(table)) == Counter(
        (i % 10, i) for i in range(60) if i % 10 in (3, 7)
    )


def test_the_limit_counts_all_rows_of_the_keys(table: Database) -> None:
    """Of those whose order is not known too; nothing of the unit is written."""
    writes = aside(table, "add", limit=3)
    rows = [(1, ts, BAD if ts == 2 else 1, "U") for ts in range(4)]
    refused = writes.apply(rows_of(*rows, (2, 1, 1, "I")))
    assert isinstance(refused, Refused)
    assert (refused.error, content(table)) == (DeadLetterLimitError.__name__, {})
    ties = [(1, 1, n, "U") for n in range(4)]
    refused = writes.apply(rows_of(*ties))
    assert isinstance(refused, Refused)
    assert refused.error == DeadLetterLimitError.__name__


def test_a_bad_row_of_its_own_costs_no_second_pass(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where more of a key was sent must it be taken back."""
    sent: list[int] = []
    real = aside_changes.AsideChanges._send

    def counting(self: Any, *arguments: Any) -> Any:
        sent.append(1)
        return real(self, *arguments)

    monkeypatch.setattr(aside_changes.AsideChanges, "_send", counting)
    writes = aside(table)
    assert writes.apply(rows_of((1, 1, BAD, "I"), (2, 1, 1, "I"), (3, 1, 0, "D"))) == Applied(1)
    assert len(sent) == 1 + 1  # the stream repeats each batch once
    assert writes.apply(rows_of((2, 1, 1, "D"), (2, 2, BAD, "I"), (3, 1, 1, "I"))) == Applied(2)
    assert len(sent) == 2 + 2 + 1  # the repeat is settled at its first bad row
    assert content(table) == {2: (1, 7), 3: (1, 7)}


def test_through_spark(table: Database, spark: SparkSession) -> None:
    """The rows of a key come from several partitions; the batch is run again after it is done."""
    how: dict[str, Any] = {"mode": "upsert", "key": ["id"], "order_by": "ts", "num_partitions": 3}
    how |= {"delete_when": "op = 'D'", "columns": {"op": None, "ts": None}}
    batch = spark.range(0, 90, 1, 4).selectExpr(
        "id % 9 id", "id ts", f"IF(id IN (84, 50), {BAD}, id) n", "IF(id = 85, 'D', 'U') op"
    )
    query = Query(spark)
    for _ in range(2):
        query.call(MySQLWriter(table.url(), "t", on_bad_row="dead_letter", **how), batch, 0)
        query.restart()
    # 84 is the newest of key 3, 85 of key 4; 50 is an older one of key 5.
    assert content(table) == {i % 9: (i, 7) for i in range(81, 90) if i not in (84, 85)}
    assert [letter[:4] for letter in letters(table)] == [(3, 84, BAD, "U")]
