"""From a partition's rows to the operations that Redis will be asked to do, all checks included.

Rows come in the order of :func:`arrange`: equal keys are adjacent, in an order that depends only
on the rows. Commands that add are summed here, one operation a key, so that a hot key costs
nothing and no counter is ever added to twice in a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.sinks.order import in_order
from spark_eoc.sinks.redis.commands import LONGEST_TTL, Command
from spark_eoc.sinks.redis.refusal import Problem, RowRefusedError
from spark_eoc.sinks.redis.text import text_column
from spark_eoc.sinks.rows import Rows

#: Both a counter and what is added to it stay below this, so that no sum leaves 64 bits.
COUNTER_LIMIT = 1 << 62
#: Doubles hold every whole number up to here.
_EXACT_DOUBLE = 1 << 53
#: So that no sum of two leaves the finite numbers.
_LARGEST_DOUBLE = 1e300
#: Redis takes no longer argument unless proto-max-bulk-len was changed.
_LONGEST_VALUE = 512 * 1024 * 1024
_PIECE_ROWS = 65_536
#: Assumed length of a number or a time as text, for cutting chunks.
_SHORT = 24


@dataclass(frozen=True)
class Operations:
    """One operation a position; ``columns`` in the order of :meth:`Command.inputs`.

    ``row_ends[i]`` is how many of the rows, in their order, the operations ``[0, i]`` cover;
    None where each row is one operation. ``bad`` are operations that can't be done.
    """

    keys: pa.Array
    columns: Sequence[pa.ChunkedArray]
    names: Sequence[str]
    ttl: pa.ChunkedArray | None
    row_ends: memoryview | None = None
    bad: Sequence[Problem] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def rows_before(self, operation: int) -> int:
        """How many rows the operations ``[0, operation)`` cover."""
        if self.row_ends is None or operation == 0:
            return operation
        return int(self.row_ends[operation - 1])

    def sizes(self) -> pa.Array:
        """Bytes of each operation, roughly; exact where values are text."""
        sizes = pc.binary_length(self.keys).cast(pa.int64())
        for column in self.columns:
            sizes = pc.add(sizes, _lengths(column))
        return sizes


def arrange(
    command: Command, rows: Rows, first: Callable[[pa.Array], pa.Array] | None = None
) -> Rows:
    """The rows ordered by target key, then by arrival; where arrival can't matter, by content.

    Positions in the order of arrival would be useless: after a shuffle they are others. Bad keys
    (NULL) come last; :func:`operations` refuses them. ``first`` gives of the keys what comes before
    them in the order.
    """
    return in_order(rows, lambda part: _by(command, part, first))


def _by(command: Command, rows: Rows, first: Callable[[pa.Array], pa.Array] | None) -> pa.Table:
    keys = _keys(command, rows)
    by: dict[str, Any] = {} if first is None else {"first": first(keys.combine_chunks())}
    by["key"] = keys
    if not command.kind.ordered or command.kind.adds:
        if command.member is not None:
            by["member"] = text_column(rows.table[command.member])
        by["hash"] = rows.hashes
    return pa.table(by)


def _keys(command: Command, rows: Rows) -> pa.ChunkedArray:
    """In pieces, because what is between the columns and their keys takes the memory of both."""
    starts = range(0, len(rows), _PIECE_ROWS)
    parts = [command.key.render(rows.table.slice(start, _PIECE_ROWS)) for start in starts]
    return pa.chunked_array(parts, None if parts else pa.string())


def refuse(command: Command, ledger_prefix: str, rows: Rows) -> None:
    """Raises RowRefusedError for the first row found that can't be written, counted in ``rows``."""
    for problem in problems(command, ledger_prefix, rows):
        raise problem.error()


