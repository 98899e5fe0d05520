"""Dead letters in batch atomicity on a real Redis: what tasks and the publishing script refuse."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from spark_eoc import RedisWriter
from spark_eoc.errors import (
    BatchTooLargeError,
    DeadLetterLimitError,
    FencedError,
    HalfAppliedError,
    ReplayMismatchError,
    SinkError,
)
from spark_eoc.failpoints import ENVIRONMENT, FailpointError
from spark_eoc.sinks.entries import Applied
from spark_eoc.sinks.redis import staged, window
from spark_eoc.sinks.redis.publish import Publication
from spark_eoc.sinks.redis.store import RedisSink
from spark_eoc.testing.local import LocalFrame, local_run
from tests.sinks.redis.broken import WholeLettersApartSink
from tests.sinks.redis.driving import Run, error_of, redis_sink, rows_of, stored
from tests.sinks.redis.test_redis_dead_letters import CASES, STRANGERS, expected_of, letters, mixed
from tests.sinks.redis.test_redis_whole_batches import staged_keys

NewRun = Callable[..., Run]
BIG = 2**61


@pytest.fixture
def aside(new_run: NewRun) -> NewRun:
    """``aside(command, ...)``: a run that puts bad rows aside, with keys ``<prefix>:<k>``."""

    def build(command: str = "hincrby", **more: Any) -> Run:
        return new_run("{k}", command, **{"dead_letter_limit": 1000, **more})

    return build


def keys_of(client: Any, prefix: str) -> list[str]:
    return [key.decode().removeprefix(f"{prefix}:") for key in client.scan_iter(f"{prefix}:*")]


def mostly_slow(cases: Iterable[Any], quick: Sequence[Any]) -> list[Any]:
    """In the quick suite some of them, since all are tried in partition atomicity."""
    return [
        case if case in quick
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for case in cases
    ]  # fmt: skip


def part(data: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: column[start:stop] for name, column in data.items()}


@pytest.mark.parametrize("name", mostly_slow(CASES, ["a NULL key", "NaN", "no TTL"]))
def test_each_kind_of_bad_row_goes_aside(
    aside: NewRun, client: Any, prefix: str, name: str
) -> None:
    """R6: as in partition atomicity; nothing stays staged."""
    command, more, good, bad, reason = CASES[name]
    rows = [{"k": f"k{i}", **good} for i in range(30)]
    rows[17].update(bad)
    run = aside(command, chunk_rows=4, **more)
    run.whole_batch(0, rows_of(pa.Table.from_pylist(rows)), {"k": ["other"], **_lists(good)})
    assert len(list(client.scan_iter(f"{prefix}:*"))) == 30
    (letter,) = letters(client, prefix)
    row = {**rows[17], "n": {"NaN": "NaN", "a bad score": "Infinity"}.get(name, rows[17]["n"])}
    assert letter["row"] == row
    assert reason in letter["reason"]
    assert (letter["batch"], letter["partition"], letter["writer_id"], letter["column"]) == (
        "0", "0", f"{prefix}:{{k}}", letter["column"],
    )  # fmt: skip
    assert letter["column"] in row
    assert staged_keys(client, prefix) == []


def _lists(row: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [value] for name, value in row.items()}


@pytest.mark.parametrize(
    ("command", "more"), mostly_slow(STRANGERS, STRANGERS[:2] + STRANGERS[7:8])
)
def test_rows_whose_key_holds_another_type(
    aside: NewRun, client: Any, prefix: str, command: str, more: dict[str, str]
) -> None:
    """R2: found by the publishing script, in several partitions and chunks."""
    stranger = f"{prefix}:k00007"
    client.set(stranger, "text") if command[:4] != "incr" else client.hset(stranger, "f", 1)
    before = client.dump(stranger)
    table = pa.table(
        {
            "k": [f"k{i % 20:05d}" for i in range(60)],
            "n": pa.array(range(60), pa.int64()),
            "offset": pa.array(range(100, 160), pa.int64()),
        }
    )
    if command in ("hset", "hincrby", "xadd"):
        more = {**more, "fields": ["n"]}  # type: ignore[dict-item]
    run = aside(command, chunk_rows=3, **more)
    run.whole_batch(0, rows_of(table.slice(0, 25)), rows_of(table.slice(25)))
    assert client.dump(stranger) == before
    assert len(list(client.scan_iter(f"{prefix}:*"))) == 20
    found = [(x["partition"], x["offset"], x["row"]["n"]) for x in letters(client, prefix)]
    assert sorted(found) == [("0", "107", 7), ("1", "127", 27), ("1", "147", 47)]
    assert {x["reason"] for x in letters(client, prefix)} == {"the key holds another type of value"}
    assert staged_keys(client, prefix) == []


def test_sums_that_leave_what_a_counter_holds(aside: NewRun, client: Any, prefix: str) -> None:
    """Of one chunk's rows, by the task; of several partitions, by the script that follows them:
    there the rows that come after. Then a counter that is none."""
    client.hset(f"{prefix}:words", "n", "seven")
    run = aside(chunk_rows=2)
    run.whole_batch(
        0,
        {"k": ["a", "b", "b", "c", "words"], "n": [BIG, BIG, BIG, 1, 5]},
        {"k": ["a", "c"], "n": [BIG, 1]},
        {"k": ["a", "c", "words"], "n": [-7, 1, 6]},
    )
    client.delete(f"{prefix}:words")
    assert stored(client, prefix) == {b"a": b"%d" % 2**62, b"c": b"3"}
    found = Counter(
        (x["row"]["k"], x["row"]["n"], x["reason"][:20]) for x in letters(client, prefix)
    )
    assert found == {
        ("b", BIG, "the sum of its key's"): 2,
        ("a", -7, "the batch takes the "): 1,
        ("words", 5, "the present value is"): 1,
        ("words", 6, "the present value is"): 1,
    }


def test_rows_of_one_counter_in_many_windows(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hot key's operations cover many rows: all of them become letters, of each chunk."""
    monkeypatch.setattr(window, "WINDOW_ROWS", 17)
    client.set(f"{prefix}:1", "text")
    data = {"k": [i % 3 for i in range(150)], "n": list(range(150))}
    aside().whole_batch(0, part(data, 0, 90), part(data, 90, 150))
    client.delete(f"{prefix}:1")
    assert stored(client, prefix) == {
        b"%d" % k: b"%d" % sum(i for i in range(150) if i % 3 == k) for k in (0, 2)
    }
    numbers = Counter(letter["row"]["n"] for letter in letters(client, prefix))
    assert numbers == Counter(range(1, 150, 3))


