"""MySQLSink keeps the contract of every sink; sinks without one of its rules don't."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from typing import Any

import pymysql
import pytest

from spark_eoc.sinks.mysql import sink as sink_module
from spark_eoc.sinks.mysql import staging, write
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.store import Sink
from spark_eoc.testing.contract.hooks import SinkHooks
from spark_eoc.testing.lines import Killer
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.ports import free_port
from spark_eoc.testing.sink_contract import SinkContract
from tests.sinks import broken
from tests.sinks.broken import broken_writer

KILLED = "test_killed_at_every_line_of_a_unit"
PARTITIONS = "test_partitions_and_batches_are_units_of_their_own"
OPENS = "test_what_a_new_owner_reads_is_all_there_will_be"


class MySQLHooks(SinkHooks):
    """A table without any unique key in the test's own database."""

    secret = "s3cr3t-Pa55w0rd"

    @pytest.fixture(autouse=True)
    def _table(self, mariadb: Database) -> Iterator[None]:
        self.mariadb = mariadb
        mariadb.query("CREATE TABLE t (id BIGINT, v VARCHAR(20)) ENGINE=InnoDB")
        mariadb.query(f"CREATE USER {mariadb.name}@'%' IDENTIFIED BY '{self.secret}'")
        mariadb.query(f"GRANT ALL ON {mariadb.name}.* TO {mariadb.name}@'%'")
        self.url = mariadb.url().replace("root@", f"{mariadb.name}:{self.secret}@")
        yield
        mariadb.query(f"DROP USER {mariadb.name}@'%'")

    def make_sink(self) -> Sink:
        return MySQLWriter(self.url, "t")._sink

    def rows_in_sink(self) -> list[int]:
        return [row[0] for row in self.mariadb.query("SELECT id FROM t")]

    def history_entries(self) -> int:
        return int(self.mariadb.query("SELECT COUNT(*) FROM spark_eoc_history")[0][0])

    def sink_files(self) -> list[str]:
        return [str(module.__file__) for module in (sink_module, staging, write)]

    def cut_off(self, sink: Sink) -> Sink:
        assert isinstance(sink, MySQLSink)
        gone = replace(sink, address=replace(sink.address, port=free_port()), budget_s=0.5)
        gone._layout = sink._layout
        return gone

    @contextmanager
    def lost_answer(self) -> Iterator[None]:
        """COMMIT is done, and the connection breaks before its answer."""
        real, lost = pymysql.connections.Connection.query, []

        def query(connection: Any, sql: Any, unbuffered: bool = False) -> Any:
            answer = real(connection, sql, unbuffered)
            if sql == "COMMIT" and not lost:
                lost.append(sql)
                raise pymysql.OperationalError(2013, "Lost connection to server during query")
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pymysql.connections.Connection, "query", query)
            yield
        assert lost


class TestMySQL(MySQLHooks, SinkContract):
    """Rows and ledger in one transaction."""


class TestBrokenSinks(MySQLHooks):
    """The contract can fail: a sink without one of its rules is caught, by name."""

    def make_sink(self) -> Sink:
        return broken_writer(self.kind, self.url, "t")._sink

    def sink_files(self) -> list[str]:
        return [sink_module.__file__, str(broken.__file__)]

    @pytest.mark.parametrize(
        ("kind", "test", "how"),
        [
            ("ledger_in_its_own_transaction", KILLED, "in the ledger and in the sink"),
            ("key_without_the_partition", PARTITIONS, "AlreadyApplied"),
            ("no_fingerprint", "test_a_unit_is_applied_once", "AlreadyApplied"),
            ("no_token", "test_a_straggler_of_the_same_run_is_fenced", "Applied"),
            ("plain_read_at_start", OPENS, "a unit came late"),
            ("plain_read_at_end", OPENS, "a unit came late"),
        ],
    )
    def test_a_broken_sink_is_caught(self, killer: Killer, kind: str, test: str, how: str) -> None:
        """Red without the rule."""
        self.kind = kind
        promise = getattr(SinkContract, test)
        with pytest.raises(AssertionError, match=how):
            promise(self, killer) if "killer" in signature(promise).parameters else promise(self)
