"""Arrow columns to the text of multi-row INSERT statements, by Arrow's kernels only.

No row is touched by Python. Every value becomes a literal of its own: numbers without quotes, all
else in quotes with each quote doubled. That is the whole escaping of a utf8mb4 session whose SQL
mode has NO_BACKSLASH_ESCAPES, which every connection of this package sets; so no data can end its
literal and become SQL.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.errors import BadRowError

#: Rows that are rendered at once; a statement is cut from such a block.
BLOCK_ROWS = 16_384
_BLOCK_BYTES = 32 * 1024 * 1024
_QUOTE = re.compile(b"'")


@dataclass(frozen=True)
class Fit:
    """What the target's column keeps of a value; None where it keeps all.

    ``fraction_digits`` are decimals of seconds or of a DECIMAL, ``nan_as_null`` turns NaN and
    infinity into NULL instead of refusing them. Whole numbers beyond ``exact_integers``, and texts
    in which the pattern ``cut_text`` is found, would be rounded; of texts longer than
    ``characters`` the server cuts blanks at the end and refuses the others. With ``invents`` the
    server puts a value of its own where NULL is given; in a ``key`` column NULL is never found.
    Bytes shorter than ``padded_bytes`` would be padded, and a number as text that is none of
    ``members`` taken for a member's place.
    """

    fraction_digits: int | None = None
    nan_as_null: bool = False
    exact_integers: int | None = None
    cut_text: str | None = None
    invents: bool = False
    characters: int | None = None
    key: bool = False
    padded_bytes: int | None = None
    members: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Literal:
    """A column's values as text: without the quotes, which are written where ``quoted``, after
    ``prefix``. Where it is ``free`` it may hold anything, and must be escaped."""

    text: pa.Array
    prefix: str = ""
    quoted: bool = False
    free: bool = False


def blocks(table: pa.Table) -> Iterator[pa.Table]:
    """The table in pieces of a bounded size, in order."""
    for start in range(0, table.num_rows, BLOCK_ROWS):
        yield from _halved(table.slice(start, BLOCK_ROWS))


def _halved(table: pa.Table) -> Iterator[pa.Table]:
    if table.num_rows <= 1 or table.nbytes <= _BLOCK_BYTES:
        yield table
        return
    half = table.num_rows // 2
    yield from _halved(table.slice(0, half))
    yield from _halved(table.slice(half))


@dataclass(frozen=True)
class Around:
    """What surrounds the rows of a statement, and how long it may get, in bytes.

    Statements stay below ``size``; one row alone may need up to ``limit``. Each row begins with
    ``lead``, the literals of columns that all rows share.
    """

    head: bytes
    tail: bytes
    size: int
    limit: int
    lead: str = ""

    def room(self) -> tuple[int, int]:
        """Bytes for the rows: of a usual statement, and of one with a single row."""
        fixed = len(self.head) + len(self.tail)
        return min(self.size, self.limit) - fixed, self.limit - fixed


def statements(
    table: pa.Table, fits: Mapping[str, Fit], around: Around
) -> Iterator[tuple[bytes, int]]:
    """The statements that insert the table, in order, each with its number of rows.

    BadRowError if one row is longer than the limit, or has a value that the target can't keep.
    """
    for block in blocks(table):
        text = RowsText(rows_text(block, fits, around.lead))
        for start, stop in text.cuts(around):
            if text.excess(start, around):
                raise too_long(text.length(start, stop), around)
            yield text.statement(start, stop, around), stop - start


def rows_text(table: pa.Table, fits: Mapping[str, Fit], lead: str = "") -> pa.Array:
    """One text a row, ``(v,v,…),``: joined without a copy, since an array's texts lie in a row."""
    parts: list[pa.Array | pa.Scalar] = []
    pending = "(" + lead
    for name in table.column_names:
        literal = render(one_chunk(table.column(name)), fits.get(name, Fit()), name)
        text, prefix = literal.text, literal.prefix
        if literal.quoted and text.null_count == 0:
            parts += [_scalar(pending + prefix + "'"), text]
            pending = "',"
            continue
        if literal.quoted:
            text = _join(_scalar(prefix + "'"), text, _scalar("'"))
        parts += [_scalar(pending), text]
        pending = ","
    parts.append(_scalar(pending[:-1] + "),"))
    return _join(*parts, null_handling="replace", null_replacement="NULL")


def _join(*parts: pa.Array | pa.Scalar, **options: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(""), **options)


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


