"""The parts that need no server: templates, addresses, commands' arguments, the cutter, RESP."""

from __future__ import annotations

import pickle
import random
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.address import PASSWORD_ENVIRONMENT, RedisAddress
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.cut import Cutter
from spark_eoc.sinks.redis.operations import arrange, operations
from spark_eoc.sinks.redis.resp import bulk, bulks, command
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.redis.text import text_column
from spark_eoc.sinks.store import Column
from tests.sinks.redis.driving import redis_sink, rows_of

COLUMNS = [Column("k", "string"), Column("n", "bigint"), Column("x", "double")]


def rendered(text: str, **columns: Any) -> list[bytes | None]:
    """The keys of a one-off frame."""
    return KeyTemplate.parse(text).render(pa.table(columns)).to_pylist()


def test_one_column_is_used_as_it_is() -> None:
    """Bytes of the value are bytes of the key; doubled braces are literal."""
    assert rendered("u:{a}", a=["x:y%", "é", None]) == [b"u:x:y%", "u:é".encode(), None]
    assert rendered("u:{{{a}}}:n", a=[7]) == [b"u:{7}:n"]
    assert rendered("{a}", a=pa.array([b"\xff\x00"], pa.binary())) == [b"\xff\x00"]


def test_several_columns_never_meet_in_one_key() -> None:
    """Every pair of different values gives different keys, however they are made of separators."""
    pieces = ["", ":", "%", "%3A", "a", "a:", ":a", "::", "%25", "%253A"]
    values = [x + y for x in pieces for y in pieces]
    pairs = sorted({(a, b) for a in values for b in values})
    keys = rendered("p:{a}:{b}:t", a=[a for a, _ in pairs], b=[b for _, b in pairs])
    assert len(set(keys)) == len(pairs)
    assert rendered("{a}:{b}", a=["x:y"], b=["5%"]) == [b"x%3Ay:5%25"]


@pytest.mark.parametrize(
    "text",
    ["", "plain", "{}", "{a", "a}", "{a!r}", "{a:>3}", "{a}{b}", "{a}A{b}", "{a}%{b}", "{a}é{b}",
     "{a}:{a}"],
)  # fmt: skip
def test_templates_that_are_refused(text: str) -> None:
    """Without a column, with formats, or where two rows could meet."""
    with pytest.raises(ConfigError):
        KeyTemplate.parse(text)


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "mset"},
        {"command": "set"},
        {"command": "set", "value": "n", "fields": ["n"]},
        {"command": "hset", "value": "n"},
        {"command": "hset", "fields": []},
        {"command": "hset", "fields": ["n", "n"]},
        {"command": "hset", "fields": "n"},
        {"command": "hset", "on_null": "ignore"},
        {"command": "incrby", "value": "n", "on_null": "keep"},
        {"command": "zadd", "member": "k"},
        {"command": "zincrby", "member": "n", "score": "n"},
        {"command": "del", "ttl": 5},
        {"command": "hset", "ttl": 0},
        {"command": "hset", "ttl": 10**10 + 1},
        {"command": "hset", "ttl": True},
        {"command": "hset", "ttl": 1.5},
        {"command": "hset", "chunk_rows": 0},
        {"command": "hset", "ledger": ""},
    ],
)
def test_arguments_that_are_refused_when_the_writer_is_built(arguments: dict[str, Any]) -> None:
    """Each with the reason, before anything is started."""
    with pytest.raises(ConfigError):
        RedisWriter("redis://127.0.0.1", key="u:{k}", **arguments)


