"""Everything that tests share is shipped in ``spark_eoc.testing.plugin``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

from spark_eoc.sinks import task


def pytest_configure() -> None:
    """Where ``.ci/servers`` puts what it fetches."""
    fetched = Path(__file__).parent.parent / ".setup" / "servers"
    os.environ.setdefault("SPARK_EOC_SERVERS", str(fetched))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: two processes share the suite by file, and neither should be left
    alone with one at the end."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


@pytest.fixture(autouse=True)
def classes_keep_their_modules() -> Iterator[None]:
    """Loading here what was pickled by value gives the package's own classes methods with other
    globals: a later test that patches a module would patch nothing."""
    yield
    method = task.WritePass.__call__
    assert isinstance(method, FunctionType)
    assert method.__globals__ is vars(task), "load it in a process of its own"
