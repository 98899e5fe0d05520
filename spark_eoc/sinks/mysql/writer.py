"""``MySQLWriter``: what users give to ``foreachBatch`` to write to MySQL or MariaDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.address import parse_url
from spark_eoc.sinks.mysql.sink import MySQLSink
from spark_eoc.sinks.writer import Writer, WriterOptions

#: Into how many partitions rows are put by their key, where the user does not say. It is fixed,
#: because it must be the same when a batch is run again.
NUM_PARTITIONS = 8


class MySQLWriter(Writer):
    """Writes each batch to one InnoDB table exactly once.

    Give it to ``foreachBatch``. A partition is one transaction: its rows and its ledger entry
    are committed together, so after any crash a batch goes on where it was left, and a batch that
    Spark runs again is compared and not written again.

    ``url`` is ``mysql://user@host:3306/database``; the password comes from ``password``, the URL or
    the environment variable ``SPARK_EOC_MYSQL_PASSWORD``, and is shown nowhere. TLS, sockets and
    time limits are options of the URL, see :mod:`spark_eoc.sinks.mysql.address`. ``mode`` is
    ``append`` or ``upsert``; an upsert needs ``key``, the columns of a primary key or unique index,
    and may ``merge`` other columns by ``replace`` (default), ``add``, ``min``, ``max``, ``keep`` or
    ``coalesce``.

    ``delete_when`` is a condition of Spark's SQL over the frame's columns: a row for which it is
    true deletes its key (NULL is not true). ``order_by`` names the columns that put a batch's rows
    of one key in order, and they count as if applied one after another; batches follow each other
    as they come. Rows of a key that differ and which ``order_by`` leaves equal, or which have none,
    are refused: a shuffle leaves no order of arrival. With either, rows are always partitioned by
    ``key`` (``num_partitions``, 8, must stay the same over restarts). What a key's rows amount to
    is decided before any is sent, so where one that counts is put aside as a dead letter, all that
    count for its key are, and the key keeps what it had: no older row takes the place.

    ``columns`` gives the table's names of the frame's columns, ``{"user": "user_id"}``, and None
    for those that are not written, ``{"op": None}``; all other arguments name the frame's columns.
    Columns that only the table has take their default. ``create_table`` makes a table where there
    is none, with ``key`` as its primary key; ``add_columns`` adds to the table what it lacks, as
    columns that may be NULL. Nothing else of a table is ever changed.

    ``load_data`` appends by LOAD DATA LOCAL, which is faster, where the server has ``local_infile``
    on; the rows come from memory, and a server that asks for a file gets none. What it would leave
    out or change takes the way of an INSERT, after a ROLLBACK and with a line in the log.

    ``nan`` is ``error`` or ``null``. ``allow`` names what is refused otherwise: ``galera``,
    ``tidb``, ``multi_primary``, ``unique_key:<index>``. ``ledger`` begins the names of the ledger's
    tables. Errors that may pass, such as dead-locks or a server that restarts, are tried again for
    ``retry_minutes``.

    With ``atomicity="batch"`` tasks stage their rows in a table of the ledger, and the driver moves
    those that came back, completes the batch and commits: readers see the whole batch or nothing,
    and a plan whose content changes when it is run again is exactly once too. A row that only the
    target can refuse (a duplicate key, a NULL) is found then, before the batch is written.

    With ``on_bad_row="dead_letter"`` a row that is refused for its content (too long, out of range,
    NULL, a wrong value, a CHECK, a foreign key, in append mode also a key that is there) goes to
    ``dead_letter_table`` (default ``<ledger>_dead_letters``), in the transaction that writes the
    rows beside it: exactly once, too. More than ``dead_letter_limit`` of one batch (1,000) are a
    DeadLetterLimitError. Of two rows of a batch with one key, the first to be written stays. In
    batch atomicity letters are written in the publishing transaction, the limit stops the batch
    whole, and tasks stage their rows a second time, compressed, as the letters shall have them.

    Not covered: non-transactional engines (refused), servers without one primary (refused), what
    triggers do outside the database.
    """

    def __init__(
        self,
        url: str,
        table: str,
        mode: str = "append",
        key: Sequence[str] = (),
        merge: Mapping[str, str] | None = None,
        *,
        delete_when: str | None = None,
        order_by: str | Sequence[str] = (),
        columns: Mapping[str, str | None] | None = None,
        create_table: bool = False,
        add_columns: bool = False,
        load_data: bool = False,
        nan: str = "error",
        password: str | None = None,
        allow: Sequence[str] = (),
        ledger: str = "spark_eoc",
        retry_minutes: float = 5.0,
        writer_id: str | None = None,
        checkpoint_location: str | None = None,
        atomicity: str = "partition",
        partitioning: str = "source",
        num_partitions: int | None = None,
        partition_by: Sequence[str] = (),
        on_bad_row: str = "fail",
        dead_letter_limit: int | None = None,
        dead_letter_table: str | None = None,
        on_new_checkpoint: str = "refuse",
    ) -> None:
        if isinstance(key, str) or isinstance(partition_by, str):
            raise ConfigError("key and partition_by are lists", next_step='write key=["column"]')
        _check_mode(mode, key, merge)
        if dead_letter_table is not None and on_bad_row != "dead_letter":
            raise ConfigError(
                'dead_letter_table belongs to on_bad_row="dead_letter"',
                next_step='pass on_bad_row="dead_letter" with it, or leave it out',
            )
        order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        ordered = delete_when is not None or bool(order_by)
        if ordered:
            _check_ordered(mode, atomicity, on_bad_row)
            partitioning = "hash"
            num_partitions = num_partitions or NUM_PARTITIONS
            partition_by = _within(partition_by, key)
        if load_data:
            _check_load(mode, atomicity)
        if nan not in ("error", "null"):
            raise ConfigError(f"nan={nan!r} is not known", next_step="use error or null")
        sink = MySQLSink(
            address=parse_url(url, password),
            table=table,
            key=tuple(key),
            upsert=mode == "upsert",
            merge=dict(merge or {}),
            nan_as_null=nan == "null",
            allow=tuple(allow),
            ledger=ledger,
            budget_s=retry_minutes * 60,
            create_table=create_table,
            dead_letter_table=dead_letter_table,
            add_columns=add_columns,
            load_data=load_data,
            columns=dict(columns or {}),
            delete_when=delete_when,
            order_by=order_by,
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
        super().__init__(sink, options)


def _check_mode(mode: str, key: Sequence[str], merge: Mapping[str, str] | None) -> None:
    if mode not in ("append", "upsert"):
        raise ConfigError(f"mode={mode!r} is not known", next_step="use append or upsert")
    if mode == "upsert" and not key:
        raise ConfigError(
            'mode="upsert" needs a key',
            next_step='pass key=["column"], a unique index of the table',
        )
    if mode == "append" and (key or merge):
        raise ConfigError(
            'key and merge belong to mode="upsert"',
            next_step='pass mode="upsert", or leave them out',
        )


def _check_load(mode: str, atomicity: str) -> None:
    if mode != "append" or atomicity != "partition":
        raise ConfigError(
            'load_data belongs to mode="append" and atomicity="partition": LOAD DATA can\'t merge '
            "rows, and staged rows are moved by the server",
            next_step="leave load_data out",
        )


def _check_ordered(mode: str, atomicity: str, on_bad_row: str) -> None:
    if mode != "upsert":
        raise ConfigError(
            'delete_when and order_by belong to mode="upsert"',
            next_step='pass mode="upsert" and key=["column"], or leave them out',
        )
    if on_bad_row == "dead_letter" and atomicity == "batch":
        raise ConfigError(
            'on_bad_row="dead_letter" with delete_when or order_by does not go with '
            'atomicity="batch": what is found when the batch is published comes too late for what '
            "its key has deleted by then",
            next_step='use atomicity="partition", or on_bad_row="fail"',
        )


def _within(partition_by: Sequence[str], key: Sequence[str]) -> Sequence[str]:
    """By what to partition so that all rows of a key meet: the key, or some of its columns."""
    strange = [name for name in partition_by if name not in key]
    if strange:
        raise ConfigError(
            f"partition_by names {strange[0]!r}, which is not part of the key: with delete_when or "
            "order_by all rows of a key must meet in one partition",
            next_step="leave partition_by out, or name columns of the key",
        )
    return partition_by or key