def problems(command: Command, ledger_prefix: str, rows: Rows) -> Iterator[Problem]:
    """What of these rows can't be written, whatever Redis holds; a row may have several."""
    table = rows.table
    yield from command.key.problems(table)
    yield from _ledger_keys(command, ledger_prefix, command.key.render(table))
    names = command.inputs(table.column_names)
    if isinstance(command.ttl, str):
        yield from _bad_ttl(command.ttl, table[command.ttl])
    for name in names:
        yield from _bad_values(command, name, table[name])
    if command.name == "xadd":
        yield from _nothing(names, table)


def operations(command: Command, rows: Rows, *, keep_bad: bool = False) -> Operations:
    """The operations of rows in which there are no :func:`problems`, in their order.

    Raises RowRefusedError if rows of one key add up to more than a counter can take; with
    ``keep_bad`` such operations are named in ``bad``.
    """
    table = rows.table
    keys = command.key.render(table)
    names = command.inputs(table.column_names)
    ttl = table[command.ttl] if isinstance(command.ttl, str) else None
    if command.kind.adds or command.name == "del":
        sums = _summed(command, keys, {name: table[name] for name in names}, ttl)
        bad = tuple(_bad_sums(command, sums))
        if bad and not keep_bad:
            error = bad[0].error()
            raise RowRefusedError(sums.rows_before(error.row), error.column, error.reason)
        return replace(sums, bad=bad)
    return Operations(keys, [table[name] for name in names], names, ttl)


def _summed(
    command: Command,
    keys: pa.Array,
    columns: dict[str, pa.ChunkedArray],
    ttl: pa.ChunkedArray | None,
) -> Operations:
    """Sums by key, and by member for zincrby; the longest TTL of a key's rows counts."""
    data: dict[str, pa.Array | pa.ChunkedArray] = {"key": keys}
    data["row"] = pa.array(range(len(keys)), pa.int64())
    by, sums = ["key"], [("row", "min")]
    for at, (name, column) in enumerate(columns.items()):
        if name == command.member:
            data[f"c{at}"] = text_column(column)
            by.append(f"c{at}")
        else:
            data[f"c{at}"] = _summable(command, column)
            sums.append((f"c{at}", "sum"))
    if ttl is not None:
        data["ttl"] = ttl
        sums.append(("ttl", "max"))
    groups = pa.table(data).group_by(by, use_threads=False).aggregate([*sums, ([], "count_all")])
    # Groups come in any order; chunks need the rows' own, in which a group's rows are adjacent.
    groups = groups.sort_by("row_min")
    found = [
        groups[f"c{at}" if name == command.member else f"c{at}_sum"]
        for at, name in enumerate(columns)
    ]
    return Operations(
        groups["key"].combine_chunks(),
        found,
        list(columns),
        groups["ttl_max"] if ttl is not None else None,
        _numbers(pc.cumulative_sum(groups["count_all"].combine_chunks())),
    )


