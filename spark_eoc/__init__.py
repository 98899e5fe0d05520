"""Exactly-once for Spark Structured Streaming, from the socket to the database."""

from spark_eoc import errors

__all__ = ["errors"]
__version__ = "0.1.0"
