"""What a Redis must be, and must be allowed to do, before the first row is written."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import redis
from redis.exceptions import ResponseError

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.lua_probe import (
    LEDGER_COMMANDS,
    PROBE_SCRIPT,
    STAGING_COMMANDS,
    UNNAMED_KEY_SCRIPT,
)
from spark_eoc.sinks.redis.server import LOGGER, PassingError, may_pass, run_script

_FLOOR = (6, 2)


def check_server(
    client: redis.Redis, command: Command, ledger: str, node_tag: str | None = None
) -> None:
    """Raises ConfigError for a server that can't keep exactly-once; warns where it may forget.

    ``node_tag`` is a hash tag of a slot that this node of a cluster serves; None for a server
    that stands alone.
    """
    info: dict[str, Any] = client.info()
    _check_kind(info, command, cluster=node_tag is not None)
    _check_eviction(info)
    _warn_persistence(client, info)
    probe(client, command, ledger, node_tag)


def probe(client: redis.Redis, command: Command, ledger: str, node_tag: str | None = None) -> None:
    """Runs every command that will be used on keys of its own; ConfigError names the first that
    the server refuses."""
    lines = [*LEDGER_COMMANDS, *command.kind.probe, "DEL K"]
    if command.name == "set" and command.ttl is not None:
        lines.append("SET K 1 EX 100")
    elif command.ttl is not None:
        lines.append("EXPIRE K 100")
    _probe(client, ledger, lines, f"command={command.name!r}", node_tag)


def check_batch(client: redis.Redis, ledger: str) -> None:
    """Raises ConfigError for a server on which no script can publish a whole batch."""
    info: dict[str, Any] = client.info("cluster")
    if info.get("cluster_enabled"):
        raise ConfigError(
            'this Redis is a Cluster, and atomicity="batch" needs one script that writes every key',
            applied="nothing",
            next_step='use atomicity="partition", or a Redis without cluster mode',
        )
    _probe(client, ledger, STAGING_COMMANDS, 'atomicity="batch"')
    named, unnamed = _probe_keys(ledger)
    reply = run_script(client, UNNAMED_KEY_SCRIPT, [named], [unnamed])
    if reply[0] != "OK":
        raise ConfigError(
            f"this Redis lets no script write a key that the call did not name: {reply[1]}",
            applied="nothing",
            next_step='use atomicity="partition"',
        )


def _probe_keys(ledger: str, node_tag: str | None = None) -> list[str]:
    name = f"{ledger}:probe:{secrets.token_hex(8)}"
    start = f"{{{name}}}" if node_tag is None else f"{name}:{{{node_tag}}}"
    return [f"{start}:ledger", f"{start}:target"]


def _probe(
    client: redis.Redis,
    ledger: str,
    lines: Sequence[str],
    what: str,
    node_tag: str | None = None,
) -> None:
    reply = run_script(client, PROBE_SCRIPT, _probe_keys(ledger, node_tag), lines)
    if reply[0] == "OK":
        return
    _, verb, problem = reply
    if may_pass(problem):
        raise PassingError(problem)
    raise ConfigError(
        f"Redis refuses {verb}, which {what} needs: {problem}",
        applied="nothing",
        next_step=f"allow this user {verb} on the target's keys and on the ledger's, {ledger}:*",
    )


def _check_kind(info: dict[str, Any], command: Command, *, cluster: bool) -> None:
    version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
    if version < _FLOOR:
        raise ConfigError(
            f"Redis {info['redis_version']} is too old",
            next_step="use Redis 6.2 or newer, or Valkey",
        )
    if command.name == "incrbyfloat" and version < (7, 0):
        # Seen with 6.2.14: one is enough to crash the server, some time later.
        raise ConfigError(
            f"Redis {info['redis_version']} crashes after a script has run INCRBYFLOAT",
            applied="nothing",
            next_step="use Redis 7.0 or newer, or hincrby with whole numbers",
        )
    if info.get("cluster_enabled") and not cluster:
        raise ConfigError(
            "this Redis is a node of a Cluster, and one partition's keys lie on several nodes",
            applied="nothing",
            next_step="write the URL as redis+cluster://host:port,host:port with some of the "
            "cluster's nodes (rediss+cluster for TLS)",
        )
    if info.get("role") not in ("master", None):
        raise PassingError(f"READONLY this server is a {info['role']}, not a primary")


def _check_eviction(info: dict[str, Any]) -> None:
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys-"):
        raise ConfigError(
            f"maxmemory-policy is {policy}: Redis may throw away the ledger when memory is short, "
            "and what was applied would be applied again",
            applied="nothing",
            next_step="CONFIG SET maxmemory-policy noeviction (or a volatile- policy), also in "
            "redis.conf",
        )
    if policy != "noeviction":
        LOGGER.warning(
            "maxmemory-policy is %s: the ledger has no TTL and stays, but target keys with a TTL "
            "may be evicted early, and a counter then starts again at 0",
            policy,
        )


def _warn_persistence(client: redis.Redis, info: dict[str, Any]) -> None:
    if info.get("aof_enabled"):
        return
    try:
        save = client.config_get("save").get("save", "")
    except ResponseError:
        return  # a managed Redis does not show its configuration
    if save:
        LOGGER.warning(
            "Redis keeps snapshots only (appendonly no): a crash takes it back to the newest one. "
            "The ledger goes back with the rows, so this is noticed and refused, not repaired"
        )
    else:
        LOGGER.warning(
            "Redis persists nothing (appendonly no, save off): a restart loses rows and ledger "
            "together, and the next batch will be refused"
        )
