"""Dead letters in a real Redis: one bad row among thousands, failures around it, limits."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError, DeadLetterLimitError
from spark_eoc.failpoints import ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Refused
from spark_eoc.sinks.ledger import decide_close
from spark_eoc.sinks.redis import aside as aside_module
from spark_eoc.sinks.redis.bad_rows import check_stream
from spark_eoc.sinks.redis.server import Script
from tests.sinks.redis.broken import LettersApartSink
from tests.sinks.redis.driving import Run, error_of, redis_sink, rows_of, stored

GOOD = 5000
MIDDLE = 2500
NewRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def _few_keys(client: Any, prefix: str) -> Iterator[None]:
    """Thousands of keys would slow down the tests after these."""
    yield
    client.delete(prefix, *client.scan_iter(f"{prefix}*", count=10_000))


@pytest.fixture
def aside(new_run: NewRun) -> NewRun:
    """``aside(command, ...)``: a run that puts bad rows aside, with keys ``<prefix>:<k>``."""

    def build(command: str = "hincrby", **more: Any) -> Run:
        return new_run("{k}", command, **{"dead_letter_limit": 1000, **more})

    return build


def thousands(bad: dict[str, Any], **good: Any) -> pa.Table:
    """Rows with keys of their own and ``good`` values, but for one ``bad`` in the middle."""
    rows = [{"k": f"k{i:05d}", **good} for i in range(GOOD + 1)]
    rows[MIDDLE].update(bad)
    return pa.Table.from_pylist(rows)


def letters(client: Any, prefix: str) -> list[dict[str, Any]]:
    """The dead letters, with their rows as values."""
    entries = [fields for _, fields in client.xrange(f"{prefix}_ledger:dead_letters")]
    found = [{name.decode(): value.decode() for name, value in e.items()} for e in entries]
    return [{**letter, "row": json.loads(letter["row"])} for letter in found]


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "a NULL key": ("hincrby", {}, {"n": 1}, {"k": None}, "NULL"),
    "an empty key": ("hincrby", {}, {"n": 1}, {"k": ""}, "empty"),
    "NULL": ("incrby", {"value": "n"}, {"n": 1}, {"n": None}, "NULL"),
    "a large number": ("hincrby", {}, {"n": 1}, {"n": 2**62}, "2^62"),
    "NaN": ("incrbyfloat", {"value": "n"}, {"n": 1.5}, {"n": math.nan}, "finite"),
    "a bad score": (
        "zadd",
        {"member": "m", "score": "n"},
        {"n": 1.5, "m": "x"},
        {"n": math.inf},
        "finite",
    ),
    "no TTL": ("hset", {"ttl": "t"}, {"t": 60, "n": 1}, {"t": None}, "TTL"),
    "a bad TTL": ("set", {"value": "n", "ttl": "t"}, {"t": 60, "n": 1}, {"t": 0}, "TTL"),
    "an empty entry": ("xadd", {"fields": ["n"]}, {"n": "x"}, {"n": None}, "every field is NULL"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_bad_row_among_thousands(aside: NewRun, client: Any, prefix: str, name: str) -> None:
    """R6: its letter carries row and reason, every other row is written, and all of it once."""
    command, more, good, bad, reason = CASES[name]
    table = thousands(bad, **good)
    run = aside(command, **more)
    run.open(0)
    assert run.apply(table) == Applied(dead_letters=1)
    assert run.apply(table) == AlreadyApplied()
    run.close()
    assert len(list(client.scan_iter(f"{prefix}:*", count=10_000))) == GOOD
    (letter,) = letters(client, prefix)
    row = table.slice(MIDDLE, 1).to_pylist()[0]
    row["n"] = {"NaN": "NaN", "a bad score": "Infinity"}.get(name, row["n"])
    assert letter["row"] == row
    assert reason in letter["reason"]
    assert (letter["batch"], letter["partition"], letter["writer_id"]) == (
        "0",
        "0",
        f"{prefix}:{{k}}",
    )
    assert letter["column"] in row


STRANGERS = [
    ("hset", {}),
    ("hincrby", {}),
    ("incrby", {"value": "n"}),
    ("incrbyfloat", {"value": "n"}),
    ("sadd", {"value": "n"}),
    ("rpush", {"value": "n"}),
    ("zadd", {"member": "k", "score": "n"}),
    ("zincrby", {"member": "k", "score": "n"}),
    ("xadd", {}),
]


@pytest.mark.parametrize(("command", "more"), STRANGERS)
def test_rows_whose_key_holds_another_type(
    aside: NewRun, client: Any, prefix: str, command: str, more: dict[str, str]
) -> None:
    """R2: each of the rows for that key is put aside, none of the others."""
    stranger = f"{prefix}:k00007"
    client.set(stranger, "text") if command[:4] != "incr" else client.hset(stranger, "f", 1)
    before = client.dump(stranger)
    keys = [f"k{i % 20:05d}" for i in range(60)]
    table = pa.table({"k": keys, "n": pa.array(range(60), pa.int64())})
    run = aside(command, **more)
    run.open(0)
    assert run.apply(table) == Applied(3)
    run.close()
    assert client.dump(stranger) == before
    assert len(list(client.scan_iter(f"{prefix}:*"))) == 20
    assert sorted(letter["row"]["n"] for letter in letters(client, prefix)) == [7, 27, 47]
    assert {letter["reason"] for letter in letters(client, prefix)} == {
        "the key holds another type of value"
    }


def test_a_counter_that_is_none_and_a_sum_beyond_the_limit(
    aside: NewRun, client: Any, prefix: str
) -> None:
    """Among thousands: the rows of the one key, with what is wrong with it."""
    client.hset(f"{prefix}:k02500", "n", "seven")
    run = aside()
    run.open(0)
    assert run.apply(thousands({}, n=1)) == Applied(1)
    (letter,) = letters(client, prefix)
    assert "not a whole number" in letter["reason"]
    assert letter["row"]["k"] == "k02500"
    data = {"k": ["a", "b", "b", "c"], "n": pa.array([1, 2**61, 2**61, 1], pa.int64())}
    assert run.apply(rows_of(data), 1) == Applied(2)
    assert {row["row"]["k"] for row in letters(client, prefix)[1:]} == {"b"}
    assert "the sum of its key's rows" in letters(client, prefix)[1]["reason"]
    assert not client.exists(f"{prefix}:b")


def test_keys_that_are_not_the_rows_to_write(redis_server: Any, client: Any, prefix: str) -> None:
    """No row may touch the ledger or the dead letters, whatever its key column holds."""
    sink = redis_sink(
        redis_server.url(), "{k}", "set", value="v", ledger=prefix,
        dead_letter_key=f"{prefix}_aside", dead_letter_limit=10,
    )  # fmt: skip
    run = Run(sink, "w")
    run.open(0)
    keys = [f"{prefix}x", f"{prefix}:boo", f"{prefix}_aside"]
    assert run.apply({"k": keys, "v": [1, 2, 3]}) == Applied(2)
    assert client.get(f"{prefix}x") == b"1"
    assert client.xlen(f"{prefix}_aside") == 2


def mixed(bad_at: int = 3) -> dict[str, Any]:
    """Forty rows of eleven counters, every seventh with a NULL; the key ``s`` is a stranger's."""
    numbers = [None if i % 7 == bad_at else 1 + 3 * i for i in range(40)]
    keys = ["s" if i == 20 else f"k{i * 7 % 11}" for i in range(40)]
    return {"k": keys, "n": pa.array(numbers, pa.int64())}


