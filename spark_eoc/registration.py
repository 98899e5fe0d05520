"""``spark_eoc.register(spark)``: the source, and the package itself, made known to Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.errors import AnalysisException

from spark_eoc.source.replayable_socket import ReplayableSocketSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def travel_by_value() -> None:
    """From now on, what is pickled of this package takes its code along.

    Spark's streaming source runner has no ``--py-files`` on its path, and a worker of Spark
    Connect may not have the package at all. Spark pickles with its own copy of cloudpickle, so a
    registration with the package of that name would do nothing.
    """
    package = sys.modules[__name__.partition(".")[0]]
    cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]


def register(spark: SparkSession) -> None:
    """Makes ``format("replayable_socket")`` known to this session; may be called again.

    Neither connects nor locks anything. Works on Classic and Connect, from an installed package
    as from a zip given with ``--py-files``.
    """
    travel_by_value()
    try:
        spark.dataSource.register(ReplayableSocketSource)
    except AnalysisException as error:
        # Spark has found the installed pyspark_eoc already, and lets nobody replace it: it is
        # the same source.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
