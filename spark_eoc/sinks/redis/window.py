"""A stretch of a unit's rows as operations: what is held in memory at a time, and how it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.redis.cut import Cutter
from spark_eoc.sinks.redis.operations import Operations, operations, refuse
from spark_eoc.sinks.redis.refusal import RowRefusedError
from spark_eoc.sinks.redis.resp import bulk, bulks
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.text import text_column
from spark_eoc.sinks.rows import Rows

#: Rows that are worked on at a time, whatever the partition's size.
WINDOW_ROWS = 100_000


@dataclass(frozen=True)
class Window:
    """The operations of the unit's rows ``[base, base + covered)``, whole keys if possible.

    A window may begin after any number of rows: operations that add cover exactly its own rows.
    """

    base: int
    operations: Operations
    cutter: Cutter

    @classmethod
    def at(cls, target: Target, rows: Rows, base: int, *, keep_bad: bool = False) -> Window:
        """The window that begins at row ``base``; raises RowRefusedError, counted in ``rows``.

        With ``keep_bad`` see :func:`~spark_eoc.sinks.redis.operations.operations`.
        """
        part = _stretch(rows, base)
        if base + len(part) < len(rows):
            part = _whole_keys(target, part)
        try:
            ops = operations(target.command, part, keep_bad=keep_bad)
        except RowRefusedError as error:
            raise error.shifted(base) from None
        cutter = Cutter.of(ops.keys, ops.sizes(), target.chunk_rows, len(ops.columns) + 2)
        return cls(base, ops, cutter)

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def width(self) -> int:
        """Target key and values of one operation."""
        return 1 + len(self.operations.columns)

    def row(self, operation: int) -> int:
        """The unit's first row that ``operation`` covers."""
        return self.base + self.operations.rows_before(operation)

    def keys(self, start: int, end: int) -> memoryview:
        """The target keys of operations ``[start, end)``, encoded."""
        return bulks(self.operations.keys.slice(start, end - start))

    def values(self, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Names, NULL masks, columns and TTLs of these operations, encoded."""
        ops, count = self.operations, end - start
        columns = [text_column(column.slice(start, count)) for column in ops.columns]
        yield bulk(*(name.encode() for name in ops.names), *map(null_mask, columns))
        for values in columns:
            yield bulks(values.fill_null(b"") if values.null_count else values)
        if ops.ttl is not None:
            yield bulks(text_column(ops.ttl.slice(start, count)))

    def value_count(self, start: int, end: int) -> int:
        """How many arguments :meth:`values` makes."""
        ops = self.operations
        columns = len(ops.columns) + (ops.ttl is not None)
        return 2 * len(ops.names) + columns * (end - start)

    def arguments(
        self, own_keys: tuple[str, ...], head: Sequence[object], ttl: str, start: int, end: int
    ) -> tuple[int, list[bytes | memoryview]]:
        """How many keys and arguments a script gets for operations ``[start, end)``, and these.

        ``own_keys``: two before the target keys, the others after them. ``head``: the first six
        arguments; what lua_chunk says follows.
        """
        n, ops = end - start, self.operations
        before, after = own_keys[:2], own_keys[2:]
        whole_head = [*head, n, len(ops.names), ttl]
        parts = [
            bulk(b"%d" % (n + len(own_keys)), *(key.encode() for key in before)),
            self.keys(start, end),
            bulk(*(key.encode() for key in after), *(str(value).encode() for value in whole_head)),
            *self.values(start, end),
        ]
        count = 1 + n + len(own_keys) + len(whole_head) + self.value_count(start, end)
        return count, parts


def refuse_bad_rows(target: Target, rows: Rows) -> None:
    """Raises RowRefusedError for the unit's first row that can't be written, whatever Redis holds.

    All of the unit is looked at before its first chunk is sent.
    """
    for base in range(0, len(rows), WINDOW_ROWS):
        try:
            refuse(target.command, target.ledger, _stretch(rows, base))
        except RowRefusedError as error:
            raise error.shifted(base) from None
        rows.release()


def _stretch(rows: Rows, base: int) -> Rows:
    return rows.slice(base, min(len(rows), base + WINDOW_ROWS))


def _whole_keys(target: Target, part: Rows) -> Rows:
    """Without its last key, of which more rows may follow; all of it if there is no other."""
    keys = target.command.key.render(part.table)
    last = pc.index(keys, keys[len(keys) - 1]).as_py()
    return part.slice(0, last) if last > 0 else part


def null_mask(values: pa.Array) -> bytes:
    """ "" if nothing is NULL, else one "0" or "1" a value."""
    if not values.null_count:
        return b""
    flags = pc.is_null(values).cast(pa.uint8())
    return bytes(memoryview(pc.add(flags, pa.scalar(48, pa.uint8())).buffers()[1])[: len(values)])
