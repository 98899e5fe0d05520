"""The first tier: every dangerous state of a checkpoint, both sinks at once, on a warm Spark."""

from __future__ import annotations

from contextlib import suppress

import pymysql
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import spark_eoc
from spark_eoc.errors import ConfigError
from spark_eoc.testing import operating
from spark_eoc.testing.operating import SurgeryRunner
from spark_eoc.testing.plugin import Database
from spark_eoc.testing.servers import Redis
from spark_eoc.testing.surgery import OPERATIONS

pytestmark = pytest.mark.usefixtures("stop_queries")


def writing(write, place, spark):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(place.input)
    lines.writeStream.foreachBatch(write).option("checkpointLocation", place.checkpoint).start()


def both_sinks(atomicity: str, prefix: str):
    """A table and counters, written with the ledger, in one query."""

    def query(spark, place):
        table = spark_eoc.MySQLWriter(place.mysql_url, "clicks", atomicity=atomicity)
        counters = spark_eoc.RedisWriter(
            place.redis_url,
            key=prefix + ":{value}",
            command="hincrby",
            ledger=prefix + "_ledger",
            atomicity=atomicity,
        )
        both = spark_eoc.fan_out(table, counters)
        writing(lambda lines, n: both(lines.withColumn("n", F.lit(1)), n), place, spark)

    return query


def plainly(spark, place):
    """What people write: no ledger."""

    def write(lines, batch_id):
        with pymysql.connect(**place.mysql) as db, db.cursor() as cursor:
            rows = [(row.value,) for row in lines.collect()]
            cursor.executemany("INSERT INTO clicks (value) VALUES (%s)", rows)
            db.commit()

    writing(write, place, spark)


@pytest.fixture
def clicks(mariadb: Database) -> Database:
    mariadb.query("CREATE TABLE clicks (value VARCHAR(100), n INT)")
    return mariadb


@pytest.mark.parametrize("atomicity", ["partition", pytest.param("batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_both_sinks_are_exactly_once_on_any_checkpoint(
    eoc_surgery: SurgeryRunner,
    clicks: Database,
    redis_server: Redis,
    *,
    prefix: str,
    operation: str,
    atomicity: str,
) -> None:
    """They go on, or refuse by name with nothing written; E1 and E2 among others."""
    client = redis_server.client()

    def rows() -> list[tuple[str, bytes]]:
        values = [value for (value,) in clicks.query("SELECT value FROM clicks")]
        return [(value, client.hget(f"{prefix}:{value}", "n")) for value in values]

    report = eoc_surgery(
        both_sinks(atomicity, prefix),
        rows,
        operation,
        mariadb=clicks,
        redis=redis_server,
        expect=lambda line: line + b"\t1",
    )
    print(report)
    report.require_exactly_once()
    assert len(client.keys(f"{prefix}:line*")) == len(rows())


#: Of a plain query: what doubles its rows.
DOUBLING = ("no_newest_commit", "older_copy", "wiped")


@pytest.mark.parametrize("operation", DOUBLING)
def test_a_plain_query_is_found_out(
    eoc_surgery: SurgeryRunner, clicks: Database, operation: str
) -> None:
    """The same states, without a ledger: rows twice."""
    report = eoc_surgery(
        plainly,
        lambda: clicks.query("SELECT value FROM clicks"),
        operation,
        mariadb=clicks,
    )
    assert report.refused is None
    assert report.verdict.checks == {"twice"}
    with pytest.raises(AssertionError, match="twice"):
        report.require_exactly_once()


def test_rows_of_a_case_before_are_not_taken_for_those_of_this_one(
    eoc_surgery: SurgeryRunner,
) -> None:
    """A seed makes up the same lines again, for each operation of a test."""
    with pytest.raises(ConfigError, match="1 rows are in the sink before"):
        eoc_surgery(plainly, lambda: ["x"], "wiped")


def test_a_query_that_ends_at_once_has_not_gone_on(
    eoc_surgery: SurgeryRunner, clicks: Database
) -> None:
    """Spark reads the broken entry before the function that starts the query has returned; it was
    no longer among the active ones, and its lines looked lost."""

    def ended(spark, place):
        plainly(spark, place)
        for query in spark.streams.active:
            with suppress(StreamingQueryException):
                query.processAllAvailable()

    report = eoc_surgery(
        ended, lambda: clicks.query("SELECT value FROM clicks"), "half_offsets", mariadb=clicks
    )
    report.require_exactly_once()
    assert report.refused is not None


def test_a_function_that_starts_nothing_is_told(
    eoc_surgery: SurgeryRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of a report that all lines are lost."""
    monkeypatch.setattr(operating, "_ENDED_S", 0.1)
    with pytest.raises(ConfigError, match="started no streaming query"):
        eoc_surgery(lambda spark, place: None, list, "moved")


def test_an_unknown_operation_is_refused_with_the_names(eoc_surgery: SurgeryRunner) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError, match="no_newest_commit"):
        eoc_surgery(plainly, list, "newest_commit_missing")


def test_a_query_with_another_checkpoint_is_refused_by_name(eoc_surgery: SurgeryRunner) -> None:
    """There is nothing to operate on; it ended with a file that is not there."""

    def elsewhere(spark, place):
        lines = spark.readStream.text(place.input)
        stream = lines.writeStream.foreachBatch(lambda *_: None)
        stream.option("checkpointLocation", place.checkpoint + "/own").start()

    with pytest.raises(ConfigError, match="committed no batch in place"):
        eoc_surgery(elsewhere, list, "wiped")


@pytest.mark.parametrize("error", [AssertionError(), ValueError("\n")])
def test_an_error_without_words_is_told_by_its_name(error: Exception) -> None:
    """A bare assert in a user's query."""
    assert operating._told(error) == type(error).__name__
