"""The same tests on every server that the writer promises to know."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_eoc.testing.plugin import Database

_OLDEST = pytest.param("mariadb", marks=pytest.mark.compat)


@pytest.fixture(params=[_OLDEST, "mysql"])
def database(request: pytest.FixtureRequest, database_on: Callable[[str], Database]) -> Database:
    """A fresh database on each flavour in turn; on the oldest pyspark on one of them only."""
    return database_on(request.param)


@pytest.fixture(params=[_OLDEST, "mariadb11", "mysql"])
def every_database(
    request: pytest.FixtureRequest, database_on: Callable[[str], Database]
) -> Database:
    """The same, on the newer MariaDB as well: for the few tests that cover the most."""
    return database_on(request.param)
