"""Sends lines so that each is stored exactly once: :class:`LineProducer`."""

from spark_eoc.producer.line_producer import LineProducer

__all__ = ["LineProducer"]
