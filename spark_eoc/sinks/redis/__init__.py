"""Exactly-once into Redis and Valkey."""

from spark_eoc.sinks.redis.writer import RedisWriter

__all__ = ["RedisWriter"]