def _summable(command: Command, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if command.kind.adds == "float":
        return column.cast(pa.float64())
    # 38 digits hold the sum of 2^31 numbers below 2^62; int64 would wrap in silence.
    edges = pc.min_max(column).as_py()
    largest = max(abs(int(edges["min"] or 0)), abs(int(edges["max"] or 0)))
    small = largest * max(1, len(column)) < COUNTER_LIMIT
    return column.cast(pa.int64() if small else pa.decimal128(38, 0))


#: What is in every key that a ledger keeps for a writer, whatever the ledger's prefix; and a part
#: of it that is found faster.
_LEDGER_KEY, _IN_IT = r":\{[0-9a-f]{64}\}:|:\{[@-O]{4}\}:[0-9a-f]{64}:", b"}:"


def _ledger_keys(command: Command, ledger_prefix: str, keys: pa.Array) -> Iterator[Problem]:
    yield from Problem.found(
        pc.starts_with(keys, f"{ledger_prefix}:".encode()),
        command.key.columns[0],
        f"its key lies under the ledger's prefix {ledger_prefix!r}",
    )
    if pc.any(pc.match_substring(keys, _IN_IT)).as_py():
        foreign = pc.match_substring_regex(keys, _LEDGER_KEY)
        yield from Problem.found(foreign, command.key.columns[0], "its key is one of a ledger")


def _bad_ttl(name: str, ttl: pa.ChunkedArray) -> Iterator[Problem]:
    bad = pc.invert(pc.and_(pc.greater_equal(ttl, 1), pc.less_equal(ttl, LONGEST_TTL)))
    reason = f"a TTL must be 1 to {LONGEST_TTL} seconds"
    yield from Problem.found(pc.fill_null(bad, True), name, reason)


def _bad_values(command: Command, name: str, column: pa.ChunkedArray) -> Iterator[Problem]:
    nulls_mean_something = command.name == "xadd" or (
        command.name == "hset" and command.on_null != "fail"
    )
    if column.null_count and not nulls_mean_something:
        yield Problem(pc.is_null(column), name, f"NULL, which {command.name} can't write")
    if command.kind.adds == "integer":
        yield from _bad_integers(name, column)
    elif name == command.score or command.kind.adds == "float":
        if name != command.member:
            yield from _bad_doubles(name, column)
    elif _is_variable(column.type):
        long = pc.greater(pc.binary_length(column), _LONGEST_VALUE)
        yield from Problem.found(long, name, f"longer than {_LONGEST_VALUE} bytes (Redis's limit)")


def _nothing(names: Sequence[str], table: pa.Table) -> Iterator[Problem]:
    empty = pc.is_null(table[names[0]])
    for name in names[1:]:
        empty = pc.and_(empty, pc.is_null(table[name]))
    reason = "every field is NULL, and a stream takes no empty entry"
    yield from Problem.found(empty, names[0], reason)


def _bad_integers(name: str, column: pa.ChunkedArray) -> Iterator[Problem]:
    if pa.types.is_integer(column.type) and column.type.bit_width < 64:
        return
    numbers = column.cast(pa.decimal128(38, 0))
    limit = pa.scalar(COUNTER_LIMIT, pa.decimal128(38, 0))
    low = pa.scalar(-COUNTER_LIMIT, pa.decimal128(38, 0))
    inside = pc.and_(pc.less(numbers, limit), pc.greater(numbers, low))
    reason = "not within ±2^62, so that a counter could overflow"
    yield from Problem.found(pc.invert(inside), name, reason)


def _bad_doubles(name: str, column: pa.ChunkedArray) -> Iterator[Problem]:
    if pa.types.is_integer(column.type):
        edges = pc.min_max(column).as_py()
        if max(abs(edges["min"] or 0), abs(edges["max"] or 0)) <= _EXACT_DOUBLE:
            return
        numbers = column.cast(pa.decimal128(38, 0))
        low, high = (pa.scalar(n, pa.decimal128(38, 0)) for n in (-_EXACT_DOUBLE, _EXACT_DOUBLE))
        beyond = pc.or_(pc.less(numbers, low), pc.greater(numbers, high))
        yield Problem(beyond, name, "a whole number beyond 2^53, which a double can't hold")
        return
    inside = pc.less_equal(pc.abs(column.cast(pa.float64())), _LARGEST_DOUBLE)
    yield from Problem.found(pc.invert(inside), name, "not a finite number within ±1e300")


def _bad_sums(command: Command, sums: Operations) -> Iterator[Problem]:
    find = _bad_integers if command.kind.adds == "integer" else _bad_doubles
    for name, column in zip(sums.names, sums.columns, strict=True):
        if name != command.member:
            for problem in find(name, column):
                reason = f"the sum of its key's rows is {problem.reason}"
                yield replace(problem, reason=reason)


def _is_variable(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def _lengths(column: pa.ChunkedArray) -> pa.Array | pa.Scalar:
    if not _is_variable(column.type):
        return pa.scalar(_SHORT, pa.int64())
    lengths = pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
    return lengths.combine_chunks()


def _numbers(values: pa.Array) -> memoryview:
    _, data = values.buffers()
    if data is None or not len(values):
        return memoryview(b"").cast("q")
    return memoryview(data).cast("q")[values.offset : values.offset + len(values)]
