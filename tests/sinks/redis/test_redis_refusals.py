"""Rows and keys that can't be written: refused before anything is, with a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_eoc.errors import (
    ConfigError,
)
from spark_eoc.sinks.entries import Applied
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.keys import LedgerKeys
from tests.sinks.redis.driving import (
    Run,
    counters,
    error_of,
    ledger_keys,
    redis_sink,
    stored,
)

NewRun = Callable[..., Run]


def test_r2_one_key_of_the_wrong_type(new_run: NewRun, client: Any, prefix: str) -> None:
    """R2: no key of the unit and no ledger entry appears, and the message names the key."""
    data = counters()
    for command, more in (
        ("hset", {}),
        ("hincrby", {}),
        ("incrby", {"value": "n"}),
        ("incrbyfloat", {"value": "n"}),
        ("sadd", {"value": "n"}),
        ("rpush", {"value": "n"}),
        ("zadd", {"member": "k", "score": "n"}),
        ("zincrby", {"member": "k", "score": "n"}),
        ("xadd", {}),
    ):
        stranger = f"{prefix}:{command}:10"
        client.set(stranger, "text") if command[:4] != "incr" else client.hset(stranger, "f", 1)
        before = client.dump(stranger)
        run = new_run(command + ":{k}", command, **more)
        run.open(0)
        ledger = {key: client.dump(key) for key in ledger_keys(client, prefix)}
        refused = run.apply(data)
        assert error_of(refused) == "BadRowError", command
        assert stranger in refused.what
        assert list(client.scan_iter(f"{prefix}:{command}:*")) == [stranger.encode()]
        assert client.dump(stranger) == before
        assert {key: client.dump(key) for key in ledger_keys(client, prefix)} == ledger
        client.delete(stranger)
        assert run.apply(data) == Applied()


@pytest.mark.parametrize(
    "value",
    [
        *("x", "", "1.5", " 1", "1 ", "+1", "01", "-0", "0x10", "1\n", "1\x00", "1e3"),
        *(str(2**62), str(-(2**62)), str(2**63 - 1), "9" * 30),
    ],
)
def test_a_present_value_that_is_no_counter(
    new_run: NewRun, client: Any, prefix: str, value: str
) -> None:
    """INCRBY's refusal would come in the middle of a chunk: checked before the first write."""
    for command, more in (("incrby", {"value": "n"}), ("hincrby", {})):
        key = f"{prefix}:{command}:10"
        if command == "incrby":
            client.set(key, value)
        else:
            client.hset(key, "n", value)
        run = new_run(command + ":{k}", command, **more)
        run.open(0)
        assert error_of(run.apply(counters())) == "BadRowError"
        assert list(client.scan_iter(f"{prefix}:{command}:*")) == [key.encode()]


@pytest.mark.parametrize("value", ["0", "-1", "7", str(2**62 - 1), str(1 - 2**62)])
def test_a_present_value_that_is_a_counter(
    new_run: NewRun, client: Any, prefix: str, value: str
) -> None:
    """Up to 2^62 - 1 on both sides, so that no sum leaves 64 bits."""
    for number in (2**62 - 1, 1 - 2**62):
        client.set(f"{prefix}:{number}:1", value)
        run = new_run(f"{number}:{{k}}", "incrby", value="n")
        run.batch(0, {"k": [1], "n": [number]})
        assert int(client.get(f"{prefix}:{number}:1")) == int(value) + number


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"k": ["a", None], "n": [1, 2]}, "NULL"),
        ({"k": ["a", ""], "n": [1, 2]}, "empty"),
        ({"k": ["a", "b"], "n": [1, None]}, "NULL"),
        ({"k": ["a", "b"], "n": [1, 2**62]}, "2^62"),
        ({"k": ["a", "b"], "n": [1, -(2**63)]}, "2^62"),
        ({"k": ["a", "b", "b"], "n": [1, 2**61, 2**61]}, "the sum of its key's rows"),
        ({"k": ["a", "b"], "n": [1, 2], "t": [1, 0]}, "TTL"),
        ({"k": ["a", "b"], "n": [1, 2], "t": [1, 10**10 + 1]}, "TTL"),
        ({"k": ["a", "b"], "n": [1, 2], "t": [1, None]}, "TTL"),
    ],
)
def test_r6_bad_rows_write_nothing(
    new_run: NewRun, client: Any, prefix: str, data: dict[str, Any], reason: str
) -> None:
    """R6: NULL and empty keys, NULL numbers, numbers and TTLs out of range: nothing written, also
    when every other row has a chunk of its own."""
    run = new_run("{k}", "hincrby", ttl="t" if "t" in data else None, chunk_rows=1)
    run.open(0)
    refused = run.apply(data)
    assert error_of(refused) == "BadRowError"
    assert reason in refused.what
    assert stored(client, prefix) == {}


def test_keys_under_the_ledgers_prefix_are_bad_rows(redis_server: Any, prefix: str) -> None:
    """No row may touch the ledger, whatever its key column holds."""
    sink = redis_sink(redis_server.url(), "{k}", "set", value="v", ledger=prefix)
    run = Run(sink, prefix)
    run.open(0)
    refused = run.apply({"k": [f"{prefix}x", f"{prefix}:boo"], "v": [1, 2]})
    assert error_of(refused) == "BadRowError"
    assert not redis_server.client().exists(f"{prefix}x")
    with pytest.raises(ConfigError):
        redis_sink(redis_server.url(), prefix + ":{k}", "set", value="v", ledger=prefix)


def test_keys_of_another_ledger_are_bad_rows(redis_server: Any, client: Any, prefix: str) -> None:
    """Whatever its prefix, and of a cluster's too; a hash tag alone is nobody's."""
    other = LedgerKeys.of(f"{prefix}_other", "w")
    slot = ClusterKeys.of("x", "w").slot(7)
    run = Run(redis_sink(redis_server.url(), "{k}", "set", value="v", ledger=prefix), "w")
    run.open(0)
    for key in (*other.__dict__.values(), other.staged("ab"), slot.control, slot.waited):
        refused = run.apply({"k": ["{tag}:x", key], "v": [1, 2]})
        assert "one of a ledger" in refused.what, key
        assert not client.exists(key)
    names = [f"{prefix}_t:{{tag}}:x", f"{prefix}_t:{{{'0' * 63}}}:control", other.control[:-8]]
    assert run.apply({"k": names, "v": [1, 2, 3]}) == Applied()
