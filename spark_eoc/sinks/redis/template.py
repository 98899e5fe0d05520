"""Key templates such as ``user:{user_id}``: parsed once, rendered for a whole column at a time.

The rules, which the README repeats:

* ``{column}`` stands for the column's value in the text form of
  :mod:`spark_eoc.sinks.redis.text`; ``{{`` and ``}}`` are literal braces, so ``{{{user_id}}}``
  renders a hash tag.
* With one column the value is used as it is. With several, ``%`` and the first character of every
  separator between two columns are written ``%XX`` inside values, so that two different rows can
  never meet in one key (``a:b`` + ``c`` against ``a`` + ``b:c``).
* NULL or empty in a column of the key is a bad row: it would gather strangers in one key.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.refusal import Problem
from spark_eoc.sinks.redis.text import text_column

_UNSAFE_SEPARATORS = "%0123456789ABCDEF"


@dataclass(frozen=True)
class KeyTemplate:
    """``literals`` has one element more than ``columns``; they alternate, a literal first."""

    text: str
    literals: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> KeyTemplate:
        """Raises ConfigError for anything but literals and plain ``{column}`` placeholders."""
        literals, columns = [""], list[str]()
        try:
            for literal, column, spec, conversion in string.Formatter().parse(text):
                literals[-1] += literal
                if column is None:
                    continue
                if not column or spec or conversion:
                    raise _malformed(text, "only {column}, without format or conversion")
                columns.append(column)
                literals.append("")
        except ValueError as error:
            raise _malformed(text, str(error)) from None
        template = cls(text, tuple(literals), tuple(columns))
        template._check()
        return template

    @property
    def prefix(self) -> str:
        """What every rendered key begins with."""
        return self.literals[0]

    def missing_from(self, names: list[str]) -> list[str]:
        """The template's columns that a frame with these column names lacks."""
        return [column for column in self.columns if column not in names]

    def render(self, rows: pa.Table) -> pa.Array:
        """One binary key a row; NULL where a column of the key is NULL."""
        pieces: list[pa.Array | pa.Scalar] = [pa.scalar(self.literals[0].encode())]
        for column, literal in zip(self.columns, self.literals[1:], strict=True):
            pieces += [self._escape(text_column(rows[column])), pa.scalar(literal.encode())]
        return pc.binary_join_element_wise(*pieces, pa.scalar(b""))

    def problems(self, rows: pa.Table) -> Iterator[Problem]:
        """Rows with NULL or nothing in a column of the key."""
        for column in self.columns:
            value = text_column(rows[column])
            if value.null_count:
                yield Problem(pc.is_null(value), column, "the key's column is NULL")
            empty = pc.equal(pc.binary_length(value), 0)
            yield from Problem.found(empty, column, "the key's column is empty")

    def _escape(self, value: pa.Array) -> pa.Array:
        for character in self._escaped():
            code = f"%{ord(character):02X}".encode()
            value = pc.replace_substring(value, character.encode(), code)
        return value

    def _escaped(self) -> list[str]:
        separators = sorted({literal[0] for literal in self.literals[1:-1]})
        return ["%", *separators] if len(self.columns) > 1 else []

    def _check(self) -> None:
        if not self.columns:
            raise ConfigError(
                f"key={self.text!r} names no column, so that every row would share one key",
                next_step='name a column in it, such as key="user:{user_id}"',
            )
        if len(set(self.columns)) < len(self.columns):
            raise ConfigError(f"key={self.text!r} names a column twice")
        for literal in self.literals[1:-1]:
            if not literal or literal[0] in _UNSAFE_SEPARATORS or not literal[0].isascii():
                raise ConfigError(
                    f"key={self.text!r} has no safe separator between two columns",
                    next_step="put a separator such as ':' between the columns; it may not begin "
                    "with '%', a digit, A to F, or a character outside ASCII",
                )


def _malformed(text: str, problem: str) -> ConfigError:
    return ConfigError(
        f"key={text!r} is not a key template: {problem}",
        next_step='write it as key="user:{user_id}", braces doubled where they are literal',
    )
