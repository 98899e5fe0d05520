"""LOAD DATA LOCAL from memory: rows as the text of a file that there is not, and its protocol.

``LOCAL`` lets a server ask for any file of this host, at any statement. So nothing here opens a
file: PyMySQL's own support stays off, which refuses every such request, and :func:`send` answers
the one it caused itself, by the name that it made up for it.

``LOCAL`` is also IGNORE, in strict mode too: what an INSERT refuses is left out or changed, with a
warning. So a unit counts only if there is no warning and as many rows as were sent; whatever is
amiss ends as :class:`NotLoadedError`, and INSERT statements say what it is.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pymysql
from pymysql.constants import COMMAND
from pymysql.protocol import OKPacketWrapper

from spark_eoc.errors import BadRowError, SinkError
from spark_eoc.sinks.mysql.connection import TRANSIENT, max_packet, message, number
from spark_eoc.sinks.mysql.layout import Layout
from spark_eoc.sinks.mysql.render import Fit, blocks, content, one_chunk, prepared
from spark_eoc.sinks.mysql.statement import Load
from spark_eoc.sinks.mysql.target import TableColumn
from spark_eoc.sinks.rows import Rows
from spark_eoc.sinks.store import Column

LOGGER = logging.getLogger("spark_eoc.sinks")
#: Bytes of one packet of rows.
_PACKET_BYTES = 256 * 1024
_SPECIAL = re.compile(rb"[\\\t\n]")
_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"))


class NotLoadedError(Exception):
    """Nothing was loaded that may stay: ROLLBACK, and send INSERT statements. Never leaves the
    sink; its text says why."""


def load_rows(connection: Any, layout: Layout, rows: Rows) -> None:
    """Loads the written columns of all rows in one statement.

    NotLoadedError unless each is there unharmed; the transaction is then only good for ROLLBACK.
    Errors that may pass are raised as they are.
    """
    table = layout.written(rows).table
    size = min(_PACKET_BYTES, max_packet(connection))
    try:
        data = _packets(table, layout.fits, size, rows.release)
        affected, warnings = send(connection, _statement(table, layout).sql, data)
    except (BadRowError, pa.ArrowInvalid) as error:
        raise NotLoadedError(str(error)) from error
    except pymysql.MySQLError as error:
        if number(error) in TRANSIENT:
            raise
        raise NotLoadedError(f"error {number(error)}, {message(error)}") from error
    if warnings or affected != len(rows):
        raise NotLoadedError(f"{affected} of {len(rows)} rows, {warnings} warnings")


def _statement(table: pa.Table, layout: Layout) -> Load:
    """Bytes of any kind need a file of bytes, from which the texts are then taken."""
    raw = any(not _is_text(field.type) and _is_free(field.type) for field in table.schema)
    texts = [layout.names[field.name] for field in table.schema if _is_text(field.type)]
    columns = list(layout.names.values())
    return Load(layout.database, layout.table, columns, texts if raw else (), raw)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_free(kind: pa.DataType) -> bool:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return bool(_is_text(kind) or binary)


def send(connection: Any, sql: Callable[[str], str], data: Iterable[bytes]) -> tuple[int, int]:
    """Sends ``sql`` of a file name, and ``data`` as that file: affected rows, and warnings.

    SinkError if the server asks for another file, which it does not get. After any error the
    connection is closed, since the server waits for the rest of the file.
    """
    name = secrets.token_hex(16)
    try:
        connection._execute_command(COMMAND.COM_QUERY, sql(name))
        _check_request(connection._read_packet(), name.encode())
        for part in data:
            connection.write_packet(part)
        connection.write_packet(b"")
        answer = OKPacketWrapper(connection._read_packet())
    except BaseException:
        connection._force_close()
        raise
    return int(answer.affected_rows), int(answer.warning_count)


def _check_request(request: Any, name: bytes) -> None:
    if not request.is_load_local_packet():
        raise NotLoadedError("the server did not ask for the rows")
    asked = request.get_all_data()[1:]
    if asked != name:
        raise SinkError(
            f"the server asked for the file {asked!r:.200} of this host, instead of the rows",
            applied="nothing of this partition; the file was not read",
            next_step="don't trust this server; without load_data no server is listened to",
        )


def _packets(
    rows: pa.Table, fits: Mapping[str, Fit], size: int, release: Callable[[], None]
) -> Iterator[bytes]:
    for block in blocks(rows):
        text = file_text(block, fits)
        first, end = _edges(text)
        data = memoryview(text.buffers()[2])
        for start in range(first, end, size):
            yield bytes(data[start : min(start + size, end)])
        release()


def _edges(text: pa.Array) -> tuple[int, int]:
    offsets = memoryview(text.buffers()[1]).cast("i")
    return offsets[text.offset], offsets[text.offset + len(text)]


def file_text(table: pa.Table, fits: Mapping[str, Fit]) -> pa.Array:
    """One line a row: fields end at a tab, the line at a newline, NULL is ``\\N``."""
    parts: list[pa.Array | pa.Scalar] = []
    for name in table.column_names:
        column = one_chunk(table.column(name))
        if _is_text(column.type):
            # An incomplete character would take the tab after it for its own.
            column.validate(full=True)
        literal = prepared(column, fits.get(name, Fit()), name)
        parts += [_escaped(literal.text) if literal.free else literal.text, _scalar(b"\t")]
    parts[-1] = _scalar(b"\n")
    options = {"null_handling": "replace", "null_replacement": "\\N"}
    return pc.binary_join_element_wise(*parts, _scalar(b""), **options)


def _escaped(column: pa.Array) -> pa.Array:
    if _SPECIAL.search(content(column)):
        for special, escape in _ESCAPES:
            column = pc.replace_substring(column, special, escape)
    return column


def _scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def can_load(
    connection: Any, written: Mapping[str, Column], matched: Mapping[str, TableColumn]
) -> bool:
    """Whether the server takes LOAD DATA LOCAL, and all columns as an INSERT would store them;
    a warning says why not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@local_infile")
        ((allowed,),) = cursor.fetchall()
    reasons = [] if allowed else ["the server has local_infile=OFF"]
    for name, found in matched.items():
        if found.type == "bit":
            reasons.append(f"column {found.name!r} is BIT, which would take the digits for bits")
        if written[name].type in ("float", "double") and found.type not in ("float", "double"):
            reasons.append(f"column {found.name!r} would spell a {written[name].type} otherwise")
    if reasons:
        LOGGER.warning("load_data=True is not used, INSERT is: %s", "; ".join(reasons))
    return not reasons