@pytest.mark.parametrize(
    ("arguments", "columns", "match"),
    [
        ({"name": "hset"}, [Column("k", "string")], "write nothing"),
        ({"name": "hincrby"}, [Column("k", "string")], "write nothing"),
        ({"name": "hset"}, [Column("n", "bigint")], "'k'"),
        ({"name": "set", "value": "gone"}, COLUMNS, "'gone'"),
        ({"name": "hset", "ttl": "gone"}, COLUMNS, "'gone'"),
        ({"name": "hset", "ttl": "x"}, COLUMNS, "whole"),
        ({"name": "hincrby"}, COLUMNS, "whole"),
        ({"name": "incrby", "value": "x"}, COLUMNS, "whole"),
        ({"name": "incrbyfloat", "value": "k"}, COLUMNS, "numbers"),
        ({"name": "hset"}, [Column("k", "string"), Column("i", "interval day")], "interval"),
        ({"name": "hset"}, [Column("k", "string"), Column("i", "geometry")], "geometry"),
        ({"name": "hset"}, [Column("k", "map<int,int>", json=True), Column("n", "int")], "nested"),
    ],
)
def test_frames_that_are_refused(
    arguments: dict[str, Any], columns: list[Column], match: str
) -> None:
    """R7: a key-only frame, missing columns, types without a text form: refused by name."""
    told = Command(key=KeyTemplate.parse("u:{k}"), **arguments)
    with pytest.raises(ConfigError, match=match):
        told.check_columns(columns)


def test_types_are_known_by_their_first_word() -> None:
    """Lengths, precisions and collations don't matter."""
    told = Command("hset", KeyTemplate.parse("u:{k}"))
    kinds = ["string collate UNICODE_CI", "varchar(5)", "decimal(38,18)", "timestamp_ntz"]
    told.check_columns([Column("k", kinds[0]), *(Column(kind, kind) for kind in kinds)])


