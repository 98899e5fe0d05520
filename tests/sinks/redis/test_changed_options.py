"""Options that change while a batch is partly applied, on one Redis and on a Cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from spark_eoc.errors import ReplayMismatchError
from spark_eoc.failpoints import FailpointError
from spark_eoc.sinks.entries import AlreadyApplied, Applied, Control
from spark_eoc.sinks.ledger import Open
from spark_eoc.sinks.redis.cluster import apply
from spark_eoc.sinks.redis.cluster.ledger import ClusterLedger
from spark_eoc.sinks.redis.cluster.slots import SLOTS, slot_of
from spark_eoc.sinks.redis.writer import RedisWriter
from spark_eoc.testing.redis_cluster import RedisCluster
from tests.sinks.changed_options import Query, parts
from tests.sinks.redis.cluster.clusters import stored
from tests.sinks.redis.driving import Run, content, counters, redis_sink, totals

HSET: dict[str, Any] = {"command": "hset", "fields": ["n"]}
ASIDE = {**HSET, "on_bad_row": "dead_letter"}
ZADD = {"command": "zadd", "member": "n", "score": "s"}

#: What is changed, the options of the run that began the batch, those that change.
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("target", HSET, {"key": "{s}"}),
    ("command", HSET, {"command": "hincrby"}),
    ("fields", HSET, {"fields": ["n", "s"]}),
    ("fields", {"command": "xadd", "fields": ["n", "s"]}, {"fields": ["s", "n"]}),
    ("value", {"command": "rpush", "value": "n"}, {"value": "s"}),
    ("member", ZADD, {"member": "s", "score": "n"}),
    ("score", ZADD, {"score": "f"}),
    ("ttl", HSET, {"ttl": 5000}),
    ("ttl", {**HSET, "ttl": 50}, {"ttl": "s"}),
    ("on_null", HSET, {"on_null": "keep"}),
    ("on_null", {**ASIDE, "on_null": "fail"}, {"on_null": "remove"}),
    ("dead_letter_key", ASIDE, {"dead_letter_key": "elsewhere"}),
]
#: Options that change nothing of what a row does, in the same form.
ALIKE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({**HSET, "fields": ["n", "s"]}, {"fields": ["s", "n"]}),
    (HSET, {"chunk_rows": 1, "retry_minutes": 1, "wait_timeout_ms": 50}),
    (HSET, {"on_null": "fail"}),
    ({**HSET, "on_null": "fail"}, {"on_null": "keep"}),
    (HSET, {"on_bad_row": "dead_letter"}),
    (ASIDE, {"on_bad_row": "fail"}),
    (ASIDE, {"dead_letter_limit": 5}),
]
ON_CLUSTER = [CHANGES[1], CHANGES[7]]


@pytest.fixture
def query(redis_server: Any, prefix: str) -> Callable[..., Query]:
    """``query(name)``: a query on the keys ``<prefix>:<name>:…``."""
    return _queries(redis_server.url(), prefix)


def _queries(url: str, prefix: str) -> Callable[..., Query]:
    def build(name: str = "t", **more: Any) -> Query:
        def writer(key: str = "{k}", **options: Any) -> RedisWriter:
            own = {"ledger": f"{prefix}_{name}", "writer_id": "w", "chunk_rows": 4}
            return RedisWriter(url, f"{prefix}:{name}:{key}", **{**own, **options})

        return Query(writer, **more)

    return build


@pytest.mark.parametrize(("name", "begun", "changes"), CHANGES)
def test_other_options_in_mid_batch_are_refused(  # noqa: PLR0917
    query: Callable[..., Query],
    client: Any,
    prefix: str,
    name: str,
    begun: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """Nothing is written by them; put back, they complete the batch exactly once."""
    query("x").call(**begun)
    wanted, run = content(client, f"{prefix}:x:"), query()
    run.dies(2, **begun)
    half = content(client, f"{prefix}:t:")
    assert 0 < len(half) < len(wanted)
    for _ in range(2):
        run.is_refused(name, **{**begun, **changes})
        assert content(client, f"{prefix}:t:") == half
    run.call(**begun)
    assert content(client, f"{prefix}:t:") == wanted
    run.call(**{**begun, **changes})  # a complete batch is compared, and not written
    assert content(client, f"{prefix}:t:") == wanted


@pytest.mark.parametrize(("begun", "changes"), ALIKE)
def test_options_that_change_nothing_of_a_row_may_change(
    query: Callable[..., Query],
    client: Any,
    prefix: str,
    begun: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """As do those that only decide whether a row fails: no such row was written."""
    query("x").call(**begun)
    run = query()
    run.dies(2, **begun)
    run.call(**{**begun, **changes})
    assert content(client, f"{prefix}:t:") == content(client, f"{prefix}:x:")


@pytest.mark.parametrize("how", ["nothing", "staged", "whole"])
def test_options_hold_at_once_where_nothing_is_applied(
    query: Callable[..., Query], client: Any, prefix: str, how: str
) -> None:
    """What was staged for a whole batch is never published by another run."""
    changed = {**HSET, "fields": ["s"]}
    query("x").call(**changed)
    atomicity = {} if how == "nothing" else {"atomicity": "batch"}
    run = query()
    run.dies(0 if how == "nothing" else 2, **HSET, **atomicity)
    run.call(**changed, **(atomicity if how == "whole" else {}))
    assert content(client, f"{prefix}:t:") == content(client, f"{prefix}:x:")


def test_a_ledger_that_knows_no_options_lets_every_run_go_on(
    query: Callable[..., Query], client: Any, prefix: str
) -> None:
    """Of before there were any; what is found then is kept."""
    run = query()
    run.dies(2, **HSET)
    (control,) = client.scan_iter(f"{prefix}_t:*:control")
    assert b'"command": "hset"' in client.hget(control, "split")
    client.hset(control, "split", '{"partitioning": "source"}')
    run.dies(2, **HSET, ttl=60)
    run.is_refused("ttl", **HSET)
    run.call(**HSET, ttl=60)


@pytest.mark.parametrize(("name", "begun", "changes"), ON_CLUSTER)
def test_other_options_in_mid_batch_are_refused_on_a_cluster(
    redis_cluster: RedisCluster,
    prefix: str,
    name: str,
    begun: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """In whatever slots the batch was begun."""
    run = _queries(redis_cluster.url(), prefix)()
    run.dies(1, **begun)
    half = _on_cluster(redis_cluster, prefix)
    for _ in range(2):
        run.is_refused(name, **{**begun, **changes})
        assert _on_cluster(redis_cluster, prefix) == half
    run.call(**begun)
    assert len(_on_cluster(redis_cluster, prefix)) == 18


def test_what_is_registered_in_a_cluster_is_not_applied_yet(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    """Every key is of another type than the command wants: nothing is written, so the command can
    be mended, and is kept from then on."""
    run, names = _queries(redis_cluster.url(), prefix)(), [f"{prefix}:t:{n}" for n in range(6)]
    run.partitions = [parts()[0][:6], parts()[1]]
    for name in names:
        redis_cluster.owner(slot_of(name.encode())).ask("SET", name, "x")
    run.dies(1, **HSET)
    run.dies(1, command="set", value="n")
    run.is_refused("command", **HSET)
    run.call(command="set", value="n")
    found = [redis_cluster.owner(slot_of(name.encode())).ask("GET", name) for name in names]
    assert found == [b"%d" % number for number in range(6)]


def test_a_straggler_that_writes_before_it_is_fenced_counts(
    redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call has registered and written nothing, so the next one, with other options, takes over;
    before its slots are fenced the old call's task goes on after all."""
    then, now = '{"options": {"ttl": 1}}', '{"options": {"ttl": 2}}'
    old, new, back = (_run(redis_cluster, prefix, name) for name in ("old", "new", "back"))
    data = counters(30, 9)
    old.open(0, split=then)
    with monkeypatch.context() as patch:
        patch.setattr(apply.ClusterUnitWriter, "_write", _fails)
        with pytest.raises(FailpointError):
            old.apply(data)
    fence = ClusterLedger.fence

    def late(self: ClusterLedger, control: Control) -> None:
        with monkeypatch.context() as patch:
            floors = dict.fromkeys(range(SLOTS), "0")
            patch.setattr(apply.ClusterUnitWriter, "_register", lambda *_: floors)
            assert old.apply(data) == Applied()
        fence(self, control)

    with monkeypatch.context() as patch:
        patch.setattr(ClusterLedger, "fence", late)
        with pytest.raises(ReplayMismatchError, match="ttl was 1, now 2"):
            new.open(0, split=now)
    with pytest.raises(ReplayMismatchError, match="ttl was 1, now 2"):
        _run(redis_cluster, prefix, "again").open(0, split=now)
    assert isinstance(back.open(0, split=then), Open)
    assert back.control.split == then
    assert back.apply(data) == AlreadyApplied()
    back.close()
    assert stored(redis_cluster, prefix) == totals(data)


