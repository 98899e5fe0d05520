"""Installed as the top-level module ``pyspark_eoc``, so that Spark finds the source by itself.

At the first use of an unknown format Spark imports every installed top-level module named
``pyspark_*`` and takes its ``DefaultSource``. One that raises hides all others, so this one
imports next to nothing, and can't raise. What it stands for is imported when it is used.
"""

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # noqa: BLE001, S110  whatever is wrong with pyspark, it isn't ours to report
    pass
else:

    class DefaultSource(DataSource):
        """``spark.readStream.format("replayable_socket")`` without ``spark_eoc.register``."""

        def __init__(self, options):  # type: ignore[no-untyped-def]
            from spark_eoc.source.replayable_socket import (  # noqa: PLC0415
                ReplayableSocketSource,
            )

            self._source = ReplayableSocketSource(options)

        @classmethod
        def name(cls) -> str:
            return "replayable_socket"

        def schema(self):  # type: ignore[no-untyped-def]
            return self._source.schema()

        def streamReader(self, schema):  # type: ignore[no-untyped-def]
            return self._source.streamReader(schema)
