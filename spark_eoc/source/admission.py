"""How much one batch may take, and into how many partitions it is split: pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_eoc.errors import ConfigError
from spark_eoc.source.options import SourceOptions


@dataclass(frozen=True)
class Admission:
    """Limits of one batch; None is no limit. A batch holds at least one record, if there is one."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int = 0


def admission_of(options: SourceOptions, limit: object | None) -> Admission:
    """What the engine's ``limit`` and the options together allow.

    The engine hands back the one limit that ``getDefaultReadLimit`` gave, so the options' other
    limit is added here. ``ReadAllAvailable`` stands for all there is, whatever the options say
    (``Trigger.Once``). None comes from pyspark 4.0 and 4.1, which know no limits: the options
    alone decide there. Raises ConfigError for a kind of limit that this source doesn't know.
    """
    if limit is None:
        return Admission(options.max_rows_per_trigger, options.max_bytes_per_trigger)
    kind = type(limit).__name__
    if kind == "ReadAllAvailable":
        return Admission()
    if kind == "ReadMaxRows":
        return Admission(_field(limit, "max_rows"), options.max_bytes_per_trigger)
    if kind == "ReadMaxBytes":
        return Admission(options.max_rows_per_trigger, _field(limit, "max_bytes"))
    if kind == "ReadMinRows":
        return Admission(
            options.max_rows_per_trigger,
            options.max_bytes_per_trigger,
            min_rows=_field(limit, "min_rows"),
        )
    raise ConfigError(
        f"Spark asks for a batch by {kind}, a limit that replayable_socket doesn't know",
        next_step="use a release of spark_eoc that supports this version of Spark",
        limit=kind,
    )


def default_limit_of(options: SourceOptions) -> tuple[str, dict[str, int]]:
    """Class name and arguments of the one limit that Spark shall hand to ``latestOffset``."""
    if options.max_rows_per_trigger is not None:
        return "ReadMaxRows", {"max_rows": options.max_rows_per_trigger}
    if options.max_bytes_per_trigger is not None:
        return "ReadMaxBytes", {"max_bytes": options.max_bytes_per_trigger}
    return "ReadAllAvailable", {}


def partitions_of(options: SourceOptions, records: int) -> int:
    """Into how many partitions a batch of ``records`` is split; never more than records."""
    wanted = max(options.min_partitions, -(-records // options.max_rows_per_partition))
    return max(1, min(wanted, records))


def _field(limit: Any, name: str) -> int:
    number = getattr(limit, name, None)
    if type(number) is not int:
        raise ConfigError(
            f"Spark's limit {limit!r} has no whole number {name}",
            next_step="use a release of spark_eoc that supports this version of Spark",
            limit=type(limit).__name__,
        )
    return number
