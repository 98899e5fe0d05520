"""Every command writes what it says, whatever the values hold."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Refused
from spark_eoc.sinks.store import Column
from tests.sinks.redis.driving import rows_of


@pytest.fixture(params=["redis", "redis6", "redis8", "valkey"])
def redis_server(request: pytest.FixtureRequest, server_named: Callable[[str], Any]) -> Any:
    """Each server of the matrix in turn."""
    return server_named(request.param)


#: Values that would break a careless encoder: RESP, Lua, format codes, binary, nothing.
NASTY = [
    b"",
    b"\r\n",
    b"$3\r\nfoo\r\n",
    b"*1\r\n$8\r\nFLUSHALL\r\n",
    b"a\x00b",
    b"\xff\xfe\x80",
    b"]] return redis.call('FLUSHALL') --",
    b"%s {x} %d",
    "✓ é 😀".encode(),
    b"0",
    b"-5",
    b"x" * 5000,
]


def test_set_round_trips_every_byte(new_run: Callable[..., Any], client: Any, prefix: str) -> None:
    """SET stores exactly the column's bytes."""
    run = new_run("{k}", "set", value="v")
    table = pa.table({"k": list(range(len(NASTY))), "v": pa.array(NASTY, pa.binary())})
    assert run.batch(0, rows_of(table)) == [Applied()]
    assert [client.get(f"{prefix}:{k}") for k in range(len(NASTY))] == NASTY