def expected_of(data: dict[str, Any]) -> tuple[dict[bytes, bytes], list[Any]]:
    sums: dict[bytes, int] = {}
    bad = []
    for key, number in zip(data["k"], data["n"].to_pylist(), strict=True):
        if number is None or key == "s":
            bad.append((key, number))
        else:
            sums[key.encode()] = sums.get(key.encode(), 0) + number
    return {key: b"%d" % number for key, number in sums.items()}, sorted(bad, key=repr)


def found_in(client: Any, prefix: str) -> tuple[dict[bytes, bytes], list[Any]]:
    client.delete(f"{prefix}:s")
    rows = [letter["row"] for letter in letters(client, prefix)]
    return stored(client, prefix), sorted(((r["k"], r["n"]) for r in rows), key=repr)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        *(("redis.before_chunk", count) for count in (1, 2, 5, 8)),
        *(("redis.after_chunk", count) for count in (1, 2, 4, 7)),
        ("redis.after_unit", 1),
    ],
)
def test_dying_at_each_step_leaves_each_row_and_letter_once(  # noqa: PLR0917
    aside: NewRun,
    client: Any,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    count: int,
) -> None:
    """With chunks of two operations; the next run gets the rows in another order."""
    data = mixed()
    client.set(f"{prefix}:s", "text")
    run = aside(chunk_rows=2)
    run.open(0)
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    monkeypatch.setenv(ENVIRONMENT, f"{point}:{count}=raise")
    with pytest.raises(FailpointError):
        run.apply(data)
    monkeypatch.delenv(ENVIRONMENT)
    again = aside(chunk_rows=3, run_id="run-2")
    again.open(0)
    table = pa.table(data).take(pa.array(range(39, -1, -1)))
    assert again.apply(rows_of(table)) in (Applied(7), AlreadyApplied())
    again.close()
    assert found_in(client, prefix) == expected_of(data)


