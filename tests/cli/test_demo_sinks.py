"""The demo's comparison: it finds what is lost and what is doubled, also where counts agree."""

from __future__ import annotations

import shutil

import pytest

from spark_eoc.cli.demo_data import COLUMNS, NO_VALUE, counters, flights
from spark_eoc.cli.demo_job import TABLE
from spark_eoc.cli.demo_sinks import MySQLSink, RedisSink


@pytest.fixture(scope="module")
def mysql(tmp_path_factory, mariadb_server):
    """A sink of its own; the session's server is asked for only to skip or fail without one."""
    sink = MySQLSink(tmp_path_factory.mktemp("mysql"))
    yield sink
    sink.server.close()
    shutil.rmtree(sink.server.folder, ignore_errors=True)


@pytest.fixture
def redis(tmp_path, redis_server):
    sink = RedisSink(tmp_path)
    yield sink
    sink.server.close()


def insert(sink: MySQLSink, lines: list[str]) -> None:
    connection = sink.server.connect("demo")
    with connection, connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {TABLE}")
        cursor.executemany(
            f"INSERT INTO {TABLE} VALUES ({', '.join(['%s'] * len(COLUMNS))})",
            [[None if v == NO_VALUE else v for v in line.split(",")] for line in lines],
        )


#: Some of them have no departure: their NULLs must come back as the CSV writes them.
LINES = flights(900)[-60:]


def test_a_table_that_holds_the_csv_is_exact(mysql):
    """Every column of every row comes back as it was written."""
    assert any(NO_VALUE in line for line in LINES)
    insert(mysql, LINES)
    verdict = mysql.verdict(LINES)
    assert (verdict.in_sink, verdict.lost, verdict.twice) == (60, 0, 0)
    assert verdict.difference is None


@pytest.mark.parametrize(
    ("stored", "lost", "twice"),
    [
        (LINES[1:], 1, 0),
        ([*LINES, LINES[3]], 0, 1),
        ([*LINES[1:], LINES[3]], 1, 1),
        ([LINES[0].replace("2013,", "2014,", 1), *LINES[1:]], 1, 1),
        ([], 60, 0),
    ],
    ids=["lost", "twice", "the same count", "changed", "empty"],
)
def test_every_row_that_differs_is_found(mysql, stored, lost, twice):
    """A multiset comparison: one lost and one doubled row do not make up for each other."""
    insert(mysql, stored)
    verdict = mysql.verdict(LINES)
    assert (verdict.lost, verdict.twice) == (lost, twice)
    assert verdict.difference


def count_into(sink: RedisSink, lines: list[str]) -> None:
    client = sink.server.client()
    with client:
        for carrier, (count, distance) in counters(lines).items():
            client.hset(f"carrier:{carrier}", mapping={"flights": count, "distance": distance})


def test_counters_that_were_counted_from_the_csv_are_exact(redis):
    """Flights and miles of each carrier."""
    count_into(redis, LINES)
    verdict = redis.verdict(LINES)
    assert (verdict.in_sink, verdict.lost, verdict.twice, verdict.difference) == (60, 0, 0, None)


@pytest.mark.parametrize(
    ("stored", "lost", "twice"),
    [(LINES[1:], 1, 0), ([*LINES, LINES[0]], 0, 1), ([], 60, 0)],
    ids=["lost", "twice", "empty"],
)
def test_every_counter_that_differs_is_found(redis, stored, lost, twice):
    """Each carrier is compared by itself."""
    count_into(redis, stored)
    verdict = redis.verdict(LINES)
    assert (verdict.lost, verdict.twice) == (lost, twice)
    assert verdict.difference


def test_a_lost_and_a_doubled_flight_of_one_carrier_show_in_its_miles(redis):
    """The count alone would agree."""
    carrier, miles = LINES[0].split(",")[9], int(LINES[0].split(",")[15])
    count_into(redis, LINES)
    redis.server.client().hincrby(f"carrier:{carrier}", "distance", -miles)
    verdict = redis.verdict(LINES)
    assert (verdict.lost, verdict.twice) == (1, 0)
    assert carrier in verdict.difference
