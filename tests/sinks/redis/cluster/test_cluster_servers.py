"""Slots that move, nodes that die and nodes that lose what they have said, in mid-batch."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_eoc.errors import ReplayMismatchError, SinkBehindError, SinkUnavailableError
from spark_eoc.sinks.entries import AlreadyApplied, Applied
from spark_eoc.sinks.ledger import Compare
from spark_eoc.sinks.redis.cluster import apply, flight
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.replicas import Replicas
from spark_eoc.sinks.store import Column
from spark_eoc.testing.proxy import Rules
from spark_eoc.testing.redis_cluster import ClusterNode, RedisCluster
from spark_eoc.testing.wait import until
from tests.sinks.redis.cluster.clusters import lose, slots, stored, wide
from tests.sinks.redis.driving import Run, error_of, redis_sink, totals

NewRun = Callable[..., Run]
COLUMNS = [Column("k", "bigint"), Column("n", "bigint")]
KEYS = 60


def _other(cluster: RedisCluster, node: ClusterNode) -> ClusterNode:
    return next(n for n in cluster.nodes if n is not node and n.ask("ROLE")[0] == b"master")


@pytest.mark.parametrize("first", ["nothing", "entry", "targets"])
def test_slots_on_the_move(
    new_run: NewRun,
    redis_cluster: RedisCluster,
    prefix: str,
    later: Callable[..., threading.Timer],
    first: str,
) -> None:
    """A task meets slots of which some keys have moved and some have not: the ledger's entry, the
    targets, or none. ASK and TRYAGAIN are followed or waited out, and nothing is written beside
    the entry: with the keys there already, with new ones, and when the repeat finds all applied."""
    data, run = wide(KEYS), new_run("{k}", "hincrby")
    keys = ClusterKeys.of(run.sink.target.ledger, run.writer_id)
    moving = slots(prefix, KEYS)[:4]
    run.batch(0, data)
    more = {"k": [*data["k"], *range(1000, 1040)], "n": [*data["n"], *[1] * 40]}
    for batch, rows in ((1, data), (2, more)):
        goals = {slot: _other(redis_cluster, redis_cluster.owner(slot)) for slot in moving}
        run.open(batch)
        for slot, goal in goals.items():
            redis_cluster.start_move(slot, goal)
            there = redis_cluster.owner(slot).ask("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            entry = keys.slot(slot).control.encode()
            if first == "entry":
                redis_cluster.move_keys(slot, goal, [entry])
            elif first == "targets":
                redis_cluster.move_keys(slot, goal, [key for key in there if key != entry])

        def end(goals: dict[int, ClusterNode] = goals) -> None:
            for slot, goal in goals.items():
                redis_cluster.move_keys(slot, goal)
                redis_cluster.end_move(slot, goal)

        ended = later(0.3, end)
        assert run.apply(rows) == Applied()
        assert run.apply(rows) == AlreadyApplied()
        run.close()
        ended.join()
        redis_cluster.settle()
    expected = totals({"k": data["k"] * 2 + more["k"], "n": data["n"] * 2 + more["n"]})
    assert stored(redis_cluster, prefix) == expected


def test_slots_that_have_moved_and_scripts_that_are_forgotten(
    new_run: NewRun, redis_cluster: RedisCluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5: before each flight a slot with its keys goes to another node, which has never seen the
    script, and another node forgets it."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 20)
    data, run, rng = wide(KEYS), new_run("{k}", "hincrby"), random.Random(3)
    fly = flight.fly
    movable = slots(prefix, KEYS)

    def after_a_move(*arguments: Any) -> Any:
        slot = rng.choice(movable)
        redis_cluster.move(slot, _other(redis_cluster, redis_cluster.owner(slot)))
        rng.choice(redis_cluster.nodes).ask("SCRIPT", "FLUSH")
        return fly(*arguments)

    monkeypatch.setattr(apply, "fly", after_a_move)
    monkeypatch.setattr(flight, "fly", after_a_move)
    for batch in range(3):
        run.batch(batch, data)
    redis_cluster.settle()
    assert stored(redis_cluster, prefix) == totals(data, 3)


def test_r1_answers_lost_on_the_way(
    redis_cluster: RedisCluster,
    new_run: NewRun,
    proxy_to: Callable[[int], Any],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R1: every node is reached through a proxy, which cuts a link after any number of bytes in
    either direction, in flights of chunks and in the steps of the driver: counters exact."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 20)
    proxies = [proxy_to(node.port) for node in redis_cluster.nodes]
    data, rng = wide(KEYS), random.Random(5)
    try:
        for node, proxy in zip(redis_cluster.nodes, proxies, strict=True):
            node.ask("CONFIG", "SET", "cluster-announce-port", proxy.port)
        until(lambda: _places(redis_cluster) == {proxy.port for proxy in proxies}, 20, "proxies")
        url = f"redis+cluster://127.0.0.1:{proxies[0].port}?socket_timeout=0.3"
        run = new_run("{k}", "hincrby", url=url)
        for batch in range(6):
            for proxy in proxies:
                if batch % 2:
                    rule = Rules(cut_to_server=rng.randrange(100, 20_000))
                else:
                    rule = Rules(cut_to_client=rng.randrange(0, 2000))
                proxy.set(rule, times=1 + batch % 3)
            run.open(batch)
            assert run.apply(data) in (Applied(), AlreadyApplied()), batch
            run.close()
            assert stored(redis_cluster, prefix) == totals(data, batch + 1), batch
        assert sum(proxy.fired for proxy in proxies) > 0
    finally:
        for node in redis_cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-announce-port", 0)
        until(
            lambda: _places(redis_cluster) == {node.port for node in redis_cluster.nodes},
            20,
            "ports",
        )


def _places(cluster: RedisCluster) -> set[int]:
    """Where the nodes say that the nodes are."""
    views = [node.ask("CLUSTER", "SLOTS") for node in cluster.nodes]
    return {row[2][1] for view in views for row in view}


@pytest.fixture
def own_run(own_redis_cluster: RedisCluster) -> Callable[..., Run]:
    def build(run_id: str = "run-1", **more: Any) -> Run:
        url = more.pop("url", own_redis_cluster.url())
        sink = redis_sink(url, "c:{k}", "hincrby", **more)
        return Run(sink, "w", run_id)

    return build


def test_nodes_killed_and_failed_over_in_mid_unit(
    own_redis_cluster: RedisCluster, own_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL and restart of a primary, a failover on request, and a replica that takes over from
    a killed primary, all between the flights of one unit: tasks wait, go on, and it is once."""
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 15)
    cluster, data, run = own_redis_cluster, wide(KEYS), own_run()
    run.sink.check(COLUMNS)
    fly, faults = flight.fly, iter((_restart, _hand_over, _kill_and_promote, lambda _: None))

    def after_a_fault(*arguments: Any) -> Any:
        next(faults, lambda _: None)(cluster)
        return fly(*arguments)

    for batch in range(2):
        run.open(batch)
        monkeypatch.setattr(apply, "fly", after_a_fault)
        assert run.apply(data) == Applied()
        assert run.apply(data) == AlreadyApplied()
        run.close()
        assert stored(cluster, "c") == totals(data, batch + 1)
    for node in cluster.nodes:
        assert node.running or not node.restart()


