"""What only some versions of pyspark have, found by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["SupportsTriggerAvailableNow", "since_4_2"]

_MODULE = "pyspark.sql.streaming.datasource"


def since_4_2(name: str) -> Any:
    """A class of pyspark's admission control; None on 4.0 and 4.1, which have none."""
    try:
        return getattr(import_module(_MODULE), name, None)
    except ImportError:
        return None


if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    SupportsTriggerAvailableNow = since_4_2("SupportsTriggerAvailableNow") or object
