"""What a unit sends on its open transaction beside its rows: the text around them, deleted keys."""

from __future__ import annotations

from typing import Any

from spark_eoc.sinks.mysql.connection import flavour, max_packet
from spark_eoc.sinks.mysql.layout import Layout
from spark_eoc.sinks.mysql.render import Around, statements
from spark_eoc.sinks.mysql.statement import Delete, Insert
from spark_eoc.sinks.rows import RELEASE_EVERY, Rows

#: Bytes of one INSERT; the server needs as much time a row from 16 KiB to 1 MiB (measured), and a
#: lock wait rolls back and repeats no more than this at a time.
STATEMENT_BYTES = 128 * 1024


def around(connection: Any, insert: Insert, size: int) -> Around:
    """What surrounds the rows of ``insert`` on this server."""
    tail = insert.tail(flavour(connection))
    return Around(insert.head(), tail, size, max_packet(connection))


def delete_keys(connection: Any, layout: Layout, keys: Rows, size: int) -> None:
    """Deletes the rows with these keys, compared as the table's own unique index compares them.

    The keys go through a temporary table with the same columns, so that they are converted as an
    INSERT would convert them; a list of literals compares by other rules (a BIGINT and a text
    meet as DOUBLE). Such a table's DDL does not commit.
    """
    if len(keys):
        delete = Delete(layout.database, layout.table, [layout.names[name] for name in layout.key])
        connection.query(delete.create())
        text = around(connection, delete.keys(), size)
        for number, (sql, _) in enumerate(statements(keys.table, layout.fits, text)):
            connection.query(sql)
            if number % RELEASE_EVERY == 0:
                keys.release()
        connection.query(delete.sql())
