"""A user's script under real kills: both sinks, one application, exactly once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.buffer import BufferOptions, LineBlock, LogWriter
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT
from spark_eoc.testing.clock import Clock
from spark_eoc.testing.kills import DAEMON_KILLS, USUAL_KILLS, Instants, Kill, KillSchedule
from spark_eoc.testing.rig import MYSQL, REDIS, Rig
from spark_eoc.testing.servers import MariaDB, Redis
from spark_eoc.testing.standalone import SparkMaster
from spark_eoc.testing.wait import until

#: Takeovers have tests of their own, see test_zombies.py.
KINDS = [kind for kind in USUAL_KILLS if kind is not Kill.TAKEOVER]


@pytest.mark.timeout(900)
def test_each_kind_of_kill_leaves_both_sinks_exactly_once(
    tmp_path: Path, mariadb_server: MariaDB, redis_server: Redis, eoc_seed: int
):
    """SIGKILL of driver Python, JVM, source runner, Python workers, MariaDB and Redis, while
    lines flow: nothing lost, nothing twice, ledger and rows agree (case S4 is the same script)."""
    schedule = KillSchedule(eoc_seed, count=len(KINDS), kinds=KINDS, instants=Instants(spread_s=1))
    rig = Rig(tmp_path, mariadb=mariadb_server, redis=redis_server)
    with rig, rig.supervise() as supervisor:
        supervisor.carry_out(schedule)
        verdicts = rig.settle(supervisor)
    for sink, verdict in verdicts.items():
        verdict.require_clean(f"{sink}, --eoc-seed={eoc_seed}")
    assert Counter(strike.kind for strike in supervisor.strikes) == Counter(KINDS)


@pytest.mark.timeout(900)
def test_kills_of_receiver_and_producer_while_the_clock_jumps(
    tmp_path: Path, own_server: Callable[..., Any], eoc_clock: Clock, eoc_seed: int
):
    """`spark-eoc receive` and a producer as processes of their own, each killed, and the query that
    follows the buffer too, all of them and both servers by a clock that is put off by hours, either
    way: from the first announcement to the sinks nothing lost, nothing twice."""
    mariadb, redis = (own_server(name, env=eoc_clock.environment) for name in ("mariadb", "redis"))
    kinds = [*DAEMON_KILLS, Kill.PYTHON_WORKER, Kill.CLOCK, Kill.CLOCK, Kill.CLOCK]
    schedule = KillSchedule(
        eoc_seed, count=len(kinds), kinds=kinds, instants=Instants(spread_s=0.5)
    )
    rig = Rig(tmp_path / "rig", mariadb=mariadb, redis=redis, daemons=True, clock=eoc_clock)
    with rig, rig.supervise() as supervisor:
        supervisor.carry_out(schedule)
        verdicts = rig.settle(supervisor)
    for sink, verdict in verdicts.items():
        verdict.require_clean(f"{sink}, --eoc-seed={eoc_seed}")
    assert Counter(strike.kind for strike in supervisor.strikes) == Counter(kinds)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_random_kills_with_receiver_and_producer_beside_the_query(
    tmp_path: Path, own_server: Callable[..., Any], eoc_clock: Clock, eoc_seed: int
):
    """All kinds at random, both sinks: takeovers, networks, full servers and clocks too."""
    env = eoc_clock.environment
    kinds = (*USUAL_KILLS, *DAEMON_KILLS, Kill.NETWORK, Kill.FULL, Kill.CLOCK)
    rig = Rig(
        tmp_path / "rig",
        mariadb=own_server("mariadb", disk_mib=250, env=env),
        redis=own_server("redis", env=env),
        daemons=True,
        network=True,
        clock=eoc_clock,
    )
    with rig, rig.supervise() as supervisor:
        supervisor.carry_out(KillSchedule(eoc_seed, count=2 * len(kinds), kinds=kinds))
        verdicts = rig.settle(supervisor)
    for sink, verdict in verdicts.items():
        print(f"{sink}: {verdict}")
        verdict.require_clean(f"{sink}, --eoc-seed={eoc_seed}")
    print(f"--eoc-seed={eoc_seed}", Counter(strike.kind.value for strike in supervisor.strikes))


@pytest.mark.timeout(900)
@pytest.mark.compat
@pytest.mark.parametrize("sink", [MYSQL, REDIS])
def test_a_kill_within_batch_0_with_latest_loses_nothing(
    tmp_path: Path, mariadb_server: MariaDB, redis_server: Redis, sink: str
):
    """Spark doesn't store the initial offset and asks again on a restart within batch 0: with
    ``latest`` it would be another one, and every line in between would be lost."""
    server = {"mariadb": mariadb_server} if sink == MYSQL else {"redis": redis_server}
    rig = Rig(tmp_path, **server, options={"startingOffsets": "latest"}, starting_at=50)
    old = LogWriter.open(tmp_path / sink / "buffer", BufferOptions())
    old.append(LineBlock.from_lines([b"before %d" % n for n in range(50)]), receive_time_us=1)
    old.sync()
    old.close()
    (tmp_path / "fired").mkdir()
    point = "batch.after_open"
    environment = {ENVIRONMENT: f"{point}=kill", DIRECTORY: str(tmp_path / "fired")}
    with rig, rig.supervise(env=environment) as supervisor:
        supervisor.until((tmp_path / "fired" / f"{point}.fired").exists, timeout=200, what=point)
        supervisor.until(lambda: rig.progress() > 200, timeout=200, what="progress after the kill")
        verdicts = rig.settle(supervisor)
    verdicts[sink].require_clean()
    assert supervisor.starts == 2


#: The soak, in parts that each take under 20 minutes: (atomicity, number).
PARTS = [
    pytest.param(atomicity, number, id=f"{atomicity}-part{number}")
    for atomicity in ("partition", "batch")
    for number in range(1, 5)
]


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(("atomicity", "number"), PARTS)
def test_soak(
    tmp_path: Path,
    mariadb_server: MariaDB,
    redis_server: Redis,
    *,
    eoc_seed: int,
    eoc_kills: int,
    atomicity: str,
    number: int,
):
    """400 kills of all kinds and at random instants over 2 million rows, both sinks, both
    atomicities: takeovers by zombies and disturbed networks among them.

    Everything is compared after each ten; seed and counts are printed.
    """
    seed, kills = eoc_seed + number, max(1, eoc_kills // len(PARTS))
    print(f"\nsoak {atomicity} part {number} of 4: seed {seed}, {kills} kills")
    began = time.monotonic()
    strikes = list(KillSchedule(seed, count=kills, kinds=(*USUAL_KILLS, Kill.NETWORK)))
    rig = Rig(
        tmp_path,
        mariadb=mariadb_server,
        redis=redis_server,
        writers={sink: {"atomicity": atomicity} for sink in (MYSQL, REDIS)},
        options={"maxRowsPerTrigger": "10000"},
        per_second=600,
        network=True,
    )
    with rig, rig.supervise() as supervisor:
        for first in range(0, kills, 10):
            supervisor.carry_out(strikes[first : first + 10])
            verdicts = rig.settle(supervisor)
            for sink, verdict in verdicts.items():
                print(f"{len(supervisor.strikes)} kills, {sink}: {verdict}", flush=True)
                verdict.require_clean(f"--eoc-seed={eoc_seed}")
            rig.feed()
    counts = Counter(strike.kind.value for strike in supervisor.strikes)
    rows = sum(verdict.sizes["in_sink"] for verdict in verdicts.values())
    print(
        f"seed {seed}: {sum(counts.values())} kills {dict(sorted(counts.items()))}, {rows:,} rows"
    )
    print(f"{supervisor.starts} runs, {len(supervisor.missed)} instants without such a process")
    print(f"{time.monotonic() - began:.0f} s", flush=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_executors_are_killed_with_speculation_on(
    tmp_path: Path, mariadb_server: MariaDB, redis_server: Redis, eoc_seed: int
):
    """A cluster of two executors in processes of their own: their tasks are done again by others,
    and copies of slow ones run at the same time."""
    print(f"\n--eoc-seed={eoc_seed}")
    kinds = (Kill.EXECUTOR, Kill.EXECUTOR, Kill.PYTHON_WORKER, Kill.JVM)
    settings = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.speculation": "true",
        "spark.speculation.interval": "10ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.executor.memory": "1g",
    }
    rig = Rig(
        tmp_path,
        mariadb=mariadb_server,
        redis=redis_server,
        settings=settings,
        options={"maxRowsPerTrigger": "20000"},
        per_second=100,
    )
    with rig, rig.supervise() as supervisor:
        supervisor.carry_out(KillSchedule(eoc_seed, count=12, kinds=kinds))
        verdicts = rig.settle(supervisor)
    for sink, verdict in verdicts.items():
        verdict.require_clean(f"{sink}, --eoc-seed={eoc_seed}")
    counts = Counter(strike.kind for strike in supervisor.strikes)
    print(dict(counts))
    assert counts[Kill.EXECUTOR] >= 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_worker_of_a_standalone_cluster_is_killed(
    tmp_path: Path, mariadb_server: MariaDB, redis_server: Redis, eoc_seed: int
):
    """Master and two workers in processes of their own: a worker goes with its executors, comes
    back, and the tasks are done again."""
    print(f"\n--eoc-seed={eoc_seed}")
    with SparkMaster.start(tmp_path / "master") as master, ExitStack() as stack:
        workers = [stack.enter_context(master.worker()) for _ in range(2)]
        until(lambda: master.alive_workers == 2, 60, "two workers")
        settings = {"spark.master": master.url, "spark.executor.memory": "800m"}
        rig = Rig(
            tmp_path / "rig",
            mariadb=mariadb_server,
            redis=redis_server,
            settings=settings,
            options={"maxRowsPerTrigger": "20000"},
            per_second=100,
        )
        with rig, rig.supervise(more={Kill.SPARK_WORKER: workers[0]}) as supervisor:
            supervisor.carry_out(KillSchedule(eoc_seed, count=4, kinds=(Kill.SPARK_WORKER,)))
            verdicts = rig.settle(supervisor)
    for sink, verdict in verdicts.items():
        verdict.require_clean(f"{sink}, --eoc-seed={eoc_seed}")
    print(len(supervisor.strikes), "workers killed,", supervisor.starts, "starts")
    assert len(supervisor.strikes) == 4
