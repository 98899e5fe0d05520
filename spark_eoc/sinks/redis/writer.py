"""``RedisWriter``: what users give to ``foreachBatch``."""

from __future__ import annotations

from collections.abc import Sequence

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.replicas import Replicas
from spark_eoc.sinks.redis.sinks import sink_for
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.redis.url import parse_url
from spark_eoc.sinks.writer import Writer, WriterOptions


class RedisWriter(Writer):
    """Writes every batch to Redis exactly once, with one command a row.

    ``RedisWriter("redis://app@host/0", key="user:{user_id}", command="hset")``

    * the URL is ``redis://`` or ``rediss://`` (TLS), ``unix://``,
      ``redis+sentinel://user@host:26379,host:26379/master-name/0`` or
      ``redis+cluster://user@host:6379,host:6379`` with some of the cluster's nodes.
    * ``key``: a template; ``{column}`` stands for a column. With several columns, ``%`` and the
      first character of each separator are written ``%XX`` inside values.
    * ``command``: set, hset, incrby, incrbyfloat, hincrby, sadd, zadd, zincrby, rpush, xadd, del.
    * ``fields``: for hset, hincrby, xadd; default every column that the key does not name.
    * ``value``: for set, incrby, incrbyfloat, sadd, rpush. ``member``, ``score``: for zadd,
      zincrby.
    * ``ttl``: seconds, or a column with seconds; set at every write.
    * ``on_null``: for hset: ``remove`` (default) the field, ``keep`` it as it is, or ``fail``.
    * ``password``: if not in the URL or in the environment (SPARK_EOC_REDIS_PASSWORD).
    * ``ledger``: prefix of the ledger's keys, ``spark_eoc``. ``chunk_rows``: operations in one
      script, 5,000 (and at most 8 MiB). ``retry_minutes``: how long errors that may pass, such as
      a server that restarts or is full, are tried again.
    * ``wait_replicas``: how many replicas must have each unit and each step of the ledger before
      the writer goes on, 0. ``wait_timeout_ms``: how long it waits for them at a time, 1,000; too
      few are tried again for ``retry_minutes``, then SinkUnavailableError.
    * ``atomicity="batch"``: tasks stage their rows under the ledger's prefix, and one script moves
      all of a batch to its keys, or nothing. Up to 300,000 keys and values and 32 MiB a batch;
      above that BatchTooLargeError is raised, with nothing written. Not on Cluster.
    * ``dead_letter_key``: with ``on_bad_row="dead_letter"`` the stream for rows that are refused
      for their content (NULL or nothing in the key, a value that the command can't take, a bad TTL,
      a key of another type, a counter that is none or leaves ±2^62: then all rows that a chunk adds
      to it), default ``<ledger>:dead_letters``. An entry is written by the script that writes the
      rows beside it. More than ``dead_letter_limit`` of one batch (1,000; at most 10,000) are a
      DeadLetterLimitError, which leaves nothing of its chunk. In batch atomicity the script that
      publishes writes the entries, and the limit leaves nothing of the batch; until then Redis also
      holds the batch's rows as the frame gave them, compressed. On Cluster each slot has a stream
      of its own, ``<dead_letter_key>:{…}``, and rows without a key have one slot for them all.
    * the others are those of every writer: see :class:`~spark_eoc.sinks.writer.WriterOptions`.

    Rows of one key are applied in the order in which they arrive in their partition for set,
    hset, zadd, rpush and xadd. Where one key holds more rows than a chunk, a batch that was cut
    off inside that key can only go on if its rows arrive in the same order again; it is refused
    otherwise.
    """

    def __init__(
        self,
        url: str,
        key: str,
        command: str,
        *,
        fields: Sequence[str] | None = None,
        value: str | None = None,
        member: str | None = None,
        score: str | None = None,
        ttl: int | str | None = None,
        on_null: str = "remove",
        password: str | None = None,
        ledger: str = "spark_eoc",
        chunk_rows: int = 5000,
        retry_minutes: float = 5.0,
        wait_replicas: int = 0,
        wait_timeout_ms: int = 1000,
        writer_id: str | None = None,
        checkpoint_location: str | None = None,
        atomicity: str = "partition",
        partitioning: str = "source",
        num_partitions: int | None = None,
        partition_by: Sequence[str] = (),
        on_bad_row: str = "fail",
        dead_letter_limit: int | None = None,
        dead_letter_key: str | None = None,
        on_new_checkpoint: str = "refuse",
    ) -> None:
        if isinstance(fields, str) or isinstance(partition_by, str):
            raise ConfigError(
                "fields and partition_by are lists", next_step='write fields=["column"]'
            )
        told = Command(
            command,
            KeyTemplate.parse(key),
            None if fields is None else tuple(fields),
            value,
            member,
            score,
            ttl,
            on_null,
        )
        address = parse_url(url, password)
        replicas = Replicas(wait_replicas, wait_timeout_ms)
        if dead_letter_key is not None and on_bad_row != "dead_letter":
            raise ConfigError(
                'dead_letter_key belongs to on_bad_row="dead_letter"',
                next_step='pass on_bad_row="dead_letter" with it, or leave it out',
            )
        target = Target(
            address, told, ledger, chunk_rows, retry_minutes * 60, replicas, dead_letter_key
        )
        options = WriterOptions(
            writer_id=writer_id,
            checkpoint_location=checkpoint_location,
            atomicity=atomicity,
            partitioning=partitioning,
            num_partitions=num_partitions,
            partition_by=tuple(partition_by),
            on_bad_row=on_bad_row,
            dead_letter_limit=dead_letter_limit,
            on_new_checkpoint=on_new_checkpoint,
        )
        super().__init__(sink_for(target), options)
