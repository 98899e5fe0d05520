"""Batches that die half-way, and go on with other options; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from spark_eoc.errors import ReplayMismatchError
from spark_eoc.sinks.writer import Writer
from spark_eoc.testing.local import JobFailedError, LocalFrame, local_run

SCHEMA = pa.schema([*((name, pa.int64()) for name in "kns"), ("f", pa.float64())])
NAN = float("nan")
Row = dict[str, Any]
CONDITIONS: dict[str, Callable[[Mapping[str, Any]], bool | None]] = {
    "n % 5 = 0": lambda row: row["n"] % 5 == 0,
    "n % 3 = 0": lambda row: row["n"] % 3 == 0,
}


def parts(*numbers_of_nan: int) -> list[list[Row]]:
    """Three partitions that share no key, ten rows each; ``f`` is NaN in some."""
    rows = [
        {"k": n % 6 + n // 10 * 10, "n": n, "s": n * 7 % 30, "f": NAN if n in numbers_of_nan else n}
        for n in range(30)
    ]
    return [rows[start : start + 10] for start in (0, 10, 20)]


@dataclass
class Query:
    """``writer(**options)`` makes a writer; each call is a run of its own."""

    writer: Callable[..., Writer]
    partitions: Sequence[Sequence[Row]] = field(default_factory=parts)
    runs: int = 0

    def call(self, fails_before: int | None = None, **options: Any) -> None:
        """Batch 0; the task of the partition ``fails_before`` never runs."""
        self.runs += 1

        def before(partition: int) -> None:
            if partition == fails_before:
                raise JobFailedError

        frame = LocalFrame(self.partitions, SCHEMA, CONDITIONS, before)
        writer = local_run(self.writer(**options), "q", f"run-{self.runs}")
        writer(frame, 0)  # type: ignore[arg-type]

    def dies(self, last: int, **options: Any) -> None:
        """Batch 0, up to its last partition."""
        with pytest.raises(JobFailedError):
            self.call(last, **options)

    def is_refused(self, name: str, **options: Any) -> None:
        """Batch 0 with other options; the message has what changed, and the next step."""
        with pytest.raises(ReplayMismatchError, match=f"{name} was .*, now .*put the options back"):
            self.call(**options)
