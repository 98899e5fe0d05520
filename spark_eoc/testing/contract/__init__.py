"""The parts of :class:`spark_eoc.testing.sink_contract.SinkContract`."""