@pytest.mark.parametrize("point", ["first", "second"])
def test_a_lost_answer_to_an_open_that_changes_options(
    redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Of either of its two stores: the new options hold, and are known to the ledger."""
    then, now = '{"options": {"ttl": 1}}', '{"options": {"ttl": 2}}'
    old, new = (_run(redis_cluster, prefix, name) for name in ("old", "new"))
    old.open(0, split=then)
    with monkeypatch.context() as patch:
        patch.setattr(apply.ClusterUnitWriter, "_write", _fails)
        with pytest.raises(FailpointError):
            old.apply(counters(30, 9))
    store, calls = ClusterLedger._store_on, list[bool]()

    def losing(*arguments: Any) -> bool:
        calls.append(store(*arguments))
        if len(calls) == (1 if point == "first" else 2):
            raise ConnectionError("Connection closed by server.")
        return calls[-1]

    with monkeypatch.context() as patch:
        patch.setattr(ClusterLedger, "_store_on", losing)
        decision = new.open(0, split=now)
    assert len(calls) >= 3
    assert isinstance(decision, Open)
    assert decision.control.split == now
    new.apply(counters(30, 9))
    with pytest.raises(ReplayMismatchError, match="ttl was 2, now 1"):
        _run(redis_cluster, prefix, "later").open(0, split=then)


def _fails(*_: Any) -> None:
    raise FailpointError("registered")


def _run(cluster: RedisCluster, prefix: str, name: str) -> Run:
    key = f"{prefix}:{{k}}"
    return Run(redis_sink(cluster.url(), key, "hincrby", ledger=f"{prefix}_ledger"), key, name)


def _on_cluster(cluster: RedisCluster, prefix: str) -> dict[bytes, Any]:
    return {key: node.ask("HGETALL", key) for key, node in cluster.keys(f"{prefix}:t:*")}