def check_once(client: Any, prefix: str) -> None:
    client.delete(f"{prefix}:s")
    rows = [letter["row"] for letter in letters(client, prefix)]
    found = stored(client, prefix), sorted(((r["k"], r["n"]) for r in rows), key=repr)
    assert found == expected_of(mixed())
    assert staged_keys(client, prefix) == []


@pytest.mark.parametrize(
    ("point", "count"),
    [
        *(("redis.before_stage", count) for count in (2, 8)),
        ("redis.after_stage", 2),
        ("before publish", 0),
        ("after publish", 0),
    ],
)
def test_dying_at_each_step_leaves_each_row_and_letter_once(  # noqa: PLR0917
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch, point: str, count: int
) -> None:
    """The next run gets the rows in other partitions and another order."""
    data = mixed()
    client.set(f"{prefix}:s", "text")
    run = aside(chunk_rows=2)
    run.open(0, atomicity="batch")
    if count:
        monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
        monkeypatch.setenv(ENVIRONMENT, f"{point}:{count}=raise")
        with pytest.raises(FailpointError):
            run.stage(part(data, 0, 30)), run.stage(part(data, 30, 40), 1)
        monkeypatch.delenv(ENVIRONMENT)
    else:
        run.stage(part(data, 0, 30)), run.stage(part(data, 30, 40), 1)
    if point == "after publish":
        run.publish()
        run.publish()  # its answer was lost: recognised
    else:
        table = pa.table(data).take(pa.array(range(39, -1, -1)))
        again = aside(chunk_rows=3, run_id="run-2")
        again.whole_batch(0, *(rows_of(table.slice(at, 9)) for at in range(0, 40, 9)))
    check_once(client, prefix)


