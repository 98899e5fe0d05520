"""Every way in which the writers write, taken from the product's own lists, with small rows.

A mode that is added to a list is here by itself. ``fold`` says, apart from the product's code, what
the sink holds after some rows; it is None for a mode that has none yet, which is then compared with
an undisturbed run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.mysql.statement import MERGES
from spark_eoc.sinks.mysql.writer import MySQLWriter
from spark_eoc.sinks.redis.commands import KINDS
from spark_eoc.sinks.redis.writer import RedisWriter
from spark_eoc.sinks.writer import Writer

Row = Mapping[str, Any]
Content = dict[str, Any]
Fold = Callable[[Content, Row], None]

ATOMICITIES = ("partition", "batch")
#: Keys go from 0 up to this.
KEYS = 6
_GONE = "n % 5 = 0"
CONDITIONS: dict[str, Callable[[Row], bool]] = {_GONE: lambda row: row["n"] % 5 == 0}
_INTEGERS = {name: pa.int64() for name in ("k", "m", "n", "s")}


@dataclass(frozen=True)
class Mode:
    """One way to write rows ``k, m, n, s``: key, member, number, and a sequence number.

    ``ordered``: rows of one key must be in one partition, in their order, for the result to be
    defined. ``columns`` are those that the writer gets. With ``letters`` some rows can't be
    written, those of :func:`is_bad`, and are put aside.
    """

    sink: str
    name: str
    arguments: Mapping[str, Any]
    columns: Sequence[str]
    ordered: bool
    fold: Fold | None = field(default=None, compare=False)
    letters: bool = False

    def __str__(self) -> str:
        return f"{self.sink} {self.name}"

    @property
    def schema(self) -> pa.Schema:
        """Of the frame."""
        return pa.schema([(name, _INTEGERS[name]) for name in self.columns])

    def rows(self, numbers: Sequence[tuple[int, int]], first: int) -> list[Row]:
        """Rows of (key, number); ``first`` is how many there were before."""
        whole = [
            {"k": key, "m": number % 3, "n": number, "s": first + place}
            for place, (key, number) in enumerate(numbers)
        ]
        return [{name: row[name] for name in self.columns} for row in whole]

    def split(self, rows: Sequence[Row], parts: int) -> list[list[Row]]:
        """The rows as ``parts`` partitions, in their order."""
        split: list[list[Row]] = [[] for _ in range(parts)]
        for place, row in enumerate(rows):
            split[(row["k"] if self.ordered else place) % parts].append(row)
        return split

    def expected(self, rows: Sequence[Row], start: Content) -> Content:
        """What the sink holds after ``rows``, if it held ``start``."""
        assert self.fold is not None, f"{self} has no fold yet"
        content = dict(start)
        for row in rows:
            self.fold(content, row)
        return content


class Target(Protocol):
    """An empty table or a prefix of keys, for one mode."""

    def writer(self, atomicity: str) -> Writer:
        """A new writer, as another run would make it."""

    def content(self) -> Content:
        """What readers see, in a form that compares."""

    def refill(self) -> Content:
        """What others write between two batches, so that a late repeat shows."""


def is_bad(sink: str, row: Row) -> bool:
    """Whether a target for dead letters refuses this row: by a CHECK, or because its key holds
    another type."""
    return bool(row["s"] % 7 == 3 if sink == "mysql" else row["k"] == KEYS - 1)


def mysql_modes() -> list[Mode]:
    """Append, upsert with every merge rule, and deletes; some of them with dead letters."""
    plain = ("k", "n")
    modes = [Mode("mysql", "append", {}, plain, ordered=False, fold=_append)]
    for rule in MERGES:
        free = rule in ("add", "min", "max")
        upsert = {"mode": "upsert", "key": ["k"], "merge": {"n": rule}}
        modes.append(Mode("mysql", rule, upsert, plain, not free, _merge(rule)))
    told: dict[str, Any] = {"mode": "upsert", "key": ["k"], "delete_when": _GONE, "order_by": "s"}
    try:
        MySQLWriter("mysql://u@h/d", "t", **told)
    except (TypeError, ConfigError):
        return modes
    columns = ("k", "n", "s")
    modes.append(Mode("mysql", "delete_when", told, columns, ordered=True, fold=_delete_when))
    add = {"mode": "upsert", "key": ["k"], "merge": {"n": "add"}}
    asides: Any = (("append", {}, False, _append), ("add", add, False, _merge("add")),
              ("delete_when", told, True, None))  # fmt: skip
    return modes + [
        Mode("mysql", f"{name} aside", how, columns, ordered, fold and _aside("mysql", fold), True)
        for name, how, ordered, fold in asides
    ]


def redis_modes() -> list[Mode]:
    """Every command; some of them with dead letters."""
    takes: dict[str, dict[str, Any]] = {
        "value": {"value": "n"},
        "fields": {"fields": ["n"]},
        "member": {"member": "m", "score": "n"},
        "": {},
    }
    modes = [
        Mode(
            "redis",
            name,
            {"command": name, **takes[kind.takes]},
            ("k", "m", "n"),
            ordered=kind.ordered and not kind.adds,
            fold=_REDIS.get(name),
        )
        for name, kind in KINDS.items()
    ]
    return modes + [
        replace(
            mode,
            name=f"{mode.name} aside",
            columns=("k", "m", "n", "s"),
            fold=_aside("redis", _REDIS[mode.name]),
            letters=True,
        )
        for mode in modes
        if mode.name in ("hincrby", "rpush")
    ]


@dataclass(frozen=True)
class Table:
    """A table of MySQL; ``query`` runs one statement there."""

    url: str
    query: Callable[[str], Sequence[Sequence[Any]]]
    name: str
    mode: Mode

    def create(self) -> Table:
        """The empty table."""
        key = ", PRIMARY KEY (k)" if "key" in self.mode.arguments else ""
        columns = ", ".join(f"{name} BIGINT" for name in self.mode.columns)
        columns += ", CHECK (s % 7 <> 3)" if self.mode.letters else ""
        self.query(f"CREATE TABLE {self.name} ({columns}{key}) ENGINE=InnoDB")
        return self

    def writer(self, atomicity: str) -> Writer:
        """See :class:`Target`."""
        more = dict(self.mode.arguments)
        if self.mode.letters:
            more |= {"on_bad_row": "dead_letter", "dead_letter_table": f"{self.name}_letters"}
        return MySQLWriter(self.url, self.name, atomicity=atomicity, retry_minutes=0.5, **more)

    def content(self) -> Content:
        """Values by key, or how often each row is there."""
        rows = self.query(f"SELECT {', '.join(self.mode.columns)} FROM {self.name}")
        found: Content = self._letters()
        if "key" in self.mode.arguments:
            return {**found, **{str(row[0]): row[1] for row in rows}}
        for row in rows:
            _append(found, dict(zip(self.mode.columns, row, strict=True)))
        return found

    def _letters(self) -> Content:
        name = f"{self.name}_letters"
        if not self.query(f"SHOW TABLES LIKE '{name}'"):
            return {}
        return _letters(row for (row,) in self.query(f"SELECT row_json FROM {name}"))

    def refill(self) -> Content:
        """Nobody else writes to it."""
        return {}


@dataclass(frozen=True)
class Keys:
    """Keys ``<prefix>:<k>`` of a Redis."""

    url: str
    client: Any
    prefix: str
    mode: Mode

    def create(self) -> Keys:
        """Filled, where there would be nothing to see otherwise."""
        self.refill()
        if self.mode.letters:
            self.client.set(f"{self.prefix}:{KEYS - 1}", 1)
        return self

    def writer(self, atomicity: str) -> Writer:
        """See :class:`Target`."""
        return RedisWriter(
            self.url,
            f"{self.prefix}:{{k}}",
            atomicity=atomicity,
            ledger=f"{self.prefix}_ledger",
            chunk_rows=2,
            retry_minutes=0.1,
            on_bad_row="dead_letter" if self.mode.letters else "fail",
            **self.mode.arguments,
        )

    def content(self) -> Content:
        """Values by key; of lists and streams without their order."""
        keys = sorted(self.client.scan_iter(f"{self.prefix}:*"))
        found = _letters(
            fields[b"row"] for _, fields in self.client.xrange(f"{self.prefix}_ledger:dead_letters")
        )
        for key in keys:
            found[key.decode().rpartition(":")[2]] = _value(self.client, key)
        return found

    def refill(self) -> Content:
        """Where keys are deleted there would be nothing to see."""
        if self.mode.name != "del":
            return {}
        self.client.mset({f"{self.prefix}:{key}": 1 for key in range(KEYS)})
        return {str(key): 1.0 for key in range(KEYS)}


def _letters(rows: Iterable[str | bytes]) -> Content:
    numbers = sorted(json.loads(row)["s"] for row in rows)
    return {"letters": numbers} if numbers else {}


def _aside(sink: str, fold: Fold) -> Fold:
    def either(content: Content, row: Row) -> None:
        if is_bad(sink, row):
            content["letters"] = sorted([*content.get("letters", ()), row["s"]])
        else:
            fold(content, row)

    return either


def _value(client: Any, key: bytes) -> Any:
    kind = client.type(key)
    if kind == b"string":
        return float(client.get(key))
    if kind == b"hash":
        return {name.decode(): float(value) for name, value in client.hgetall(key).items()}
    if kind == b"set":
        return sorted(map(float, client.smembers(key)))
    if kind == b"zset":
        return {name.decode(): score for name, score in client.zrange(key, 0, -1, withscores=True)}
    if kind == b"list":
        return sorted(map(float, client.lrange(key, 0, -1)))
    return sorted(sorted(fields.items()) for _, fields in client.xrange(key))


def _append(content: Content, row: Row) -> None:
    place = str(sorted(row.items()))
    content[place] = content.get(place, 0) + 1


def _merge(rule: str) -> Fold | None:
    known: dict[str, Callable[[int, int], int]] = {
        "replace": lambda _, new: new,
        "add": lambda old, new: old + new,
        "min": min,
        "max": max,
        "keep": lambda old, _: old,
        "coalesce": lambda _, new: new,
    }
    if rule not in known:
        return None

    def fold(content: Content, row: Row) -> None:
        place = str(row["k"])
        content[place] = known[rule](content[place], row["n"]) if place in content else row["n"]

    return fold


def _delete_when(content: Content, row: Row) -> None:
    if CONDITIONS[_GONE](row):
        content.pop(str(row["k"]), None)
    else:
        content[str(row["k"])] = row["n"]


def _set(content: Content, row: Row) -> None:
    content[str(row["k"])] = float(row["n"])


def _incrby(content: Content, row: Row) -> None:
    content[str(row["k"])] = content.get(str(row["k"]), 0.0) + row["n"]


def _hset(content: Content, row: Row) -> None:
    content[str(row["k"])] = {"n": float(row["n"])}


def _hincrby(content: Content, row: Row) -> None:
    content[str(row["k"])] = {"n": content.get(str(row["k"]), {"n": 0.0})["n"] + row["n"]}


def _sadd(content: Content, row: Row) -> None:
    content[str(row["k"])] = sorted({*content.get(str(row["k"]), ()), float(row["n"])})


def _zadd(content: Content, row: Row) -> None:
    content[str(row["k"])] = {**content.get(str(row["k"]), {}), str(row["m"]): float(row["n"])}


def _zincrby(content: Content, row: Row) -> None:
    scores = content.get(str(row["k"]), {})
    content[str(row["k"])] = {**scores, str(row["m"]): scores.get(str(row["m"]), 0.0) + row["n"]}


def _rpush(content: Content, row: Row) -> None:
    content[str(row["k"])] = sorted([*content.get(str(row["k"]), ()), float(row["n"])])


def _xadd(content: Content, row: Row) -> None:
    entry = [(b"n", b"%d" % row["n"])]
    content[str(row["k"])] = sorted([*content.get(str(row["k"]), ()), entry])


def _del(content: Content, row: Row) -> None:
    content.pop(str(row["k"]), None)


_REDIS: dict[str, Fold] = {
    "set": _set,
    "hset": _hset,
    "incrby": _incrby,
    "incrbyfloat": _incrby,
    "hincrby": _hincrby,
    "sadd": _sadd,
    "zadd": _zadd,
    "zincrby": _zincrby,
    "rpush": _rpush,
    "xadd": _xadd,
    "del": _del,
}