class RowsText:
    """Rows as text, from which statements are cut; ranges of rows are half-open."""

    def __init__(self, text: pa.Array) -> None:
        first, end = text.offset, text.offset + len(text) + 1
        self._offsets = memoryview(text.buffers()[1]).cast("i")[first:end]
        self._data = memoryview(text.buffers()[2])

    def cuts(self, around: Around) -> Iterator[tuple[int, int]]:
        """The rows of each statement; one that is longer than the limit stands alone."""
        offsets, size, start = self._offsets, around.room()[0], 0
        while start < len(offsets) - 1:
            # The last row's comma is not sent, hence the one byte more.
            stop = bisect_right(offsets, offsets[start] + size + 1, lo=start + 1) - 1
            stop = max(stop, start + 1)
            yield start, stop
            start = stop

    def length(self, start: int, stop: int) -> int:
        """Bytes of these rows in a statement."""
        return self._offsets[stop] - 1 - self._offsets[start]

    def excess(self, row: int, around: Around) -> bool:
        """Whether this row alone is longer than the limit."""
        return self.length(row, row + 1) > around.room()[1]

    def statement(self, start: int, stop: int, around: Around) -> bytes:
        """The statement that inserts these rows."""
        rows = self._data[self._offsets[start] : self._offsets[stop] - 1]
        return b"".join((around.head, rows, around.tail))


def too_long(length: int, around: Around) -> BadRowError:
    """The refusal of a row that no statement can hold."""
    return BadRowError(
        f"a row needs {length} bytes of SQL text, and the server's max_allowed_packet leaves "
        f"{around.room()[1]}",
        applied="nothing of this partition",
        next_step="raise max_allowed_packet on the server: SET GLOBAL max_allowed_packet=…",
    )


def render(column: pa.Array, fit: Fit, name: str) -> Literal:
    """A column's literals of SQL; BadRowError names it if a value can't be kept unharmed."""
    literal = prepared(column, fit, name)
    return replace(literal, text=_escaped(literal.text)) if literal.free else literal


def prepared(column: pa.Array, fit: Fit, name: str) -> Literal:
    """A column's values as text, not escaped yet; BadRowError as for :func:`render`."""
    kind = column.type
    if fit.key and column.null_count:
        raise _refused(
            name,
            "NULL, in the key, which no unique index finds again: each batch would append such a "
            "row",
            "filter or coalesce it in the query",
        )
    if fit.invents and column.null_count:
        raise _refused(
            name,
            "NULL, for which the table's column, TIMESTAMP NOT NULL, takes the current time",
            "coalesce it in the query, or ALTER TABLE … MODIFY the column to TIMESTAMP NULL",
        )
    is_a = pa.types
    if is_a.is_boolean(kind):
        literal = Literal(_text(pc.cast(column, pa.uint8())))
    elif is_a.is_integer(kind):
        literal = Literal(_text(_exact_integers(column, fit, name)))
    elif is_a.is_floating(kind):
        literal = Literal(_text(_finite(pc.cast(column, pa.float64()), fit, name)))
    elif is_a.is_decimal(kind):
        # Quoted: Arrow writes small ones with an exponent, which as a bare word is a DOUBLE.
        literal = Literal(_text(_whole_decimal(column, fit, name)), quoted=True)
    elif is_a.is_date(kind):
        literal = Literal(_text(column), quoted=True)
    elif is_a.is_time(kind):
        literal = Literal(_text(_whole_clock(column, fit, name)), quoted=True)
    elif is_a.is_timestamp(kind):
        literal = Literal(_text(_whole_time(column, fit, name)), quoted=True)
    elif is_a.is_string(kind) or is_a.is_large_string(kind):
        uncut = _unpadded(_uncut(pc.cast(column, pa.binary()), fit, name), fit, name)
        literal = Literal(uncut, quoted=True, free=True)
    elif is_a.is_binary(kind) or is_a.is_large_binary(kind):
        unpadded = _unpadded(pc.cast(column, pa.binary()), fit, name)
        literal = Literal(unpadded, prefix="_binary", quoted=True, free=True)
    else:
        raise TypeError(f"column {name!r}: Arrow type {kind} can't be written")
    return literal


def _text(column: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(column, pa.string()), pa.binary())


def _escaped(column: pa.Array) -> pa.Array:
    if not _QUOTE.search(content(column)):
        return column
    return pc.replace_substring(column, b"'", b"''")