def test_a_lost_answer_to_the_publication_is_recognised(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each script, of which the first only names bad operations."""
    client.set(f"{prefix}:s", "text")
    real, lost = Publication._run, []

    def losing(*arguments: Any) -> Any:
        answer = real(*arguments)
        if answer[0] not in lost:
            lost.append(answer[0])
            raise RedisConnectionError("Connection closed by server.")
        return answer

    monkeypatch.setattr(Publication, "_run", losing)
    data = mixed()
    aside(chunk_rows=3).whole_batch(0, part(data, 0, 30), part(data, 30, 40))
    assert lost == [b"BAD", b"OK"]
    check_once(client, prefix)


@pytest.mark.parametrize("kind", [RedisSink, WholeLettersApartSink])
def test_letters_in_a_step_of_their_own_double(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch, kind: type[RedisSink]
) -> None:
    """Red without the rule: the driver dies between the letters and the rows."""
    run = aside()
    run.sink = kind(run.sink.target)
    data = {"k": ["a", "b", None], "n": [1, 2, 3]}
    monkeypatch.setattr(sys, "_spark_eoc_failpoint_hits", {}, raising=False)
    if kind is WholeLettersApartSink:
        with monkeypatch.context() as failing:
            failing.setenv(ENVIRONMENT, "redis.after_chunk=raise")
            with pytest.raises(FailpointError):
                run.whole_batch(0, data)
    run = aside(run_id="run-2")
    run.whole_batch(0, data)
    assert len(letters(client, prefix)) == (1 if kind is RedisSink else 2)


def test_the_limit_counts_over_the_batch_and_stops_it_whole(
    aside: NewRun, client: Any, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What tasks and the script refuse together, and a task alone; with a higher limit the batch
    goes on, and the driver says where the letters are."""
    client.set(f"{prefix}:s", "text")
    data = mixed()  # six with NULL, one with the stranger's key
    halves = part(data, 0, 30), part(data, 30, 40)
    for limit in (6, 5):
        with pytest.raises(DeadLetterLimitError, match="rows or more of batch 0 were refused"):
            aside(run_id=f"{limit}", dead_letter_limit=limit).whole_batch(0, *halves)
        assert (keys_of(client, prefix), letters(client, prefix)) == (["s"], [])
    run = aside(run_id="task", dead_letter_limit=3)
    run.open(0, atomicity="batch")
    assert error_of(run.stage(halves[0])) == "DeadLetterLimitError"
    assert error_of(run.stage({"k": ["a"] * 4, "n": [BIG] * 4})) == "DeadLetterLimitError"
    with caplog.at_level("WARNING", "spark_eoc.sinks"):
        aside(run_id="last", dead_letter_limit=7).whole_batch(0, *halves)
    check_once(client, prefix)
    lines = [r.getMessage() for r in caplog.records if "put aside" in r.getMessage()]
    assert lines == [
        f"batch 0, partition {p}: {n} of {rows} rows were refused and put aside in stream "
        f"{prefix}_ledger:dead_letters"
        for p, n, rows in ((0, 5, 30), (1, 2, 10))
    ]


def test_letters_that_are_too_large_together(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One script has to write them all: found in a task, and over the batch; in partitions they
    are written."""
    monkeypatch.setattr(staged, "MOST_BYTES", 20_000)
    client.set(f"{prefix}:s", "text")
    data = {"k": ["s"] * 3, "v": ["x" * 5000] * 3}
    run = aside("hset")
    run.open(0, atomicity="batch")
    assert error_of(run.stage({"k": pa.array([None] * 5, pa.string()), "v": ["x" * 5000] * 5})) == (
        "BatchTooLargeError"
    )
    monkeypatch.setattr(staged, "MOST_BYTES", 16_000)
    assert run.stage(data) == Applied()
    assert run.stage({"k": ["a", None], "v": ["b", "y" * 5000]}, 1) == Applied()
    monkeypatch.setattr(staged.StagedSize, "check", lambda *_: None)
    with pytest.raises(BatchTooLargeError, match="the dead letters of batch 0 are too large"):
        run.publish()
    assert (keys_of(client, prefix), letters(client, prefix)) == (["s"], [])


def test_rows_that_are_too_large_to_be_kept(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a sum are in its chunk, with columns that are not written; what no argument of
    Redis holds is said, and not taken for a server that is gone."""
    monkeypatch.setattr(staged, "MOST_GIVEN_BYTES", 20_000)
    run = aside(fields=["n"])
    run.open(0, atomicity="batch")
    text = [f"{number:0200x}" + sha256(b"%d" % number).hexdigest() * 3 for number in range(2000)]
    outcome = run.stage({"k": [1] * 2000, "n": [1] * 2000, "raw": text})
    assert error_of(outcome) == "BatchTooLargeError"
    assert staged_keys(client, prefix) == []


def test_a_limit_that_is_met_by_one_operation(aside: NewRun, client: Any, prefix: str) -> None:
    """It covers a thousand rows; of no more than the limit letters are made."""
    client.set(f"{prefix}:s", "text")
    data = {"k": ["s"] * 1000, "n": [1] * 1000}
    with pytest.raises(DeadLetterLimitError, match="6 rows or more of batch 0"):
        aside(dead_letter_limit=5).whole_batch(0, data)
    run = aside(dead_letter_limit=5, run_id="next")
    run.open(0, atomicity="batch")
    assert error_of(run.stage({"k": ["a"] * 1000, "n": [BIG] * 1000})) == "DeadLetterLimitError"


def staged_mixed(run: Run, client: Any, prefix: str) -> None:
    client.set(f"{prefix}:s", "text")
    run.open(0, atomicity="batch")
    assert run.stage(part(mixed(), 0, 30)) == Applied()
    assert run.stage(part(mixed(), 30, 40), 1) == Applied()


def test_what_is_no_rows_fault_leaves_nothing(aside: NewRun, client: Any, prefix: str) -> None:
    """A stream that takes no letters; rows that are not there any more; then it goes on."""
    run = aside(chunk_rows=4)
    staged_mixed(run, client, prefix)
    client.set(f"{prefix}_ledger:dead_letters", "text")
    with pytest.raises(SinkError, match="can't take dead letters"):
        run.publish()
    client.delete(f"{prefix}_ledger:dead_letters")
    given = [key for key in staged_keys(client, prefix) if key.endswith(b":given")]
    kept = {key: client.dump(key) for key in given}
    client.delete(*given)
    with pytest.raises(ReplayMismatchError, match="what the frame gave is not there"):
        run.publish()
    assert keys_of(client, prefix) == ["s"]
    for key, dump in kept.items():
        client.restore(key, 0, dump)
    run.publish()
    run.sink.clear_staged(run.writer_id)
    check_once(client, prefix)


def test_a_zombie_publishes_nothing_and_a_writer_without_letters_clears(
    aside: NewRun, client: Any, prefix: str
) -> None:
    """The next run keeps no letters; what the frame gave goes with what was staged."""
    late = aside(chunk_rows=2)
    staged_mixed(late, client, prefix)
    assert len(staged_keys(client, prefix)) == 5
    aside(run_id="next", dead_letter_limit=None).whole_batch(0, {"k": ["a"], "n": [1]})
    assert staged_keys(client, prefix) == []
    with pytest.raises(FencedError):
        late.publish()
    client.delete(f"{prefix}:s")
    assert (stored(client, prefix), letters(client, prefix)) == ({b"a": b"1"}, [])


def test_an_error_after_the_first_letter_is_never_repeated(
    aside: NewRun, client: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of any write: the next run is told so, by the mark that came first."""
    run = aside()
    staged_mixed(run, client, prefix)
    real = run.sink.aside_publication._source

    def failing(self: Any) -> str:
        write = "each(function(i) write(i) end)"
        assert write in real(self)
        return real(self).replace(write, "error('boom')")

    monkeypatch.setattr(run.sink.aside_publication, "_source", failing)
    with pytest.raises(HalfAppliedError, match="boom"):
        run.publish()
    monkeypatch.undo()
    with pytest.raises(HalfAppliedError):
        aside(run_id="next").whole_batch(0, part(mixed(), 0, 40))
    assert len(letters(client, prefix)) == 7


@pytest.mark.parametrize("name", ["redis6", "redis8", "valkey"])
def test_on_other_servers(name: str, own_server: Callable[..., Any]) -> None:
    """Redis 6.2 and 8.2, and Valkey."""
    server = own_server(name)
    client = server.client()
    sink = redis_sink(
        server.url(), "c:{k}", "hincrby", chunk_rows=3, ledger="c_ledger", dead_letter_limit=7
    )
    sink.check_batch()
    run = Run(sink, "w")
    client.set("c:s", "text")
    run.whole_batch(0, part(mixed(), 0, 30), part(mixed(), 30, 40))
    check_once(client, "c")


def test_the_writer_as_users_make_it(redis_server: Any, client: Any, prefix: str) -> None:
    """A run, one that holds the rows in other partitions, and one more after the batch is done."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    rows = pa.table(mixed()).to_pylist()
    client.set(f"{prefix}:s", "text")
    for run, size, limit in (("first", 30, 4), ("second", 13, 7), ("third", 7, 7)):
        writer = RedisWriter(
            redis_server.url(), prefix + ":{k}", "hincrby", ledger=f"{prefix}_ledger",
            atomicity="batch", on_bad_row="dead_letter", dead_letter_limit=limit,
        )  # fmt: skip
        frame: Any = LocalFrame([rows[at : at + size] for at in range(0, 40, size)], schema)
        with pytest.raises(DeadLetterLimitError) if run == "first" else nullcontext():
            local_run(writer, "query", run)(frame, 0)
    check_once(client, prefix)
