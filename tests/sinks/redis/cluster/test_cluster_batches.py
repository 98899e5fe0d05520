"""Batches through real Spark into a real cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_eoc import RedisWriter
from spark_eoc.errors import BadRowError
from spark_eoc.sinks.redis.cluster.slots import slot_of
from spark_eoc.testing.redis_cluster import RedisCluster
from tests.sinks.calls import Query
from tests.sinks.redis.cluster.clusters import stored


@pytest.mark.compat
def test_a_batch_that_fails_in_one_slot_is_completed_by_the_next_run(
    spark: SparkSession, redis_cluster: RedisCluster, prefix: str
) -> None:
    """E7, and a hash tag in the key: every partition writes to many slots; one slot of one refuses;
    a new run compares what is applied, slot by slot, and writes the rest."""
    frame = spark.range(0, 400, 1, 3).select(
        (F.col("id") * 7 % 40).alias("k"), (F.col("id") + 1).alias("n")
    )
    stranger = f"{prefix}:13"

    def writer(**more: Any) -> RedisWriter:
        return RedisWriter(
            redis_cluster.url(),
            key=prefix + ":{k}",
            command="hincrby",
            ledger=f"{prefix}_ledger",
            chunk_rows=3,
            **more,
        )

    query = Query(spark)
    query.call(writer(), frame, 0)
    owner = redis_cluster.owner(slot_of(stranger.encode()))
    owner.ask("RENAME", stranger, f"{{{stranger}}}kept")
    owner.ask("SET", stranger, "text")
    with pytest.raises(BadRowError, match=stranger):
        query.call(writer(), frame, 1)
    owner.ask("RENAME", f"{{{stranger}}}kept", stranger)
    query.restart()
    last = writer()
    query.call(last, frame, 1)
    query.call(last, frame.filter("k < 0"), 2)
    query.restart()
    query.call(writer(), frame.filter("k < 0"), 2)
    sums: Counter[bytes] = Counter()
    for i in range(400):
        sums[b"%d" % (i * 7 % 40)] += 2 * (i + 1)
    assert {key: int(n) for key, n in stored(redis_cluster, prefix).items()} == sums
