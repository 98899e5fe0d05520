"""The least rights of a writer's user, as the rules of ``ACL SETUSER``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.lua_probe import LEDGER_COMMANDS

#: What is run outside of scripts.
CONNECTION_COMMANDS = ("INFO", "EVAL", "EVALSHA", "MULTI", "EXEC", "TIME", "SELECT")


def acl_rules(command: Command, ledger: str, also: Sequence[str] = ()) -> str:
    """Key patterns and commands, such as ``~spark_eoc:* ~user:* +info +eval … +hset``.

    ``also`` are lines of further commands, as the probe runs them.
    """
    lines = [*CONNECTION_COMMANDS, *LEDGER_COMMANDS, *target_commands(command), *also]
    verbs = dict.fromkeys(line.split()[0].lower() for line in lines)
    patterns = (f"{_literal(ledger)}:*", key_pattern(command))
    return " ".join([*(f"~{pattern}" for pattern in patterns), *(f"+{verb}" for verb in verbs)])


def target_commands(command: Command) -> list[str]:
    """What is run on target keys, one line a command, ``K`` for the key."""
    lines = [*command.kind.probe, "DEL K"]
    if command.name == "set" and command.ttl is not None:
        lines.append("SET K 1 EX 100")
    elif command.ttl is not None:
        lines.append("EXPIRE K 100")
    return lines


def key_pattern(command: Command) -> str:
    """The pattern of the command's keys: ``user:*`` for ``user:{user_id}``."""
    return "*".join(_literal(literal) for literal in command.key.literals)


def key_like(command: Command, value: str) -> str:
    """A key of the command's pattern, with ``value`` in each place."""
    return value.join(command.key.literals)


def _literal(text: str) -> str:
    return re.sub(r"([*?\[\]\\^])", r"\\\1", text)