@pytest.mark.parametrize("scale", [0, 6, 7, 18, 38])
def test_decimals_are_digits_never_an_exponent(scale: int, eoc_random: random.Random) -> None:
    """Arrow alone would write a zero of DECIMAL(38,18) as ``0E-18``; also in slices."""
    whole = [0, 1, -1, 10**scale // 7] + [eoc_random.randrange(-(10**38), 10**38) for _ in range(9)]
    with localcontext() as context:
        context.prec = 80
        values = [Decimal(number).scaleb(-scale) for number in whole]
    column = pa.array([None, *values], pa.decimal128(38, scale))
    expected = [None, *(format(value, "f").encode() for value in values)]
    assert text_column(column).to_pylist() == expected
    assert text_column(column.slice(2, 3)).to_pylist() == expected[2:5]


def test_a_large_partition_is_arranged_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of memory the arranged copy lies in a file, row for row the same."""
    told = Command("hset", KeyTemplate.parse("u:{k}"))
    rows = rows_of({"k": [i * 7919 % 1000 for i in range(5000)], "v": ["x" * 50] * 5000})
    expected = arrange(told, rows)
    monkeypatch.setattr("spark_eoc.sinks.rows.SPILL_BYTES", 50_000)
    arranged = arrange(told, rows)
    assert arranged.mapping is not None
    assert arranged.table.equals(expected.table)
    assert arranged.hashes.equals(expected.hashes)


@pytest.mark.parametrize(
    "url",
    [
        "redis://app:{}@127.0.0.1:1/0",
        "rediss://:{}@127.0.0.1:1/0?ssl_cert_reqs=none",
        "unix://app:{}@/nowhere?db=1",
        "redis://127.0.0.1:1?password={}",
        "http://app:{}@host",
        "redis://app:{}@host:port/0",
        "redis://app:{}@host/0?decode_responses=true",
    ],
)
def test_no_secret_anywhere(url: str) -> None:
    """Not in a repr, an exception or a pickle's text, whether the URL is right or wrong."""
    secret = "tr0ub4dor-secret"
    seen = ""
    try:
        writer = RedisWriter(url.format(secret), key="u:{k}", command="del", retry_minutes=0)
        copy = pickle.loads(pickle.dumps(writer))
        assert copy._sink.target.address.password.reveal() == secret
        seen = repr(writer) + str(vars(writer)) + repr(pickle.dumps(writer))
        copy._sink.units("w", 0)
    except Exception as error:  # noqa: BLE001
        seen += str(error) + repr(error) + repr(vars(error)) + repr(error.__cause__)
    assert seen
    assert secret not in seen


def test_where_a_password_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument first, then the URL (percent-decoded), then the environment."""
    monkeypatch.setenv(PASSWORD_ENVIRONMENT, "from-environment")
    found = [
        RedisAddress.parse("redis://u:a%40b@h"),
        RedisAddress.parse("redis://u:x@h", "argument"),
        RedisAddress.parse("redis://h"),
    ]
    revealed = [address.password.reveal() for address in found if address.password]
    assert revealed == ["a@b", "argument", "from-environment"]
    assert [address.url for address in found] == ["redis://u@h", "redis://u@h", "redis://h"]


def test_resp_of_columns() -> None:
    """Lengths are bytes; slices and long values are encoded from their own place."""
    values = [b"", b"a\r\n", "é".encode(), b"x" * 5000, b"$1\r\n"]
    column = pa.array(values, pa.binary())
    assert bytes(bulks(column)) == bulk(*values)
    assert bytes(bulks(column.slice(1, 2))) == bulk(*values[1:3])
    assert bytes(bulks(column.slice(5))) == b""
    assert command(b"PING", 1, [bulk(b"x")]) == b"*2\r\n$4\r\nPING\r\n$1\r\nx\r\n"


def test_chunks_end_at_a_keys_end_where_they_can(eoc_random: random.Random) -> None:
    """Chunks cover everything, respect both limits, and cut inside a key only if it is too big."""
    for _ in range(200):
        keys = sorted(eoc_random.choices("abcdefghij", k=eoc_random.randrange(1, 60)))
        sizes = [eoc_random.randrange(1, 30) for _ in keys]
        cutter = Cutter.of(pa.array(keys), pa.array(sizes), eoc_random.randrange(1, 12), 3)
        cutter = Cutter(cutter.size_sums, cutter.key_ends, cutter.chunk_rows, 60)
        start = 0
        while start < len(keys):
            end = cutter.end(start)
            assert start < end <= len(keys)
            assert end - start <= cutter.chunk_rows
            assert end == start + 1 or sum(sizes[start:end]) <= 60
            if end < len(keys) and keys[end - 1] == keys[end]:
                assert keys[start] == keys[end], "cut inside a key that began in this chunk"
            start = end


@pytest.mark.parametrize(
    "told", [{"name": "hincrby"}, {"name": "zincrby", "member": "m", "score": "n"}]
)
def test_sums_cover_rows_in_their_order(told: dict[str, str], eoc_random: random.Random) -> None:
    """Operation i covers exactly the rows up to ``rows_before(i + 1)``, for hundreds of hashes:
    Arrow gives groups in no fixed order, and a chunk that counts other rows than it adds loses."""
    for _ in range(100):
        keys = [f"{eoc_random.randrange(10**9)}" for _ in range(8)]
        data: dict[str, list[Any]] = {"k": [], "n": []}
        if "member" in told:
            data["m"] = eoc_random.choices("xyz", k=40)
        for _ in range(40):
            data["k"].append(eoc_random.choice(keys))
            data["n"].append(eoc_random.randrange(1000))
        command_ = Command(key=KeyTemplate.parse("u:{k}"), **told)
        rows = arrange(command_, rows_of(data))
        ops = operations(command_, rows)
        table = rows.table.to_pydict()
        column = ops.columns[list(ops.names).index("n")].to_pylist()
        for i in range(len(ops)):
            first, last = ops.rows_before(i), ops.rows_before(i + 1)
            assert {f"u:{k}".encode() for k in table["k"][first:last]} == {ops.keys[i].as_py()}
            assert sum(table["n"][first:last]) == column[i]


def test_a_writer_travels_by_pickle() -> None:
    """The sink is the same on the other side."""
    sink = redis_sink("redis://u:p@h:1/2?socket_timeout=3", "u:{k}", "hset", ttl=5)
    copy = pickle.loads(pickle.dumps(sink))
    assert repr(copy) == repr(sink)
    assert copy.target.address.password.reveal() == "p"