def test_letters_in_a_step_of_their_own_double(
    redis_server: Any, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red without the rule: the task dies between the letters and the chunk."""
    sink = redis_sink(
        redis_server.url(), prefix + ":{k}", "hincrby", ledger=f"{prefix}_ledger",
        dead_letter_limit=10,
    )  # fmt: skip
    broken = Run(LettersApartSink(sink.target), "w")
    broken.open(0)
    data = {"k": ["a", "b", None], "n": [1, 2, 3]}
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    monkeypatch.setenv(ENVIRONMENT, "redis.after_chunk:2=raise")
    with pytest.raises(FailpointError):
        broken.apply(data)
    monkeypatch.delenv(ENVIRONMENT)
    run = Run(sink, "w", "run-2")
    run.open(0)
    assert run.apply(data) == Applied(1)
    assert [letter["row"]["n"] for letter in letters(client, prefix)] == [3, 3]


def close(run: Run, limit: int) -> None:
    run.sink.close_batch(
        run.writer_id,
        run.call.batch_id,
        lambda view, units: decide_close(
            view, units, run.reported, run.call, 2, dead_letter_limit=limit
        ),
    )


def nulls(count: int, start: int) -> dict[str, Any]:
    numbers = pa.array([None] * count + [1] * (10 - count), pa.int64())
    return {"k": [str(start + i) for i in range(10)], "n": numbers}


def test_the_limit_counts_over_a_batchs_partitions(aside: NewRun, client: Any, prefix: str) -> None:
    """A unit that would bring its batch above it leaves nothing; with a higher limit the batch goes
    on exactly once; and the next batch counts anew."""
    run = aside(dead_letter_limit=5)
    run.open(0)
    assert run.apply(nulls(3, 0)) == Applied(3)
    refused = run.apply(nulls(3, 100), 1)
    assert isinstance(refused, Refused)
    assert refused.error == DeadLetterLimitError.__name__
    assert "after 3 of its other rows" in refused.what
    assert (len(stored(client, prefix)), len(letters(client, prefix))) == (7, 3)
    again = aside(dead_letter_limit=6, run_id="run-2")
    again.open(0)
    assert again.apply(nulls(3, 0)) == AlreadyApplied()
    assert again.apply(nulls(3, 100), 1) == Applied(3)
    with pytest.raises(DeadLetterLimitError, match="6 rows of batch 0"):
        close(again, 5)
    close(again, 6)
    again.open(1)
    assert again.apply(nulls(6, 200)) == Applied(6)
    close(again, 6)
    assert (len(stored(client, prefix)), len(letters(client, prefix))) == (18, 12)


def test_a_chunk_above_the_limit_leaves_nothing_of_it(
    aside: NewRun, client: Any, prefix: str
) -> None:
    """Keys that hold another type are seen chunk by chunk; what was before stays, once."""
    for i in range(6, 10):
        client.set(f"{prefix}:{i}", "text")
    run = aside(dead_letter_limit=2, chunk_rows=5)
    run.open(0)
    refused = run.apply(nulls(0, 0))
    assert isinstance(refused, Refused)
    assert refused.error == "DeadLetterLimitError"
    assert refused.applied == "5 rows of this partition, 0 of them dead letters"
    assert letters(client, prefix) == []
    again = aside(dead_letter_limit=4, run_id="run-2")
    again.open(0)
    assert again.apply(nulls(0, 0)) == Applied(4)
    assert len(letters(client, prefix)) == 4


def test_a_stream_that_cannot_take_letters(aside: NewRun, client: Any, prefix: str) -> None:
    """Refused by name before the first row; if it comes later, before a letter's first write."""
    run = aside()
    run.open(0)
    client.set(f"{prefix}_ledger:dead_letters", "text")
    assert error_of(run.apply(nulls(2, 0))) == "SinkError"
    assert len(stored(client, prefix)) == 8
    with pytest.raises(ConfigError, match="holds a string"):
        check_stream(client, run.sink.target)
    client.delete(f"{prefix}_ledger:dead_letters")
    check_stream(client, run.sink.target)
    assert run.apply(nulls(2, 0)) == Applied(2)
    assert (len(stored(client, prefix)), len(letters(client, prefix))) == (8, 2)


def test_the_offset_and_long_values(aside: NewRun, client: Any, prefix: str) -> None:
    """The source's offset where the frame has one; of a long value its beginning and length; in
    fail mode the offset names the row."""
    data = {
        "k": pa.array(["a", None], pa.string()),
        "offset": pa.array([41, 42], pa.int64()),
        "v": ["x", "y" * 100_000],
    }
    run = aside("hset")
    run.open(0)
    assert run.apply(data) == Applied(1)
    (letter,) = letters(client, prefix)
    assert letter["offset"] == "42"
    assert letter["row"]["v"] == {"cut": "y" * 1000, "length": 100_000}
    failing = aside("hset", dead_letter_limit=None, run_id="run-2")
    failing.open(0)
    refused = failing.apply(data, 1)
    assert isinstance(refused, Refused)
    assert "offset 42, column 'k'" in refused.what


def test_arguments_that_cannot_work_are_refused() -> None:
    """When the writer is built."""
    with pytest.raises(ConfigError, match="dead_letter_key belongs"):
        RedisWriter("redis://h", "{k}", "hset", dead_letter_key="x")
    with pytest.raises(ConfigError, match="more than one script can hold"):
        RedisWriter("redis://h", "{k}", "hset", on_bad_row="dead_letter", dead_letter_limit=20_000)


@pytest.mark.parametrize("kind", ["null", "other_type", "one_key"])
def test_letters_that_are_large_together_go_into_scripts_of_their_own(
    aside: NewRun, client: Any, prefix: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long rows, all bad but two: no script is larger than a chunk, unless one operation's letters
    are; each letter and each good row is there once."""
    monkeypatch.setattr(aside_module, "CHUNK_BYTES", 100_000)
    sizes: list[int] = []
    run_script = Script.run

    def measured(self: Script, count: int, parts: Any) -> Any:
        sizes.append(sum(map(len, parts)))
        return run_script(self, count, parts)

    monkeypatch.setattr(Script, "run", measured)
    bad, text = 40, "x" * 20_000
    for number in range(bad):
        client.set(f"{prefix}:{number}", "text")
    keys = {"null": [None] * bad, "other_type": list(range(bad)), "one_key": [1] * bad}[kind]
    data = pa.table(
        {
            "k": pa.array([*keys, 100, 101], pa.int64()),
            "n": list(range(bad + 2)),
            "t": [text] * (bad + 2),
        }
    )
    run = aside("hincrby", fields=["n"])
    run.open(0)
    assert run.apply(rows_of(data)) == Applied(bad)
    run.close()
    assert sorted(letter["row"]["n"] for letter in letters(client, prefix)) == list(range(bad))
    assert [client.hget(f"{prefix}:{key}", "n") for key in (100, 101)] == [b"40", b"41"]
    assert max(sizes) < 130_000 or kind == "one_key"