def _restart(cluster: RedisCluster) -> None:
    node = cluster.owner(0)
    node.kill()
    threading.Timer(0.3, node.restart).start()


def _hand_over(cluster: RedisCluster) -> None:
    cluster.settle()
    cluster.failover(cluster.replica_of(cluster.owner(6000)), "")


def _kill_and_promote(cluster: RedisCluster) -> None:
    primary = cluster.owner(16000)
    replica = cluster.replica_of(primary)
    _replicated(primary)
    primary.kill()
    cluster.failover(replica)


def _replicated(primary: ClusterNode) -> None:
    with primary.client() as client:
        plain: Any = client
        plain.execute_command("SET", f"{{{_tag(primary)}}}x", "1")
        assert plain.execute_command("WAIT", 1, 10_000) == 1


def _tag(node: ClusterNode) -> str:
    from spark_eoc.sinks.redis.cluster.slots import tag_of  # noqa: PLC0415

    first = next(row[0] for row in node.ask("CLUSTER", "SLOTS") if row[2][1] == node.port)
    return tag_of(first)


def test_a_failover_that_loses_acknowledged_writes(
    own_redis_cluster: RedisCluster, own_run: Callable[..., Run]
) -> None:
    """What a node lost of the open batch, fences and units alike, is written again, once. What it
    lost of a complete batch is refused by name, when that batch is repeated and by the next one,
    whatever slots that has."""
    cluster, data, run = own_redis_cluster, wide(KEYS), own_run()
    control = ClusterKeys.of("spark_eoc", "w").control_slot
    run.batch(0, data)

    def beside() -> ClusterNode:
        return _other(cluster, cluster.owner(control))

    # Its units.
    run.open(1)
    lost = lose(cluster, beside(), lambda: run.apply(data))
    with pytest.raises(ReplayMismatchError):
        run.close()
    cluster.revive()
    run.batch(1, data)
    assert stored(cluster, "c") == totals(data, 2)
    # The fence of a later call, and what was written under it.
    run.open(2)
    run.apply(data)
    again = own_run("run-2")
    lose(cluster, lost, lambda: again.open(2))
    assert again.apply(data) == AlreadyApplied()
    again.close()
    assert stored(cluster, "c") == totals(data, 3)
    cluster.revive()
    # A complete batch.
    lose(cluster, beside(), lambda: again.batch(3, data))
    with pytest.raises(SinkBehindError, match="went back to an older state"):
        own_run("repeat").open(3)
    with pytest.raises(SinkBehindError, match="went back to an older state"):
        again.open(4)
    with pytest.raises(SinkBehindError):
        own_run("run-3").open(4)


