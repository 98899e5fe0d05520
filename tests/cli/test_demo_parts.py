"""The demo's parts without Spark: the plan of kills, its reading of progress, its comparison."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from spark_eoc.cli.demo_data import ALL_ROWS, COLUMNS, counters, flights
from spark_eoc.cli.demo_plan import plan
from spark_eoc.cli.demo_progress import Replays, rows_done
from spark_eoc.testing.kills import USUAL_KILLS, Kill

BOTH = ("mysql", "redis")


def kinds(plans):
    return Counter(due.strike.kind for dues in plans.values() for due in dues)


def test_the_input_is_the_whole_csv_and_every_row_is_another_one():
    """So a multiset comparison can tell every single loss and every single repetition."""
    lines = flights(ALL_ROWS + 1)
    assert len(lines) == len(set(lines)) == ALL_ROWS
    assert all(line.count(",") == len(COLUMNS) - 1 for line in lines)


def test_counters_are_counted_from_the_csv():
    """Carrier to flights and miles, by hand for two lines."""
    lines = [line for line in flights(100) if line.split(",")[9] == "AA"][:2]
    miles = sum(int(line.split(",")[15]) for line in lines)
    assert counters(lines) == {"AA": (2, miles)}


@pytest.mark.parametrize("seed", range(20))
def test_the_default_plan_has_every_kind_for_every_sink(seed):
    """12 kills: each kind once for each sink, and the two servers."""
    found = kinds(plan(seed, BOTH, 12, ALL_ROWS))
    assert sum(found.values()) == 12
    assert found[Kill.MARIADB] == found[Kill.REDIS] == 1
    assert all(count == 2 for kind, count in found.items() if not kind.is_server)
    assert set(found) == set(USUAL_KILLS)


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_comes_once_as_soon_as_there_are_kills_enough(seed):
    """Seven kinds, seven kills and more: none is left out."""
    for kills in range(7, 14):
        assert len(kinds(plan(seed, BOTH, kills, ALL_ROWS))) == len(USUAL_KILLS)


def test_the_seed_decides_everything():
    """The printed seed repeats kinds, rows and instants; another seed gives others."""
    assert plan(7, BOTH, 12, 5000) == plan(7, BOTH, 12, 5000)
    assert plan(7, BOTH, 12, 5000) != plan(8, BOTH, 12, 5000)


def test_every_kill_comes_before_the_producer_may_end():
    """A kill waits for a row that lies before what may be sent, so it hits a running stream."""
    for dues in plan(3, BOTH, 11, ALL_ROWS).values():
        ends = [due.window_end for due in dues]
        assert ends == sorted(ends)
        assert ends[-1] < ALL_ROWS
        assert all(due.after_row < due.window_end for due in dues)


def write_batch(checkpoint, batch_id, end, *, committed=True):
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir(parents=True, exist_ok=True)
    offset = json.dumps({"buffer": "b", "epoch": 1, "offset": end, "partitions": 2})
    (checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{offset}")
    if committed:
        (checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")


def test_progress_is_the_end_of_the_newest_committed_batch(tmp_path):
    """Planned batches do not count, and neither do Spark's temporary files."""
    assert rows_done(tmp_path) == 0
    write_batch(tmp_path, 9, 900)
    write_batch(tmp_path, 10, 1000)
    write_batch(tmp_path, 11, 1100, committed=False)
    (tmp_path / "commits" / ".12.tmp").write_text("")
    assert rows_done(tmp_path) == 1000


def test_replays_are_batches_that_the_writer_was_given_more_than_once(tmp_path):
    """Going on and refusing are told apart; other errors are neither."""
    transcript = tmp_path / "transcript"
    events = [
        (1, 0, "begun", None),
        (1, 0, "done", None),
        (1, 1, "begun", None),
        (2, 1, "begun", None),
        (2, 1, "failed", "SinkUnavailableError"),
        (3, 1, "begun", None),
        (3, 1, "done", None),
        (1, 1, "failed", "FencedError"),
    ]
    transcript.write_text(
        "".join(
            json.dumps({"pid": pid, "batch_id": batch, "event": event, "error": error}) + "\n"
            for pid, batch, event, error in events
        )
    )
    assert Replays.read(transcript) == Replays(again=2, accepted=1, refused={"FencedError": 1})
    assert Replays.read(tmp_path / "none") == Replays(0, 0, {})
