"""The same tests on every server that the writer promises to know."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_eoc.testing.plugin import Database


@pytest.fixture(
    params=[pytest.param("mariadb", marks=pytest.mark.compat), "mariadb11", "mysql"],
)
def database(request: pytest.FixtureRequest, database_on: Callable[[str], Database]) -> Database:
    """A fresh database on each server in turn; on the oldest pyspark on one of them only."""
    return database_on(request.param)