def test_a_control_entry_that_is_lost(
    own_redis_cluster: RedisCluster, own_run: Callable[..., Run]
) -> None:
    """The node of the control entry goes back by a batch, and tasks go on: all are refused."""
    cluster, data, run = own_redis_cluster, wide(KEYS), own_run()
    control = ClusterKeys.of("spark_eoc", "w").control_slot
    run.batch(0, data)

    def writes() -> None:
        run.batch(1, data)
        run.open(2)

    lose(cluster, cluster.owner(control), writes)
    assert error_of(run.apply(data)) == "SinkBehindError"
    with pytest.raises(SinkBehindError, match="batch 0 as the newest complete one"):
        own_run("run-2").open(2)
    # A checkpoint as old as the control entry: its slots show epochs that it does not know.
    old = own_run("run-3")
    with pytest.raises(SinkBehindError, match="does not know"):
        old.batch(1, data)
    assert run.sink.units("w", 0) == []


def test_replicas_of_every_node_are_waited_for(
    own_redis_cluster: RedisCluster, own_run: Callable[..., Run]
) -> None:
    """wait_replicas: one stopped replica of three refuses each step, also where all is applied;
    when it goes on, the repeat is exact."""
    cluster, data = own_redis_cluster, wide(KEYS)
    # Without the replicas: a stopped one may be asked for the others, and take its two seconds.
    url = ",".join(cluster.url().split(",")[:3])
    run = own_run(url=url, replicas=Replicas(1, 50), budget_s=0.2)
    # What must succeed is given time: a replica that goes on again may be a second behind.
    impatient, patient = run.sink, own_run(url=url, replicas=Replicas(1, 50), budget_s=60).sink
    replica = cluster.replica_of(cluster.owner(0))
    replica.stop_process()
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        run.sink.check(COLUMNS)
    replica.continue_()
    run.sink = patient
    run.open(0)
    replica.stop_process()
    run.sink = impatient
    for _ in range(2):
        assert error_of(run.apply(data)) == "SinkUnavailableError"
    replica.continue_()
    run.sink = patient
    run.apply(data)
    assert run.apply(data) == AlreadyApplied()
    replica.stop_process()
    run.sink = impatient
    with pytest.raises(SinkUnavailableError, match="wait_replicas=1"):
        run.close()
    replica.continue_()
    again = own_run("run-2", replicas=Replicas(1, 500), budget_s=20)
    if not isinstance(again.open(0), Compare):
        assert again.apply(data) == AlreadyApplied()
        again.close()
    again.batch(1, data)
    assert stored(cluster, "c") == totals(data, 2)


@pytest.mark.slow
def test_soak_of_moves_kills_and_failovers(
    own_redis_cluster: RedisCluster,
    own_run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    eoc_seed: int,
) -> None:
    """Thirty batches of a schedule from a printed seed; the multiset is exact after each."""
    print("seed", eoc_seed)
    rng, cluster, data = random.Random(eoc_seed), own_redis_cluster, wide(200)
    monkeypatch.setattr(flight, "FLIGHT_CALLS", 40)
    fly, movable = flight.fly, slots("c", 200)

    def move(_: RedisCluster) -> None:
        slot = rng.choice(movable)
        cluster.move(slot, _other(cluster, cluster.owner(slot)))

    faults = [_restart, _hand_over, _kill_and_promote, move, move, move]

    def after_a_fault(*arguments: Any) -> Any:
        if rng.random() < 0.15:
            for node in cluster.nodes:
                if not node.running:
                    node.restart()
            cluster.settle()
            rng.choice(faults)(cluster)
        return fly(*arguments)

    monkeypatch.setattr(apply, "fly", after_a_fault)
    run = own_run(replicas=Replicas(0), budget_s=60)
    for batch in range(30):
        run.open(batch)
        for _ in range(1 + rng.randrange(2)):
            assert not isinstance(run.apply(data), type(None))
        run.close()
        cluster.revive()
        assert stored(cluster, "c") == totals(data, batch + 1), batch
