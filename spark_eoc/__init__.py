"""Exactly-once for Spark Structured Streaming, from the socket to the database."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_eoc import errors

if TYPE_CHECKING:
    from spark_eoc.registration import register
    from spark_eoc.sinks.fan_out import fan_out
    from spark_eoc.sinks.mysql.writer import MySQLWriter
    from spark_eoc.sinks.redis.writer import RedisWriter
    from spark_eoc.source.replayable_socket import ReplayableSocketSource

__all__ = [
    "MySQLWriter",
    "RedisWriter",
    "ReplayableSocketSource",
    "errors",
    "fan_out",
    "register",
]
__version__ = "0.1.0"

# Imported when first asked for: a producer or a receiver daemon needs neither pyspark nor drivers.
_HOMES = {
    "MySQLWriter": "spark_eoc.sinks.mysql.writer",
    "RedisWriter": "spark_eoc.sinks.redis.writer",
    "ReplayableSocketSource": "spark_eoc.source.replayable_socket",
    "fan_out": "spark_eoc.sinks.fan_out",
    "register": "spark_eoc.registration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
