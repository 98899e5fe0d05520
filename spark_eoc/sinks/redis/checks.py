"""What a Redis must be, and must be allowed to do, before the first row is written."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from hashlib import sha1
from typing import Any

import redis
from redis.exceptions import ExecAbortError, NoPermissionError, ResponseError

from spark_eoc.errors import ConfigError
from spark_eoc.sinks.redis.commands import Command
from spark_eoc.sinks.redis.lua_probe import (
    CLUSTER_COMMANDS,
    LEDGER_COMMANDS,
    PROBE_SCRIPT,
    STAGING_COMMANDS,
    UNNAMED_KEY_SCRIPT,
)
from spark_eoc.sinks.redis.rights import acl_rules, key_like, key_pattern, target_commands
from spark_eoc.sinks.redis.server import LOGGER, PassingError, may_pass, run_script

_FLOOR = (6, 2)


def check_server(
    client: redis.Redis, command: Command, ledger: str, node_tag: str | None = None
) -> None:
    """Raises ConfigError for a server that can't keep exactly-once; warns where it may forget.

    ``node_tag`` is a hash tag of a slot that this node of a cluster serves; None for a server
    that stands alone.
    """
    try:
        info: dict[str, Any] = client.info()
        _check_kind(info, command, cluster=node_tag is not None)
        _check_eviction(info)
        _warn_persistence(client, info)
        probe(client, command, ledger, node_tag)
    except (NoPermissionError, ExecAbortError) as error:
        raise _no_right(str(error), command, ledger) from None


def _no_right(problem: str, command: Command, ledger: str) -> ConfigError:
    return ConfigError(
        f"this user of Redis has not every right that command={command.name!r} needs: {problem}",
        applied="nothing",
        next_step=f"ACL SETUSER … {acl_rules(command, ledger)}",
    )


def probe(client: redis.Redis, command: Command, ledger: str, node_tag: str | None = None) -> None:
    """Runs every command that will be used, those on target keys on one of their pattern;
    ConfigError names the first that the server refuses."""
    lines, what = target_commands(command), f"command={command.name!r}"
    if node_tag is not None:  # a key of the pattern may lie on another node
        client.script_load("return 1")
        lines = [*LEDGER_COMMANDS, *CLUSTER_COMMANDS, *lines]
        _probe(client, _probe_keys(ledger, node_tag), lines, what)
        return
    keys = _probe_keys(ledger)
    _probe(client, keys, [*LEDGER_COMMANDS, "DEL L"], what)
    ask: Any = client.execute_command
    for word in ("MULTI", "EXEC", "TIME"):
        ask(word)
    client.evalsha(sha1(PROBE_SCRIPT.encode(), usedforsecurity=False).hexdigest(), 2, *keys)
    target = key_like(command, f"spark_eoc_probe_{secrets.token_hex(8)}")
    try:
        _probe(client, [keys[0], target], lines, what)
    except NoPermissionError as error:
        raise _no_right(f"{error} (keys like {key_pattern(command)!r})", command, ledger) from None


def check_batch(client: redis.Redis, ledger: str) -> None:
    """Raises ConfigError for a server on which no script can publish a whole batch."""
    info: dict[str, Any] = client.info("cluster")
    if info.get("cluster_enabled"):
        raise ConfigError(
            'this Redis is a Cluster, and atomicity="batch" needs one script that writes every key',
            applied="nothing",
            next_step='use atomicity="partition", or a Redis without cluster mode',
        )
    _probe(client, _probe_keys(ledger), STAGING_COMMANDS, 'atomicity="batch"')
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
    start = name if node_tag is None else f"{name}:{{{node_tag}}}"
    return [f"{start}:ledger", f"{start}:target"]


def _probe(client: redis.Redis, keys: Sequence[str], lines: Sequence[str], what: str) -> None:
    reply = run_script(client, PROBE_SCRIPT, keys, lines)
    if reply[0] == "OK":
        return
    _, verb, problem = reply
    if may_pass(problem):
        raise PassingError(problem)
    raise ConfigError(
        f"Redis refuses {verb}, which {what} needs: {problem}",
        applied="nothing",
        next_step=f"allow this user {verb}: ACL SETUSER … +{verb.lower()}",
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
