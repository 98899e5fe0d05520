"""``eoc_surgery``: a query on a warm Spark, stopped, its checkpoint edited, and started again."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_eoc.errors import ConfigError
from spark_eoc.testing import surgery, tiers
from spark_eoc.testing.chaos import Expect, expected, require_empty, verdict
from spark_eoc.testing.checker import TWICE, Verdict
from spark_eoc.testing.function_run import check_query
from spark_eoc.testing.inputs import made_up
from spark_eoc.testing.place import Place
from spark_eoc.testing.rows import FunctionRows, Rows, check_rows
from spark_eoc.testing.surgery import OPERATIONS, Operation
from spark_eoc.testing.tiers import Tier
from spark_eoc.testing.transcript import Transcript

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_eoc.testing.plugin import Database
    from spark_eoc.testing.servers import Redis, SqlServer

Query = Callable[..., Any]

#: Files before the operation and after it, and lines in each.
_BEFORE, _AFTER, _LINES = 3, 2, 20
#: Between a query's end and Spark's word about it there are milliseconds.
_ENDED_S = 10


@dataclass(frozen=True)
class SurgeryReport:
    """What a query did on an edited checkpoint.

    ``refused`` is the error with which it, or Spark, would not go on; the true checkpoint was then
    put back, and the query started again. ``doubled`` counts the rows that were there twice before
    that; ``verdict`` is over everything, at the end.
    """

    operation: Operation
    refused: str | None
    doubled: int
    verdict: Verdict

    @property
    def exactly_once(self) -> bool:
        """Nothing lost or twice, neither when it refused nor at the end."""
        return self.verdict.clean and not self.doubled

    def require_exactly_once(self) -> None:
        """Raises AssertionError with what was found; or a harmless operation was refused."""
        if not self.exactly_once:
            raise AssertionError(str(self))
        if self.operation.harmless and self.refused is not None:
            raise AssertionError(f"{self.operation.name} is harmless, but: {self.refused}")

    def __str__(self) -> str:
        how = "went on" if self.refused is None else f"refused: {self.refused}"
        twice = f", {self.doubled} rows twice before it refused" if self.doubled else ""
        return f"{self.operation.name} ({self.operation.what}): {how}{twice}; {self.verdict}"


class SurgeryRunner:
    """What the fixture ``eoc_surgery`` is; one call is one operation on a fresh checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self._spark = spark
        self._folder = folder
        self._seed = seed
        self._calls = 0

    def __call__(
        self,
        query: Query,
        rows: Callable[[], Iterable[Any]] | Rows,
        operation: str,
        *,
        mariadb: SqlServer | Database | None = None,
        redis: Redis | None = None,
        expect: Expect | None = None,
    ) -> SurgeryReport:
        """Runs ``query(spark, place)``, a function that starts one streaming query over the text
        files in ``place.input`` with its checkpoint in ``place.checkpoint``; ``rows`` reads its
        sink; ConfigError where it holds rows before. ``operation`` is a name of
        :data:`~spark_eoc.testing.surgery.OPERATIONS`; ``place.mysql_url`` and ``redis_url`` are
        those of the servers that are given.
        """
        if operation not in OPERATIONS:
            raise ConfigError(
                f"there is no operation {operation!r}",
                next_step=f"use one of {', '.join(OPERATIONS)}",
            )
        self._calls += 1
        folder = self._folder / f"surgery-{self._calls}"
        (folder / "input").mkdir(parents=True)
        place = Place(
            folder=str(folder),
            input=str(folder / "input"),
            checkpoint=str(folder / "checkpoint"),
            mysql_url=mariadb.url() if mariadb is not None else "",
            redis_url=redis.url() if redis is not None else "",
        )
        check_query(query)
        check_rows(rows)
        reader = FunctionRows(rows) if callable(rows) else rows
        require_empty(reader)
        patient = _Patient(self._spark, query, place, seed=self._seed, rows=reader, expect=expect)
        with tiers.case(Tier.SURGERY):
            return patient.undergo(OPERATIONS[operation])


class _Patient:
    """One query and its checkpoint, from healthy to the verdict."""

    def __init__(
        self,
        spark: SparkSession,
        query: Query,
        place: Place,
        *,
        seed: int,
        rows: Rows,
        expect: Expect | None,
    ) -> None:
        self._spark, self._query, self._place = spark, query, place
        self._lines = made_up((_BEFORE + _AFTER) * _LINES, seed)
        self._files = 0
        self._rows, self._expect = rows, expect

    def undergo(self, operation: Operation) -> SurgeryReport:
        checkpoint = Path(self._place.checkpoint)
        older, true = checkpoint.with_name("older"), checkpoint.with_name("true")
        self._feed()
        self._run()
        if not surgery.batches(checkpoint / "commits"):
            raise ConfigError(
                "the query committed no batch in place.checkpoint",
                next_step="let it read place.input, and give it that checkpointLocation",
            )
        shutil.copytree(checkpoint, older)
        for _ in range(_BEFORE - 1):
            self._feed()
        self._run()
        shutil.copytree(checkpoint, true)
        operation.operate(surgery.Place(checkpoint, older))
        for _ in range(_AFTER):
            self._feed()
        refused = self._try()
        doubled = self._verdict(self._rows.values()).count(TWICE)
        if refused is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)
            shutil.copytree(true, checkpoint)
            self._run()
        found = self._verdict(self._rows.values())
        return SurgeryReport(operation, refused, doubled if refused else 0, found)

    def _feed(self) -> None:
        lines = self._lines[self._files * _LINES : (self._files + 1) * _LINES]
        self._files += 1
        hidden = Path(self._place.input) / f".{self._files}"
        hidden.write_bytes(b"".join(line + b"\n" for line in lines))
        hidden.rename(hidden.with_name(f"{self._files}.txt"))

    def _run(self) -> None:
        """Until everything that was fed is through; raises what the query ended with."""
        there = {query.id for query in self._spark.streams.active}
        self._spark.streams.resetTerminated()
        self._query(self._spark, self._place)
        queries = [query for query in self._spark.streams.active if query.id not in there]
        # A query that has ended already is heard of there: it raises what it ended with.
        if not queries and not self._spark.streams.awaitAnyTermination(_ENDED_S):
            raise ConfigError(
                "the function started no streaming query",
                next_step="start one in it over place.input, with place.checkpoint",
            )
        try:
            for query in queries:
                query.processAllAvailable()
        finally:
            for query in queries:
                query.stop()

    def _try(self) -> str | None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  whatever Spark or the writer refuses with
            return _told(error)
        return None

    def _verdict(self, values: Counter[bytes]) -> Verdict:
        given = Transcript.of("surgery", self._lines[: self._files * _LINES])
        return verdict(expected(given, self._expect), values)


def _told(error: Exception) -> str:
    """What the writer said, out of what Spark made of it."""
    lines = str(error).split("\n")
    ours = [line for line in lines if line.startswith("spark_eoc.errors.")]
    return (ours or lines)[0].removeprefix("spark_eoc.errors.") or type(error).__name__
