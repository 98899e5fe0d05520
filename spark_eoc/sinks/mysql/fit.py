"""Which of Spark's types a table's column keeps unharmed, and what it can't keep of their values.

What would be changed without an error is refused: before the first row where the two types say so,
else by the :class:`~spark_eoc.sinks.mysql.render.Fit` that each value is held against.
"""

from __future__ import annotations

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.render import Fit
from spark_eoc.sinks.mysql.target import TableColumn
from spark_eoc.sinks.store import Column

#: Whole numbers that a column of this type holds exactly, up to here.
_EXACT = {"float": 1 << 24, "double": 1 << 53}
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_NUMBERS = _INTEGERS | _TEXTS | {"bit", "decimal", "float", "double"}
_TIMES = ("datetime", "timestamp", "time")
#: Types of a table's column that keep one of Spark's, by its simple name without what is in
#: brackets. Texts and bytes go everywhere else too, since the server checks them.
_KEPT = {
    "boolean": _NUMBERS,
    "tinyint": _NUMBERS | {"json"},
    "smallint": _NUMBERS | {"json"},
    "int": _NUMBERS | {"json"},
    "bigint": _NUMBERS | {"json"},
    "float": _TEXTS | {"float", "double"},
    "double": _TEXTS | {"double"},
    "decimal": _TEXTS | _INTEGERS | {"decimal"},
    "date": _TEXTS | {"date", "datetime", "timestamp"},
    "timestamp": _TEXTS | {"datetime", "timestamp"},
    "timestamp_ntz": _TEXTS | {"datetime", "timestamp"},
    "time": _TEXTS | {"time"},
}
_NESTED = _TEXTS | _BYTES | {"json"}
#: A quoted text would be taken for bits.
_NEVER_TEXT = frozenset({"bit"})
#: Numbers in a JSON text which a DOUBLE, the form of MySQL's JSON, may round.
_LONG_NUMBER = "(?:^|[:\\[,])-?(?:[0-9]{20,}|" + "|".join(
    rf"[0-9]{{{whole},}}\.[0-9]{{{16 - whole},}}" for whole in range(1, 16)
) + ")"  # fmt: skip


def check_fit(column: Column, found: TableColumn, where: str) -> None:
    """ConfigError if ``found``, of the table ``where``, can't keep ``column`` unharmed."""
    base = column.type.partition("(")[0].split()[0]
    if column.json:
        kept = found.type in _NESTED
    elif base in _KEPT:
        kept = found.type in _KEPT[base]
    else:
        kept = found.type not in _NEVER_TEXT
    if not kept:
        raise ConfigError(
            f"column {column.name!r} is {column.type}, and {found.type} in {where}, which would "
            f"{_harm(base, found)}",
            next_step="cast it in the query, or make the table's column "
            f"{'JSON' if column.json else type_of(column)}",
            column=column.name,
        )


def _harm(base: str, found: TableColumn) -> str:
    if found.type in _TIMES or found.type in ("date", "year"):
        return "cut it silently, or take it for another one"
    if found.type in _NUMBERS - _TEXTS - _NEVER_TEXT and base in ("float", "double", "decimal"):
        return "round it silently"
    return "not keep it unharmed"


def fit(column: Column, found: TableColumn, nan_as_null: bool, *, key: bool = False) -> Fit:
    """What ``found`` keeps of the column's values; as part of the ``key`` no NULL."""
    return Fit(
        _fraction_digits(found),
        nan_as_null,
        _EXACT.get(found.type),
        _cut_text(column, found),
        invents=found.type == "timestamp" and not found.nullable,
        characters=found.length if found.type in ("char", "varchar") else None,
        key=key,
        padded_bytes=found.length if found.type == "binary" else None,
        members=found.members,
    )


def _fraction_digits(found: TableColumn) -> int | None:
    """Decimals of seconds, or of a DECIMAL; None for other types."""
    if found.type in _TIMES:
        return found.time_digits
    return found.scale if found.type == "decimal" else 0 if found.type in _INTEGERS else None


#: The texts that these types change, whatever their digits.
_CUT = {"date": "[0-9][ T].*[1-9]", "year": r"^\s*[0-9]{1,3}\s*$|[.]"}


def _cut_text(column: Column, found: TableColumn) -> str | None:
    """A pattern of the texts that the server would change in silence; None where it keeps or
    refuses each."""
    if column.json:
        inexact = "decimal" in column.type or "variant" in column.type
        return _LONG_NUMBER if found.type == "json" and inexact else None
    if found.type in _CUT:
        return _CUT[found.type]
    if found.type == "char":
        return None if column.type.startswith("char(") else " $"
    digits = _fraction_digits(found)
    if digits is None:
        return None
    finer = rf"\.[0-9]{{{digits}}}[0-9]*[1-9]"
    if found.type == "time":  # MySQL takes what it can't read for midnight
        return rf"{finer}|^$|[^-0-9:. ]"
    return finer if found.type in _TIMES else f"{finer}|[0-9.][eE]"


_MADE = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INT",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "time": "TIME(6)",
    "timestamp": "DATETIME(6)",
    "timestamp_ntz": "DATETIME(6)",
    "binary": "LONGBLOB",
}


def type_of(column: Column) -> str:
    """The table's type that keeps every value of a column that is neither nested nor a key."""
    base = column.type.partition("(")[0].split()[0]
    return column.type.upper() if base == "decimal" else _MADE.get(base, "LONGTEXT")
