"""The Redis commands that a writer can use, and which columns each takes.

| command | per row | rows of one key in a chunk |
|---|---|---|
| ``set`` | ``SET key value`` | the last one wins |
| ``hset`` | ``HSET key field value ...``, NULL by ``on_null`` | the last one wins, by field |
| ``incrby``, ``incrbyfloat`` | adds ``value`` | summed first, one command a key |
| ``hincrby`` | adds every field | summed first, one command a key and field |
| ``sadd`` | ``SADD key value`` | all |
| ``zadd`` | ``ZADD key score member`` | the last one wins, by member |
| ``zincrby`` | adds ``score`` to ``member`` | summed first, by member |
| ``rpush`` | ``RPUSH key value`` | all, in their order |
| ``xadd`` | ``XADD key * field value ...``, NULL fields left out | all, in their order |
| ``del`` | ``DEL key`` | once |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.template import KeyTemplate
from spark_eoc.sinks.redis.text import NUMBER_TYPES, base_type, check_type, is_whole
from spark_eoc.sinks.store import Column

ON_NULL = ("remove", "keep", "fail")
#: Seconds; EXPIRE itself overflows a little above.
LONGEST_TTL = 10**10
#: Fields of one stream entry: Lua's unpack gives up at some thousands of arguments.
MOST_STREAM_FIELDS = 3000


@dataclass(frozen=True)
class Kind:
    """What a command is made of.

    ``takes`` is ``value``, ``fields``, ``member`` (with a score) or nothing; ``adds`` says that it
    adds whole numbers (``integer``) or doubles (``float``), so that rows of one key are summed
    first; ``ordered`` that the order of one key's rows changes the result; ``probe`` is what a
    new connection runs to see that the command is allowed, with ``K`` for the key.
    """

    takes: str
    probe: tuple[str, ...]
    adds: str = ""
    ordered: bool = True


KINDS: dict[str, Kind] = {
    "set": Kind("value", ("SET K 1",)),
    "hset": Kind("fields", ("HLEN K", "HSET K f 1", "HDEL K f")),
    "incrby": Kind("value", ("GET K", "INCRBY K 1"), adds="integer"),
    "incrbyfloat": Kind("value", ("GET K", "INCRBYFLOAT K 1"), adds="float"),
    "hincrby": Kind("fields", ("HMGET K f", "HINCRBY K f 1"), adds="integer"),
    "sadd": Kind("value", ("SCARD K", "SADD K m"), ordered=False),
    "zadd": Kind("member", ("ZCARD K", "ZADD K 1 m")),
    "zincrby": Kind("member", ("ZSCORE K m", "ZINCRBY K 1 m"), adds="float"),
    "rpush": Kind("value", ("LLEN K", "RPUSH K m")),
    "xadd": Kind("fields", ("XLEN K", "XADD K * f 1")),
    "del": Kind("", (), ordered=False),
}


@dataclass(frozen=True)
class Command:
    """One command with the columns that feed it, as the user wrote it; checked when built."""

    name: str
    key: KeyTemplate
    fields: tuple[str, ...] | None = None
    value: str | None = None
    member: str | None = None
    score: str | None = None
    ttl: int | str | None = None
    on_null: str = "remove"

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise ConfigError(
                f"command={self.name!r} is not one that this writer knows",
                next_step=f"use one of {', '.join(KINDS)}",
            )
        self._check_arguments()
        self._check_ttl()
        if self.on_null not in ON_NULL or (self.on_null != "remove" and self.name != "hset"):
            raise ConfigError(
                f"on_null={self.on_null!r} does not fit command={self.name!r}",
                next_step=f"use one of {', '.join(ON_NULL)}, with hset only",
            )

    @property
    def kind(self) -> Kind:
        """What the command is made of."""
        return KINDS[self.name]

    @property
    def ttl_argument(self) -> str:
        """The TTL as scripts take it: "" for none, seconds, or "column"."""
        if self.ttl is None:
            return ""
        return str(self.ttl) if isinstance(self.ttl, int) else "column"

    def options(self, *, aside: bool) -> dict[str, object]:
        """What decides what a row does, by the names of the writer's arguments; ``aside`` where
        rows that can't be written are put aside."""
        ordered = self.name == "xadd"  # a stream's entry keeps its fields' order
        fields = self.fields if ordered or self.fields is None else sorted(self.fields)
        options: dict[str, object] = {
            "command": self.name,
            "fields": fields,
            "value": self.value,
            "member": self.member,
            "score": self.score,
            "ttl": self.ttl,
        }
        if self.on_null != "fail" or aside:
            options["on_null"] = self.on_null
        return options

    def inputs(self, columns: Sequence[str]) -> list[str]:
        """The columns that become arguments, in the order in which the script takes them."""
        if self.kind.takes == "value":
            return [str(self.value)]
        if self.kind.takes == "member":
            return [str(self.score), str(self.member)]
        if self.kind.takes == "fields":
            if self.fields is not None:
                return list(self.fields)
            used = {*self.key.columns, self.ttl}
            return [name for name in columns if name not in used]
        return []

    def check_columns(self, columns: Sequence[Column]) -> None:
        """Raises ConfigError if a frame with these columns can't feed the command."""
        by_name = {column.name: column for column in columns}
        inputs = self.inputs(list(by_name))
        ttl = [self.ttl] if isinstance(self.ttl, str) else []
        missing = [name for name in (*self.key.columns, *inputs, *ttl) if name not in by_name]
        if missing:
            raise ConfigError(
                f"the frame has no column {', '.join(map(repr, missing))}, which the "
                f"{self.name} writer for key={self.key.text!r} needs",
                next_step=f"select it; the frame's columns are {', '.join(by_name)}",
            )
        if self.kind.takes == "fields" and not inputs:
            raise ConfigError(
                f"the frame holds only the columns of key={self.key.text!r}, so {self.name} would "
                "write nothing",
                next_step='add the columns to write, or use command="set" or "sadd" with value=',
            )
        if self.name == "xadd" and len(inputs) > MOST_STREAM_FIELDS:
            raise ConfigError(
                f"xadd of {len(inputs)} fields: one script call takes {MOST_STREAM_FIELDS}",
                next_step="name fewer columns in fields=, or write them as one JSON column",
            )
        for name in (*self.key.columns, *inputs):
            check_type(by_name[name])
        self._check_types(by_name, inputs, ttl)

    def _check_types(
        self, by_name: dict[str, Column], inputs: Sequence[str], ttl: Sequence[str]
    ) -> None:
        nested = [name for name in self.key.columns if by_name[name].json]
        if nested:
            raise ConfigError(
                f"column {nested[0]!r} of the key is nested, and equal maps may differ as text",
                next_step="build the key from plain columns",
            )
        numbers = inputs if self.name not in {"zadd", "zincrby"} else inputs[:1]
        if self.kind.adds == "integer":
            self._need(by_name, numbers, whole=True)
        elif self.kind.adds == "float" or self.name == "zadd":
            self._need(by_name, numbers, whole=False)
        self._need(by_name, ttl, whole=True)

    def _need(self, by_name: dict[str, Column], names: Sequence[str], *, whole: bool) -> None:
        for name in names:
            kind = by_name[name].type
            if by_name[name].json or not (
                is_whole(kind) if whole else base_type(kind) in NUMBER_TYPES
            ):
                raise ConfigError(
                    f"column {name!r} is of type {kind}, and {self.name} needs "
                    f"{'whole numbers' if whole else 'numbers'} there",
                    next_step=f"cast it to {'BIGINT' if whole else 'DOUBLE'}, or leave it out",
                )

    def _check_arguments(self) -> None:
        given = {
            "fields": self.fields,
            "value": self.value,
            "member": self.member,
            "score": self.score,
        }
        wanted = {"value": {"value"}, "fields": {"fields"}, "member": {"member", "score"}}.get(
            self.kind.takes, set()
        )
        for argument, set_to in given.items():
            if set_to is not None and argument not in wanted:
                raise ConfigError(
                    f"{argument}= means nothing to command={self.name!r}",
                    next_step=f"it takes {' and '.join(sorted(wanted)) or 'only key='}",
                )
            if set_to is None and argument in wanted and argument != "fields":
                raise ConfigError(
                    f"command={self.name!r} needs {argument}=",
                    next_step=f'name the column, such as {argument}="{argument}"',
                )
        if self.member is not None and self.member == self.score:
            raise ConfigError(
                "member= and score= name the same column", next_step="select it twice, by two names"
            )
        if self.fields is not None and (
            not self.fields or len(set(self.fields)) < len(self.fields)
        ):
            raise ConfigError(
                f"fields={list(self.fields)!r} is empty or names a column twice",
                next_step="leave fields= out to write every column that the key does not name",
            )

    def _check_ttl(self) -> None:
        if self.ttl is None:
            return
        if self.name == "del":
            raise ConfigError('ttl= means nothing to command="del"', next_step="leave it out")
        if isinstance(self.ttl, bool) or not isinstance(self.ttl, int | str):
            raise ConfigError(
                f"ttl={self.ttl!r} is neither seconds nor a column",
                next_step="pass an int or a name",
            )
        if isinstance(self.ttl, int) and not 1 <= self.ttl <= LONGEST_TTL:
            raise ConfigError(
                f"ttl={self.ttl} is outside 1 to {LONGEST_TTL} seconds",
                next_step="leave ttl out for keys that stay",
            )
