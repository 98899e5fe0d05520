"""A user's script under real kills: both sinks, one application, exactly once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from spark_eoc.buffer import BufferOptions, LineBlock, LogWriter
from spark_eoc.failpoints import DIRECTORY, ENVIRONMENT
from spark_eoc.testing.kills import Instants, Kill, KillSchedule
from spark_eoc.testing.rig import MYSQL, REDIS, Rig
from spark_eoc.testing.servers import MariaDB, Redis

#: Takeovers have tests of their own, see test_zombies.py.
KINDS = [kind for kind in Kill if kind is not Kill.TAKEOVER]


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


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_soak(
    tmp_path: Path,
    mariadb_server: MariaDB,
    redis_server: Redis,
    eoc_seed: int,
    eoc_kills: int,
):
    """100 kills of random kinds and instants, takeovers by zombies among them, both sinks.

    Everything is compared after each ten; seed and counts are printed.
    """
    print(f"\nsoak with --eoc-seed={eoc_seed} --eoc-kills={eoc_kills}")
    strikes = list(KillSchedule(eoc_seed, count=eoc_kills))
    rig = Rig(tmp_path, mariadb=mariadb_server, redis=redis_server)
    with rig, rig.supervise() as supervisor:
        for first in range(0, eoc_kills, 10):
            supervisor.carry_out(strikes[first : first + 10])
            for sink, verdict in rig.settle(supervisor).items():
                print(f"{len(supervisor.strikes)} kills, {sink}: {verdict}", flush=True)
                verdict.require_clean(f"--eoc-seed={eoc_seed}")
            rig.feed()
    counts = Counter(strike.kind.value for strike in supervisor.strikes)
    print(f"seed {eoc_seed}: {sum(counts.values())} kills {dict(sorted(counts.items()))}")
    print(f"{supervisor.starts} runs, {len(supervisor.missed)} instants without such a process")
