"""What all sinks share: a row's hash, a partition's copy, identity, stage attempts, options."""

from __future__ import annotations

import json
import pickle
import random
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DoubleType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
    YearMonthIntervalType,
)

from spark_eoc.errors import ConfigError, ReplayMismatchError
from spark_eoc.sinks import task
from spark_eoc.sinks.attempts import StageWatch
from spark_eoc.sinks.checkpoint import identify, offsets_digest
from spark_eoc.sinks.dead_letters import row_json
from spark_eoc.sinks.entries import Applied, Fingerprint, LedgerView, Outcome, Unit, UnitEntry
from spark_eoc.sinks.fan_out import fan_out
from spark_eoc.sinks.frame import check_marks, describe_columns, with_hashes
from spark_eoc.sinks.ledger import Close, Compare, Open
from spark_eoc.sinks.rows import HASH_COLUMN, SPILL_BYTES, Rows, hash_sum, read_rows
from spark_eoc.sinks.store import CloseDecision, Column, Mark, OpenDecision, Sink
from spark_eoc.sinks.writer import Writer, WriterOptions
from tests.sinks.calls import Query

pytestmark = pytest.mark.compat


class Memory(Sink):
    """A third sink in one class, on the driver only: its ledger is a dict, its rows are dropped."""

    def __init__(self) -> None:
        self.control: Any = None
        self.history: dict[int, Any] = {}
        self.stored: list[UnitEntry] = []
        self.checked: Sequence[Column] = ()

    def check(self, columns: Sequence[Column]) -> str:
        self.checked = columns
        return "memory"

    def _view(self) -> LedgerView:
        return LedgerView(self.control, self.history, len(self.stored), time.time_ns() // 1000)

    def open_batch(self, writer_id: str, batch_id: int, decide: OpenDecision) -> Open | Compare:
        decision = decide(self._view())
        if isinstance(decision, Open):
            self.control = decision.control
        return decision

    def units(self, writer_id: str, batch_id: int) -> list[UnitEntry]:
        return self.stored

    def apply(self, unit: Unit, rows: Rows) -> Outcome:
        return Applied()

    def close_batch(self, writer_id: str, batch_id: int, decide: CloseDecision) -> None:
        decision = decide(self._view(), Reported())
        assert isinstance(decision, Close)
        self.control = decision.control
        self.history[batch_id] = decision.completed


class Reported(list[UnitEntry]):
    """Stands for units that the tasks stored somewhere: whatever is compared with it is equal."""


@pytest.fixture
def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completes batches without units, since Memory's tasks store theirs in another process."""
    from spark_eoc.sinks import ledger, writer  # noqa: PLC0415

    def close(view: Any, stored: Any, reported: Any, call: Any, *n: Any, **more: Any) -> Any:
        entries = [UnitEntry(p, call.batch_id, f) for p, f in reported.items()]
        return ledger.decide_close(view, entries, reported, call, *n, **more)

    monkeypatch.setattr(writer, "decide_close", close)


def hashes(df: DataFrame) -> list[int]:
    return [row[HASH_COLUMN] for row in with_hashes(df, describe_columns(df)).collect()]


def test_a_null_counts_for_its_column(spark: SparkSession) -> None:
    """xxhash64 passes over NULLs: without the columns' numbers these rows would be equal."""
    df = spark.createDataFrame([(None, "a"), ("a", None)], "x STRING, y STRING")
    first, second = hashes(df)
    assert first != second
    plain = [row[0] for row in df.select(F.xxhash64("x", "y")).collect()]
    assert plain[0] == plain[1]


def test_marks_travel_beside_the_columns_and_are_not_hashed(spark: SparkSession) -> None:
    """NULL is false; a condition may name columns that mapInArrow could not pass."""
    df = spark.createDataFrame([(1, "D"), (2, None), (3, "U")], "id INT, `o.p` STRING").coalesce(1)
    columns, marks = describe_columns(df), {"gone": Mark("delete_when", "`o.p` = 'D'")}
    check_marks(df, marks)
    marked = with_hashes(df, columns, marks)
    rows = read_rows(marked.toArrow().to_batches(), ["id", "o.p"])
    assert rows is not None
    assert rows.marks is not None
    assert rows.table.column_names == ["id", "o.p"]
    assert rows.marks.to_pydict() == {"gone": [True, False, False]}
    assert rows.hashes.to_pylist() == hashes(df)
    assert rows.slice(0, 2).take(pa.array([1, 0])).marks.to_pydict() == {"gone": [False, True]}


@pytest.mark.parametrize(
    ("condition", "message"),
    [("o = 'D'", "can't be evaluated"), ("op =", "can't be evaluated"), ("op", "gives string"),
     ("op = 'D') OR (1 = 1", "can't be evaluated")],
)  # fmt: skip
def test_marks_that_spark_cannot_evaluate_are_refused(
    spark: SparkSession, condition: str, message: str
) -> None:
    """With the option's name, before anything is opened."""
    df = spark.createDataFrame([("D",)], "op STRING")
    with pytest.raises(ConfigError, match=rf"delete_when='?\"?{re.escape(condition)}.*{message}"):
        check_marks(df, {"gone": Mark("delete_when", condition)})
    with pytest.raises(ConfigError, match=r"columns op: \[[A-Z_.]+\] \w|gives string"):
        check_marks(df, {"gone": Mark("delete_when", condition)})


def test_the_hash_does_not_depend_on_column_order_or_zone(spark: SparkSession) -> None:
    """The same rows, selected in another order and computed in another zone."""
    fields = ["1 AS b", "'x' AS a", "named_struct('t', timestamp'2024-03-31 01:30:00Z') AS c"]
    found = set()
    for zone in ("UTC", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        for order in (fields, fields[::-1]):
            found.update(hashes(spark.range(1).selectExpr(*order)))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(found) == 1


def test_the_sum_of_hashes_is_modulo_two_to_the_64() -> None:
    """Whatever Arrow's kernels do on overflow."""
    values = [random.getrandbits(64) - 2**63 for _ in range(1000)] + [-(2**63), 2**63 - 1] * 50
    chunked = pa.chunked_array([values[:400], values[400:]], pa.int64())
    assert hash_sum(chunked) == sum(values) % 2**64
    assert hash_sum(pa.chunked_array([], pa.int64())) == 0


@pytest.mark.parametrize("size", [100, SPILL_BYTES // 1000 + 100])
def test_a_partition_is_read_whole_from_memory_or_file(size: int) -> None:
    """Above 32 MiB the copy lies in a file that has no name any more; pages can be let go of."""
    one = pa.record_batch({"c0": ["x" * 1000] * 100, HASH_COLUMN: pa.array(range(100), pa.int64())})
    rows = read_rows((one for _ in range(size // 100)), ["name"])
    assert rows is not None
    rows.release()
    assert (rows.mapping is not None) == (size > 1000)
    assert rows.table.column_names == ["name"]
    assert rows.fingerprint() == Fingerprint(size // 100 * 100, 4950 * (size // 100))
    rows.release()
    assert rows.slice(5, 8).table.to_pydict() == {"name": ["x" * 1000] * 3}
    assert read_rows(iter([one.slice(0, 0)]), ["name"]) is None


def test_a_writer_pickles_without_its_runs() -> None:
    """A copy in another process is another run, where Spark names none (Spark Connect)."""
    writer = Writer(Memory(), WriterOptions())
    first, second = pickle.loads(pickle.dumps(writer)), pickle.loads(pickle.dumps(writer))
    assert len({writer._own_run_id, first._own_run_id, second._own_run_id}) == 3


def test_identity_without_sparks_properties_comes_from_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As on Spark Connect: query id from metadata, digest from offsets/N; a trailing slash and a
    file: scheme change nothing; without a location it is refused."""
    df = spark.range(1)
    with pytest.raises(ConfigError, match="checkpoint_location"):
        identify(df, None, "own")
    (tmp_path / "metadata").write_text(json.dumps({"id": "the-query"}))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets/3").write_text("v1\n{}\n7")
    found = [
        identify(df, location, "own")
        for location in (str(tmp_path), f"{tmp_path}/", f"file:{tmp_path}")
    ]
    assert {(f.query_id, f.run_id) for f in found} == {("the-query", "own")}
    assert len({offsets_digest(df, f.root, 3) for f in found} - {None}) == 1
    assert offsets_digest(df, found[0].root, 4) is None


def _in_time(_: int) -> None:
    pass


def _too_late(_: int) -> None:
    raise Py4JJavaError.__new__(Py4JJavaError)  # java.util.concurrent.TimeoutException


def watch(
    attempts: dict[int, int],
    *,
    local: bool,
    wait: Any = _in_time,
    executors: tuple[int, int] = (2, 2),
    shuffles: dict[int, str] | None = None,
) -> bool:
    """A StageWatch on a stand-in for Spark's status store, with stages and their attempts, what
    shuffle each wrote, and how many executors there were and are (False, True)."""
    jobs: list[int] = []

    def data(stage: int) -> Any:
        name = (shuffles or {}).get(stage)
        rdds = SimpleNamespace(mkString=lambda _: name)
        return SimpleNamespace(shuffleWriteRecords=lambda: name and 1, rddIds=lambda: rdds)

    store = SimpleNamespace(
        executorList=lambda active: SimpleNamespace(size=lambda: executors[active]),
        lastStageAttempt=data,
    )
    tracker = SimpleNamespace(
        getJobIdsForGroup=lambda _: list(jobs),
        getJobInfo=lambda _: SimpleNamespace(stageIds=list(attempts)),
        getStageInfo=lambda stage: SimpleNamespace(
            currentAttemptId=attempts[stage], numCompletedTasks=1
        ),
    )
    bus = SimpleNamespace(waitUntilEmpty=wait)
    jvm = SimpleNamespace(isLocal=lambda: local, listenerBus=lambda: bus, statusStore=lambda: store)
    context = SimpleNamespace(
        statusTracker=lambda: tracker,
        getLocalProperty=lambda _: "group",
        getConf=dict,
        _jsc=SimpleNamespace(sc=lambda: jvm),
    )
    session = SimpleNamespace(sparkContext=context, _jsparkSession=None)
    found = StageWatch(SimpleNamespace(sparkSession=session))  # type: ignore[arg-type]
    jobs.append(7)
    return found.repeated()


def test_a_stage_attempted_twice_is_seen() -> None:
    """Also a stage before a shuffle; in local mode there are none."""
    assert watch({1: 0, 2: 1}, local=False)
    assert not watch({1: 0, 2: 0}, local=False)
    assert not watch({1: 0, 2: 1}, local=True)


def test_a_shuffle_that_two_stages_wrote_is_seen() -> None:
    """With AQE a shuffle is a job of its own; what an executor took with it after that is computed
    by a new stage, of which it is the first attempt. On 4.3 that lost 515 rows of 4,000."""
    assert watch({1: 0, 2: 0}, local=False, executors=(3, 2), shuffles={1: "4,5", 2: "4,5"})
    assert not watch({1: 0, 2: 0}, local=False, executors=(3, 2), shuffles={1: "4,5", 2: "4,5,6"})
    assert not watch({1: 0, 2: 0}, local=False, executors=(3, 2))


def test_an_attempt_that_may_not_be_known_yet_counts_as_one() -> None:
    """Spark's status store is fed by a queue, which may be behind when the job has ended."""
    assert watch({1: 0, 2: 0}, local=False, wait=_too_late)


@pytest.mark.usefixtures("believing")
def test_after_a_repeated_stage_the_batch_is_not_completed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost executor and a shuffle without a fixed order lost and doubled rows in a job that
    succeeded. Computed again in the same run the batch agreed with itself, since its frame keeps
    its shuffles: a restarted run compares, and completes what is as it was."""
    sink = Memory()
    query, writer = Query(spark), Writer(sink, WriterOptions())
    with monkeypatch.context() as patched:
        patched.setattr(StageWatch, "repeated", lambda _: True)
        with pytest.raises(ReplayMismatchError, match=r"twice.*100 rows.*restart the query"):
            query.call(writer, spark.range(100), 0)
    assert sink.control.last_complete == -1
    query.restart()
    query.call(writer, spark.range(100), 0)
    assert sink.control.last_complete == 0


def test_after_a_repeated_stage_fan_out_writes_to_no_other_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next writer's own watch does not see the attempts of the jobs before it."""
    monkeypatch.setattr(StageWatch, "__init__", lambda *_: None)
    monkeypatch.setattr(StageWatch, "repeated", lambda _: True)
    called: list[object] = []
    monkeypatch.setattr(Writer, "__call__", lambda writer, *_: called.append(writer))
    frame: Any = SimpleNamespace(storageLevel=StorageLevel.NONE, unpersist=lambda: None)
    frame.persist = lambda _: frame
    writers = [Writer(Memory(), WriterOptions()) for _ in range(2)]
    with pytest.raises(ReplayMismatchError, match="twice"):
        fan_out(*writers)(frame, 0)
    assert called == writers[:1]


def test_a_sink_without_dead_letters_refuses_them_by_name() -> None:
    """A third sink need not have them."""
    with pytest.raises(ConfigError, match="Memory keeps no dead letters"):
        Writer(Memory(), WriterOptions(on_bad_row="dead_letter"))


def test_a_dead_letters_row_keeps_every_value() -> None:
    """As JSON; of a row above 64 KiB the long values keep their beginning and their length."""
    row: dict[str, Any] = {
        "whole": pa.array([2**63 - 1], pa.int64()),
        "half": [0.5],
        "beyond": [float("-inf")],
        "exact": pa.array([Decimal("1E-18")], pa.decimal128(38, 18)),
        "text": ['é"\0'],
        "bytes": [b"\xff"],
        "day": pa.array([0], pa.date32()),
        "at": pa.array([1], pa.timestamp("us", "Europe/Berlin")),
        "local": pa.array([1], pa.timestamp("us")),
        "yes": [True],
        "nothing": pa.array([None], pa.string()),
    }
    assert json.loads(row_json(pa.table(row), 0)) == {
        "whole": 2**63 - 1,
        "half": 0.5,
        "beyond": "-Infinity",
        "exact": "0.000000000000000001",
        "text": 'é"\0',
        "bytes": {"base64": "/w=="},
        "day": "1970-01-01",
        "at": "1970-01-01 00:00:00.000001Z",
        "local": "1970-01-01 00:00:00.000001",
        "yes": True,
        "nothing": None,
    }
    wide = {str(n): ["x" * 100] for n in range(9000)}
    for long in ({"a": ["x" * 70_000], "b": [1]}, {"a": [b"x" * 70_000]}, wide):
        assert len(row_json(pa.table(long), 0)) < 600_000
    cut = json.loads(row_json(pa.table({"a": ["x" * 70_000], "b": [1]}), 0))
    assert cut == {"a": {"cut": "x" * 1000, "length": 70_000}, "b": 1}


@pytest.mark.usefixtures("believing")
def test_a_complete_batch_is_computed_to_its_end(spark: SparkSession) -> None:
    """Skipping it kills a stateful query; it is computed, and not written."""
    computed = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            computed.add(batch.num_rows)
            yield batch

    sink = Memory()
    query, writer = Query(spark), Writer(sink, WriterOptions())
    query.call(writer, spark.range(100), 0)
    query.restart()
    query.call(writer, spark.range(100).mapInArrow(count, "id BIGINT"), 0)
    assert computed.value == 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dead_letter_limit": 5}, 'belongs to on_bad_row="dead_letter"'),
        ({"on_bad_row": "dead_letter", "dead_letter_limit": 0}, "number from 1 on"),
        ({"atomicity": "row"}, "use one of partition, batch"),
        ({"partitioning": "hash"}, "needs num_partitions"),
        ({"partitioning": "hash", "num_partitions": 0}, "needs num_partitions"),
        ({"num_partitions": 4}, 'belong to partitioning="hash"'),
        ({"on_new_checkpoint": "ask"}, "use one of refuse, adopt"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    """When the writer is built, with the next step."""
    with pytest.raises(ConfigError, match=message):
        WriterOptions(**options)


def test_the_whole_partition_is_read_before_the_sink_is_touched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction must never wait for Spark, and its input can be read only once."""
    seen: list[str] = []

    class Recording(Memory):
        def apply(self, unit: Unit, rows: Rows) -> Outcome:
            seen.append(f"apply {len(rows)}")
            return Applied()

    def batches() -> Any:
        for n in range(3):
            yield pa.record_batch({"c0": [n], HASH_COLUMN: pa.array([n], pa.int64())})
        seen.append("end of input")

    context = SimpleNamespace(partitionId=lambda: 0, stageId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr(task, "_context", lambda: context)
    (report,) = task.WritePass(Recording(), ("n",), "w", 0, 1, "t")(batches())
    assert seen == ["end of input", "apply 3"]
    found = task.Report.of_row(tuple(report.to_pylist()[0].values()))
    assert (found.outcome, found.fingerprint) == (Applied(), Fingerprint(3, 3))


@pytest.mark.parametrize(
    "key", [BinaryType(), DateType(), TimestampType(), StructType([StructField("a", DateType())])]
)
def test_maps_whose_keys_json_would_harm_are_refused(key: DataType) -> None:
    """Spark writes such keys as days, as microseconds, or as an address in memory."""
    harmed = MapType(key, StringType())
    for kind in (harmed, ArrayType(harmed), StructType([StructField("m", harmed)])):
        schema = StructType([StructField("m", MapType(StringType(), kind))])
        with pytest.raises(ConfigError, match="map with keys of type"):
            describe_columns(SimpleNamespace(schema=schema))  # type: ignore[arg-type]


class Point(UserDefinedType):  # type: ignore[type-arg]
    """A user's own type, kept by Spark as a double."""

    @classmethod
    def sqlType(cls) -> DataType:
        return DoubleType()

    @classmethod
    def module(cls) -> str:
        return __name__


@pytest.mark.parametrize(
    "kind", [DayTimeIntervalType(), YearMonthIntervalType(), CalendarIntervalType(), Point()]
)
def test_types_that_no_sink_keeps_are_refused_at_any_depth(kind: DataType) -> None:
    """M11: Spark's JSON would write them as text of its own, or fail in the job."""
    for outer in (
        kind,
        ArrayType(kind),
        StructType([StructField("a", MapType(StringType(), kind))]),
    ):
        schema = StructType([StructField("m", outer)])
        with pytest.raises(ConfigError, match=f"'m' has type .*{kind.simpleString()}"):
            describe_columns(SimpleNamespace(schema=schema))  # type: ignore[arg-type]
    named = StructType([StructField("interval", StringType())])
    assert describe_columns(SimpleNamespace(schema=StructType([StructField("m", named)])))  # type: ignore[arg-type]
