"""Rows that can't be written whatever Redis holds, where they are put aside: which, and where they
stand; and what dead letters need."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.dead_letters import RefusedRow
from spark_eoc.sinks.order import in_order
from spark_eoc.sinks.redis.cluster.address import ClusterAddress
from spark_eoc.sinks.redis.lua_aside import ASIDE_COMMANDS
from spark_eoc.sinks.redis.lua_probe import PROBE_SCRIPT
from spark_eoc.sinks.redis.operations import problems
from spark_eoc.sinks.redis.refusal import Problem
from spark_eoc.sinks.redis.server import run_script, text
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.redis.window import WINDOW_ROWS
from spark_eoc.sinks.rows import Rows

#: One script must be able to hold a batch's letters.
MOST_LETTERS = 10_000


def check_limit(limit: int) -> None:
    """ConfigError for a limit that no script can hold."""
    if limit > MOST_LETTERS:
        raise ConfigError(
            f"dead_letter_limit={limit} is more than one script can hold",
            next_step=f"use up to {MOST_LETTERS}",
        )


def check_stream(client: redis.Redis, target: Target, node_tag: str | None = None) -> None:
    """Raises ConfigError if dead letters could not be written; ``node_tag`` as for
    :func:`~spark_eoc.sinks.redis.checks.check_server`, of a cluster's node."""
    kind: Any = client.type(target.dead_letters) if node_tag is None else b"none"
    if text(kind) not in ("none", "stream"):
        raise ConfigError(
            f"dead_letter_key={target.dead_letters!r} holds a {text(kind)}, and dead letters need "
            "a stream",
            applied="nothing",
            next_step="choose another key",
        )
    name = f"{target.ledger}:probe:{secrets.token_hex(8)}"
    name = name if node_tag is None else f"{name}:{{{node_tag}}}"
    answer, *facts = run_script(client, PROBE_SCRIPT, [f"{name}:1", f"{name}:2"], ASIDE_COMMANDS)
    if answer != "OK":
        raise ConfigError(
            f'Redis refuses {facts[0]}, which on_bad_row="dead_letter" needs: {facts[1]}',
            applied="nothing",
            next_step=f"allow this user {facts[0]} on {target.dead_letters!r}",
        )


def bad_rows(target: Target, rows: Rows, most: int | None = None) -> dict[int, RefusedRow]:
    """The rows that can't be written, whatever Redis holds; stops looking above ``most``."""
    found: dict[int, RefusedRow] = {}
    for base in range(0, len(rows), WINDOW_ROWS):
        part = rows.slice(base, min(len(rows), base + WINDOW_ROWS))
        for problem in _problems(target, part):
            for row in pc.indices_nonzero(pc.fill_null(problem.mask, False)).to_pylist():
                refused = RefusedRow(base + row, problem.reason, problem.column)
                found.setdefault(base + row, refused)
                if most is not None and len(found) > most:
                    return found
        rows.release()
    return found


def _problems(target: Target, rows: Rows) -> Iterator[Problem]:
    key = target.command.key
    yield from problems(target.command, target.ledger, rows)
    keys = key.render(rows.table)
    mask = pc.equal(keys, target.dead_letters.encode())
    if isinstance(target.address, ClusterAddress):
        mask = pc.or_(mask, pc.starts_with(keys, f"{target.dead_letters}:{{".encode()))
    yield from Problem.found(mask, key.columns[0], "its key is that of the dead letters")


def bad_last(target: Target, rows: Rows) -> Rows:
    """The rows in their order, but those that can't be written at the end, by their hash."""
    if not bad_rows(target, rows, 0):
        return rows
    return in_order(rows, lambda part: _bad_by_hash(target, part))


def _bad_by_hash(target: Target, rows: Rows) -> pa.Table:
    """False and nothing for a good row, true and its hash for a bad one."""
    bad = pa.repeat(pa.scalar(False), len(rows))
    for problem in _problems(target, rows):
        bad = pc.or_(bad, pc.fill_null(problem.mask, False))
    return pa.table({"bad": bad, "hash": pc.if_else(bad, rows.hashes, pa.scalar(0, pa.int64()))})
