"""Everything that tests share is shipped in ``spark_eoc.testing.plugin``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: two processes share the suite by file, and neither should be left
    alone with one at the end."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)
