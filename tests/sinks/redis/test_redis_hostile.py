"""Hostile texts in every place of a Redis writer change their own row and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc import RedisWriter
from spark_eoc.errors import ConfigError
from spark_eoc.testing.local import LocalFrame, local_run
from tests.sinks.hostile import HOSTILE, rotated
from tests.sinks.redis.driving import content

TEXTS = pa.schema([("k", pa.string()), ("v", pa.string())])


def bystanders(client: Any) -> dict[bytes, Any]:
    """A key of every type that is nobody's; the server's whole content."""
    client.set("bystander", "s")
    client.hset("bystander:h", mapping={"a": "b"})
    client.rpush("bystander:l", "x", "y")
    client.zadd("bystander:z", {"m": 1})
    return content(client, "")


def write(url: str, frame: LocalFrame, **arguments: Any) -> None:
    """One batch, without Spark."""
    local_run(RedisWriter(url, **arguments), "query", "run")(frame, 0)  # type: ignore[arg-type]


#: What of the rows ``k, v`` is in Redis after each command, for keys ``row:{k}``.
COMMANDS: dict[str, tuple[dict[str, str], Callable[[str], Any]]] = {
    "set": ({"value": "v"}, lambda v: v.encode()),
    "hset": ({}, lambda v: {b"v": v.encode()}),
    "sadd": ({"value": "v"}, lambda v: {v.encode()}),
    "zadd": ({"member": "v", "score": "n"}, lambda v: [(v.encode(), 1.0)]),
    "zincrby": ({"member": "v", "score": "n"}, lambda v: [(v.encode(), 1.0)]),
    "rpush": ({"value": "v"}, lambda v: [v.encode()]),
    "xadd": ({}, lambda v: [{b"v": v.encode()}]),
}


@pytest.mark.parametrize("atomicity", ["partition", "batch"])
def test_hostile_keys_values_and_members(own_redis: Any, atomicity: str) -> None:
    """Every text as a key and as a value, with every command that takes texts."""
    client, url = own_redis.client(), own_redis.url()
    before = bystanders(client)
    for command, (more, stored) in COMMANDS.items():
        schema = TEXTS.append(pa.field("n", pa.int64())) if "score" in more else TEXTS
        rows = [{"k": k, "v": v, "n": 1} for k, v in zip(HOSTILE, rotated(7), strict=True)]
        frame = LocalFrame([rows[::2], rows[1::2]], schema)
        write(url, frame, key="row:{k}", command=command, atomicity=atomicity, ledger="led", **more)
        expected = {f"row:{row['k']}".encode(): (stored(row["v"]), 0) for row in rows}
        found = {key: value for key, value in content(client, "").items() if key[:4] != b"led:"}
        assert found == before | expected, command
        client.delete(*expected, *client.keys("led:*"))


@pytest.mark.parametrize(
    ("place", "atomicity"),
    [
        ("writer_id", "partition"),
        ("ledger", "batch"),
        ("literal", "partition"),
        ("field", "batch"),
        ("key column", "partition"),
    ],
)
def test_hostile_names(own_redis: Any, place: str, atomicity: str) -> None:
    """Each text as a name: it is one, or it is refused when the writer is built; never more."""
    client, url = own_redis.client(), own_redis.url()
    before = bystanders(client)
    worked = 0
    for text in HOSTILE:
        names = {"k": "k", "v": "v", "ledger": "led", "literal": "row:"}
        names |= {"k": text} if place == "key column" else {"v": text} if place == "field" else {}
        names |= {place: text} if place in {"ledger", "literal"} else {}
        literal = names["literal"].replace("{", "{{").replace("}", "}}")
        row = {names["k"]: "key", names["v"]: "value"}
        frame = LocalFrame([[row]], pa.schema([(name, pa.string()) for name in row]))
        arguments: dict[str, Any] = {"command": "hset", "atomicity": atomicity}
        arguments |= {"ledger": names["ledger"], "key": literal + "{" + names["k"] + "}"}
        arguments |= {"writer_id": text} if place == "writer_id" else {}
        try:
            write(url, frame, **arguments)
        except ConfigError:
            assert content(client, "") == before, text
            continue
        worked += 1
        found, start = content(client, ""), names["ledger"].encode() + b":"
        assert sum(key.startswith(start) for key in found) >= 2
        own = {(names["literal"] + "key").encode(): ({names["v"].encode(): b"value"}, 0)}
        assert {k: v for k, v in found.items() if not k.startswith(start)} == before | own, text
        client.delete(*(key for key in found if key not in before))
    assert worked == len(HOSTILE) if place in {"writer_id", "literal", "field"} else worked > 15
