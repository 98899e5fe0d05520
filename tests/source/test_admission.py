"""How much one batch may take."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from spark_eoc.errors import ConfigError
from spark_eoc.source.admission import Admission, admission_of, default_limit_of, partitions_of
from spark_eoc.source.options import SourceOptions

BOTH = SourceOptions("/b", max_rows_per_trigger=10, max_bytes_per_trigger=1000)


@dataclass
class ReadAllAvailable:
    pass


@dataclass
class ReadMaxRows:
    max_rows: int


@dataclass
class ReadMaxBytes:
    max_bytes: int


@dataclass
class ReadMinRows:
    min_rows: int


@dataclass
class ReadMaxFiles:
    max_files: int


@pytest.mark.parametrize(
    ("limit", "allowed"),
    [
        (None, Admission(10, 1000)),
        (ReadAllAvailable(), Admission()),
        (ReadMaxRows(7), Admission(7, 1000)),
        (ReadMaxBytes(70), Admission(10, 70)),
        (ReadMinRows(3), Admission(10, 1000, min_rows=3)),
    ],
)
def test_the_engines_limit_and_the_options_hold_together(limit, allowed):
    """S3: each kind by its real field; the engine carries one limit, the other is added."""
    assert admission_of(BOTH, limit) == allowed


def test_an_unknown_kind_is_named():
    """S3: silence would be a batch without any limit."""
    with pytest.raises(ConfigError, match="ReadMaxFiles"):
        admission_of(BOTH, ReadMaxFiles(1))


def test_a_renamed_field_is_named():
    """S3: the documentation calls it maxRows; a release that really did must not mean no limit."""

    @dataclass
    class ReadMaxRows:
        maxRows: int

    with pytest.raises(ConfigError, match="max_rows"):
        admission_of(BOTH, ReadMaxRows(1))


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        (BOTH, ("ReadMaxRows", {"max_rows": 10})),
        (SourceOptions("/b", max_bytes_per_trigger=5), ("ReadMaxBytes", {"max_bytes": 5})),
        (SourceOptions("/b"), ("ReadAllAvailable", {})),
    ],
)
def test_one_limit_is_handed_to_the_engine(options, limit):
    assert default_limit_of(options) == limit


@pytest.mark.parametrize(
    ("least", "rows", "records", "partitions"),
    [
        (1, 250_000, 0, 1),
        (1, 250_000, 1, 1),
        (1, 250_000, 250_000, 1),
        (1, 250_000, 250_001, 2),
        (4, 250_000, 10, 4),
        (4, 250_000, 3, 3),
        (4, 10, 100, 10),
    ],
)
def test_partitions_follow_rows_within_bounds(least, rows, records, partitions):
    """A partition costs 30 to 65 ms: never more than needed, never one without a record."""
    options = SourceOptions("/b", min_partitions=least, max_rows_per_partition=rows)
    assert partitions_of(options, records) == partitions