def content(column: pa.Array) -> memoryview:
    """The bytes of a binary column; of a slice only its own, whose buffers are the whole's."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]


def _exact_integers(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    edges = pc.min_max(column).as_py() if fit.exact_integers is not None else {}
    if max((abs(edge) for edge in edges.values() if edge), default=0) > (fit.exact_integers or 0):
        raise _refused(
            name,
            f"whole numbers beyond {fit.exact_integers}, which the table's column would round",
            "make the table's column BIGINT, or cast it in the query",
        )
    return column


def _uncut(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    if fit.characters is not None and _longest(column, fit.characters) > fit.characters:
        raise _refused(
            name,
            f"text that is too long for the {fit.characters} characters of the table's column",
            "widen the table's column, or cut it in the query",
        )
    if fit.cut_text is not None and pc.any(pc.match_substring_regex(column, fit.cut_text)).as_py():
        raise _refused(
            name,
            "text with more than the table's column keeps, which would be rounded silently",
            "cast it in the query to the type of the table's column",
        )
    _refuse_places(column, fit, name)
    return column


def _refuse_places(column: pa.Array, fit: Fit, name: str) -> None:
    if fit.members is None:
        return
    numbers = column.filter(pc.match_substring_regex(column, "^[0-9]+$"))
    known = pa.array([member.encode() for member in fit.members], pa.binary())
    if pc.any(pc.invert(pc.is_in(numbers, known))).as_py():
        raise _refused(
            name,
            "a number that is no member of the table's ENUM, which would take it for a member's "
            "place",
            "write the member's name",
        )


def _unpadded(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    if fit.padded_bytes is not None:
        shortest = pc.min(pc.binary_length(column)).as_py()
        if shortest is not None and shortest < fit.padded_bytes:
            raise _refused(
                name,
                f"fewer than the {fit.padded_bytes} bytes of the table's column, which would be "
                "padded",
                "make the table's column VARBINARY, or pad it in the query",
            )
    return column


def _whole_clock(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    try:
        micros = pc.cast(column, pa.time64("us"))
    except pa.ArrowInvalid:
        raise _refused(
            name, "times finer than microseconds", f"cast {name!r} to TIME(6) in the query"
        ) from None
    _whole_time(micros, fit, name)
    return micros


def _longest(column: pa.Array, limit: int) -> int:
    """Characters of the longest text; its bytes up to ``limit``; 0 where one is not UTF-8."""
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest <= limit:
        return int(longest)
    try:
        return int(pc.max(pc.utf8_length(column.cast(pa.string()))).as_py() or 0)
    except pa.ArrowInvalid:
        return 0  # the server refuses it


def _finite(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    finite = pc.is_finite(column)
    if pc.all(finite, min_count=0).as_py() is not False:
        return column
    if fit.nan_as_null and fit.key:
        raise _refused(
            name,
            "NaN or infinity, in the key, which would become NULL, and no unique index finds that "
            "again: each batch would append such a row",
            "filter or coalesce it in the query",
        )
    if fit.nan_as_null:
        return pc.if_else(finite, column, pa.scalar(None, pa.float64()))
    raise _refused(name, "NaN or infinity, which the server can't keep", 'nan="null"')


def _whole_decimal(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    digits = fit.fraction_digits
    if digits is None or column.type.scale <= digits:
        return column
    try:
        return pc.cast(column, pa.decimal128(column.type.precision, digits))
    except pa.ArrowInvalid:
        raise _refused(
            name, f"more than the {digits} decimals of the table's column", "round it in the query"
        ) from None


def _whole_time(column: pa.Array, fit: Fit, name: str) -> pa.Array:
    micros = column.view(pa.int64())
    digits = 6 if fit.fraction_digits is None else fit.fraction_digits
    step = pa.scalar(10 ** (6 - digits), pa.int64())
    if (
        digits < 6
        and pc.any(pc.not_equal(pc.multiply(pc.divide(micros, step), step), micros)).as_py()
    ):
        raise _refused(
            name,
            f"times that are finer than the {digits} decimals of the table's column",
            f"ALTER TABLE … MODIFY the column to DATETIME(6), or date_trunc {name!r} in the query",
        )
    return micros.view(pa.timestamp("us"))


def _refused(name: str, what: str, remedy: str) -> BadRowError:
    return BadRowError(
        f"column {name!r} holds {what}",
        applied="nothing of this partition",
        next_step=remedy,
        column=name,
    )