def test_hset_round_trips_every_byte_in_values_keys_and_field_names(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """Keys, field names and values are data, whatever they hold."""
    run = new_run("{k}", "hset")
    names = ["k", "a\r\nb", "return 1", "{x}", "é"]
    keys = [value for value in NASTY if value]
    columns = [pa.array(keys, pa.binary())] + [pa.array(NASTY[: len(keys)], pa.binary())] * 4
    assert run.batch(0, rows_of(pa.table(dict(zip(names, columns, strict=True))))) == [Applied()]
    for key, value in zip(keys, NASTY, strict=False):
        expected = {name.encode(): value for name in names[1:]}
        assert client.hgetall(prefix.encode() + b":" + key) == expected


def test_incrby_and_hincrby_sum_rows_of_one_key(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """Rows of one key add up, over chunks, partitions and batches."""
    keys = ["a", "b", "a", "c", "a"] * 100
    by_one = new_run("n:{k}", "incrby", value="n", chunk_rows=2)
    fields = new_run("h:{k}", "hincrby", chunk_rows=2)
    for batch in range(3):
        data = {"k": keys, "n": [1, -2, 3, 0, 5] * 100}
        assert by_one.batch(batch, data, data) == [Applied(), Applied()]
        assert fields.batch(batch, {**data, "m": [1] * 500}) == [Applied()]
    assert [int(client.get(f"{prefix}:n:{k}")) for k in "abc"] == [9 * 600, -2 * 600, 0]
    assert client.hgetall(f"{prefix}:h:a") == {b"n": b"2700", b"m": b"900"}


def test_whole_numbers_beyond_2_53_stay_exact(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """A Lua number never holds a counter: 2^53 + 1 and sums of it survive."""
    big = 2**53 + 1
    run = new_run("{k}", "incrby", value="n")
    run.batch(0, {"k": ["a", "a", "b"], "n": [big, 2, -(2**61) - 1]})
    run.batch(1, {"k": ["a", "b"], "n": [big, -1]})
    assert int(client.get(f"{prefix}:a")) == 2 * big + 2
    assert int(client.get(f"{prefix}:b")) == -(2**61) - 2
    decimals = pa.array([Decimal(2**61), Decimal(1)], pa.decimal128(20, 0))
    run.batch(2, rows_of(pa.table({"k": ["c", "c"], "n": decimals})))
    assert int(client.get(f"{prefix}:c")) == 2**61 + 1


def test_lists_keep_the_order_of_a_partition(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """RPUSH appends rows of one key in the order in which they came."""
    run = new_run("{k}", "rpush", value="v", chunk_rows=7)
    data = {"k": [i % 3 for i in range(100)], "v": list(range(100))}
    run.batch(0, data)
    run.batch(1, data)
    found = [int(v) for v in client.lrange(f"{prefix}:1", 0, -1)]
    assert found == [i for i in range(100) if i % 3 == 1] * 2


def test_the_last_row_of_a_key_wins(new_run: Callable[..., Any], client: Any, prefix: str) -> None:
    """SET and HSET leave the value that came last in the partition."""
    run = new_run("{k}", "set", value="v")
    run.batch(0, {"k": [1, 2, 1], "v": ["first", "x", "last"]})
    assert client.get(f"{prefix}:1") == b"last"


def test_sets_and_sorted_sets_and_streams(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """SADD, ZADD, ZINCRBY and XADD each do what their name says."""
    new_run("s:{k}", "sadd", value="v").batch(0, {"k": [1, 1, 1], "v": ["a", "b", "a"]})
    assert client.smembers(f"{prefix}:s:1") == {b"a", b"b"}
    data = {"k": [1, 1, 1], "m": ["a", "b", "a"], "s": [1.5, 2.0, 1e20]}
    new_run("z:{k}", "zadd", member="m", score="s").batch(0, data)
    assert client.zscore(f"{prefix}:z:1", "a") == 1e20
    more = new_run("zi:{k}", "zincrby", member="m", score="s")
    small = {**data, "s": [1, 2, 3]}
    more.batch(0, small)
    more.batch(1, small)
    assert client.zrange(f"{prefix}:zi:1", 0, -1, withscores=True) == [(b"b", 4.0), (b"a", 8.0)]
    nulls = {"k": [1, 1], "a": ["x", None], "b": ["y", "z"]}
    new_run("x:{k}", "xadd").batch(0, nulls)
    entries = [fields for _, fields in client.xrange(f"{prefix}:x:1")]
    assert entries == [{b"a": b"x", b"b": b"y"}, {b"b": b"z"}]


def test_incrbyfloat_adds(
    new_run: Callable[..., Any], client: Any, redis_server: Any, prefix: str
) -> None:
    """INCRBYFLOAT, but for Redis 6.2, which crashes some time after the first in a script."""
    run = new_run("f:{k}", "incrbyfloat", value="v")
    if redis_server.name == "redis6":
        with pytest.raises(ConfigError, match="crashes"):
            run.sink.check([Column("k", "bigint"), Column("v", "double")])
        return
    run.batch(0, {"k": [1, 1], "v": [0.25, 1.5]})
    assert client.get(f"{prefix}:f:1") == b"1.75"


def test_del_removes_whatever_is_there(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """DEL takes keys of every type, and keys that are not there."""
    client.set(f"{prefix}:a", 1)
    client.hset(f"{prefix}:b", "f", 1)
    assert new_run("{k}", "del").batch(0, {"k": ["a", "b", "c", "a"]}) == [Applied()]
    assert not client.exists(f"{prefix}:a", f"{prefix}:b", f"{prefix}:c")


@pytest.mark.parametrize("command", ["set", "hset", "incrby", "hincrby", "sadd", "rpush"])
def test_ttl_fixed_and_from_a_column(
    new_run: Callable[..., Any], client: Any, prefix: str, command: str
) -> None:
    """Each key gets the TTL; the ledger's keys never do."""
    more = {} if command in ("hset", "hincrby") else {"value": "v"}
    data = {"k": ["a", "b"], "v": [1, 2]}
    new_run("f:{k}", command, ttl=1000, **more).batch(0, data)
    new_run("c:{k}", command, ttl="t", **more).batch(0, {**data, "t": [50, 5000]})
    assert 900 < client.ttl(f"{prefix}:f:a") <= 1000
    assert client.ttl(f"{prefix}:c:a") <= 50
    assert client.ttl(f"{prefix}:c:b") > 4000
    assert {client.ttl(key) for key in client.scan_iter(f"{prefix}_ledger:*")} == {-1}


def test_r7_null_columns_and_fields(new_run: Callable[..., Any], client: Any, prefix: str) -> None:
    """R7: an all-NULL column is no obstacle, and a value replaced by NULL removes its field."""
    run = new_run("{k}", "hset")
    run.batch(0, {"k": [1, 2], "a": ["x", "y"], "b": pa.array([None, None], pa.string())})
    assert client.hgetall(f"{prefix}:1") == {b"a": b"x"}
    run.batch(1, {"k": [1, 2], "a": [None, "z"], "b": ["q", None]})
    assert client.hgetall(f"{prefix}:1") == {b"b": b"q"}
    assert client.hgetall(f"{prefix}:2") == {b"a": b"z"}
    kept = new_run("kept:{k}", "hset", on_null="keep")
    kept.batch(0, {"k": [1], "a": ["x"], "b": ["y"]})
    kept.batch(1, {"k": [1], "a": pa.array([None], pa.string()), "b": ["z"]})
    assert client.hgetall(f"{prefix}:kept:1") == {b"a": b"x", b"b": b"z"}
    strict = new_run("strict:{k}", "hset", on_null="fail")
    strict.open(0)
    refused = strict.apply({"k": [1], "a": pa.array([None], pa.string())})
    assert isinstance(refused, Refused)
    assert "NULL" in refused.what


@pytest.mark.parametrize("redis_server", ["redis"], indirect=True)
def test_r4_many_rows_and_many_fields(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """R4: 20,000 rows in one partition, and rows of 9,000 fields, with and without NULLs."""
    run = new_run("{k}", "hset")
    assert run.batch(0, {"k": list(range(20_000)), "v": list(range(20_000))}) == [Applied()]
    assert client.hget(f"{prefix}:19999", "v") == b"19999"
    for command in ("hset", "hincrby"):
        wide = {f"f{i}": [i, i + 1] for i in range(9000)}
        wide["f7"] = [7, 8 if command == "hincrby" else None]
        run = new_run(command + ":{k}", command)
        assert run.batch(0, {"k": [1, 2], **wide}) == [Applied()]
        assert client.hget(f"{prefix}:{command}:2", "f8999") == b"9000"
        assert client.hlen(f"{prefix}:{command}:1") == 9000


@pytest.mark.parametrize("redis_server", ["redis"], indirect=True)
def test_a_value_of_17_megabytes(new_run: Callable[..., Any], client: Any, prefix: str) -> None:
    """One row may be larger than a chunk; it then goes alone, and the chunks around it too."""
    values = [b"a", b"x" * 17_000_000, b"b", b"y" * 9_000_000]
    run = new_run("{k}", "set", value="v")
    table = pa.table({"k": [1, 2, 3, 4], "v": pa.array(values, pa.binary())})
    assert run.batch(0, rows_of(table)) == [Applied()]
    assert [client.get(f"{prefix}:{k}") for k in (1, 2, 3, 4)] == values


@pytest.mark.parametrize("value", ["1e-5000", "0" * 6000])
@pytest.mark.parametrize("redis_server", ["redis"], indirect=True)
def test_a_present_number_that_only_lua_takes_is_refused_before_anything_is_written(
    new_run: Callable[..., Any], client: Any, prefix: str, value: str
) -> None:
    """Redis refuses it in the middle of the script, where nothing is rolled back."""
    run = new_run("c:{k}", "incrbyfloat", value="n")
    client.set(f"{prefix}:c:1", value)
    run.open(0)
    outcome = run.apply({"k": [0, 1], "n": [1.5, 2.5]})
    assert isinstance(outcome, Refused)
    assert outcome.error == "BadRowError"
    assert client.get(f"{prefix}:c:0") is None


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("set", {"value": "v"}),
        ("hset", {}),
        ("incrby", {"value": "v"}),
        ("incrbyfloat", {"value": "v"}),
        ("hincrby", {}),
        ("sadd", {"value": "v"}),
        ("zadd", {"member": "w", "score": "v"}),
        ("zincrby", {"member": "w", "score": "v"}),
        ("rpush", {"value": "v"}),
        ("xadd", {}),
        ("del", {}),
    ],
)
def test_a_unit_applied_twice_is_applied_once(  # noqa: PLR0917
    new_run: Callable[..., Any],
    client: Any,
    redis_server: Any,
    prefix: str,
    command: str,
    more: dict[str, str],
) -> None:
    """For every command: the same unit again is AlreadyApplied and changes no key."""
    if (redis_server.name, command) == ("redis6", "incrbyfloat"):
        return  # refused
    run = new_run("{k}", command, chunk_rows=3, **more)
    data = {"k": list("abcab"), "v": [1, 2, 3, 4, 5], "w": [10, 20, 30, 40, 50]}
    run.open(0)
    assert run.apply(data) == Applied()
    before = {key: client.dump(key) for key in client.scan_iter(f"{prefix}*")}
    assert run.apply(data) == AlreadyApplied()
    assert {key: client.dump(key) for key in client.scan_iter(f"{prefix}*")} == before
    run.close()


def test_a_table_of_all_types_arrives_as_text(
    new_run: Callable[..., Any], client: Any, prefix: str
) -> None:
    """The text forms of the module's table."""
    instant = dt.datetime(2013, 1, 31, 23, 59, 59, 1)
    table = pa.table(
        {
            "k": [1],
            "i": pa.array([-5], pa.int8()),
            "f": pa.array([0.1], pa.float32()),
            "d": [1e20],
            "x": pa.array([Decimal("-12.50")], pa.decimal128(38, 2)),
            "b": [True],
            "y": [instant.date()],
            "t": pa.array([instant], pa.timestamp("us", "UTC")),
            "n": pa.array([instant], pa.timestamp("us")),
            "o": pa.array(["é"], pa.large_string()),
        }
    )
    new_run("{k}", "hset").batch(0, rows_of(table))
    assert client.hgetall(f"{prefix}:1") == {
        b"i": b"-5",
        b"f": b"0.1",
        b"d": b"1e+20",
        b"x": b"-12.50",
        b"b": b"true",
        b"y": b"2013-01-31",
        b"t": b"2013-01-31 23:59:59.000001Z",
        b"n": b"2013-01-31 23:59:59.000001",
        b"o": "é".encode(),
    }
