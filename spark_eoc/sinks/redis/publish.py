"""A staged batch, published in one script; and what dead runs have staged, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from spark_eoc.errors import BadRowError
from spark_eoc.sinks.entries import Fingerprint, Staged
from spark_eoc.sinks.ledger import check_staged, is_left_over
from spark_eoc.sinks.redis.keys import HALF, LedgerKeys, half_applied, parse_control, unit_text
from spark_eoc.sinks.redis.lua_publish import publish_script
from spark_eoc.sinks.redis.outcomes import MEND_ROW, bad_row_text
from spark_eoc.sinks.redis.server import PassingError, text
from spark_eoc.sinks.redis.staged import StagedEntry, StagedSize, parse_member, staging_member
from spark_eoc.sinks.redis.target import Target

#: What is deleted in one step: each key may hold megabytes.
_DELETE_AT_ONCE = 20


class Publication:
    """Publishes ``staged`` as batch ``batch_id``, opened under ``epoch``."""

    def __init__(
        self,
        target: Target,
        keys: LedgerKeys,
        batch_id: int,
        epoch: int,
        staged: Sequence[Staged],
        *,
        writer_id: str = "",
    ) -> None:
        self._writer_id = writer_id
        self._target, self._keys, self._batch_id, self._epoch = target, keys, batch_id, epoch
        self._staged = sorted(staged, key=lambda one: one.partition)

    def send(self, client: redis.Redis, store: Sequence[str | int]) -> bool:
        """One script; False if the ledger is not as ``store``, lua_store's arguments, says.

        Raises ReplayMismatchError if anything staged is not whole, BatchTooLargeError, BadRowError
        and PassingError, with nothing published; HalfAppliedError if the script failed half-way.
        """
        entries = self._ready(client)
        arguments = [*store, *self._arguments(entries)]
        answer, *facts = self._run(client, self._names(), arguments)
        if answer in (b"OK", b"CHANGED"):
            return bool(answer == b"OK")
        raise self._refusal(text(answer), facts)

    def _ready(self, client: redis.Redis) -> dict[str, StagedEntry]:
        """What is known of all that is staged, compared and not too large."""
        entries = self._entries(client)
        self._compare({name: entry.fingerprint for name, entry in entries.items()})
        sizes = [entry.size for entry in entries.values()]
        sum(sizes, StagedSize()).check(f"batch {self._batch_id}")
        return entries

    def _names(self) -> list[str]:
        keys = self._keys
        own = [keys.control, keys.units, keys.history, keys.staging]
        return own + [keys.staged(one.staging_id) for one in self._staged]

    def _run(
        self, client: redis.Redis, keys: Sequence[str], arguments: Sequence[str | int]
    ) -> list[bytes]:
        reply: Any = client.eval(self._source(), len(keys), *keys, *arguments)
        return list(reply)

    def _source(self) -> str:
        return publish_script(self._target.command.name, self._target.command.on_null)

    def _entries(self, client: redis.Redis) -> dict[str, StagedEntry]:
        with client.pipeline(transaction=False) as pipe:
            for one in self._staged:
                pipe.hget(self._keys.staged(one.staging_id), "entry")
            found = pipe.execute()
        return {
            one.staging_id: StagedEntry.parse(text(entry))
            for one, entry in zip(self._staged, found, strict=True)
            if entry is not None
        }

    def _compare(self, found: Mapping[str, Fingerprint]) -> None:
        check_staged(self._batch_id, self._staged, found)

    def _arguments(self, entries: Mapping[str, StagedEntry]) -> list[str | int]:
        fingerprint = Fingerprint.sum([one.fingerprint for one in self._staged])
        half = unit_text(self._batch_id, fingerprint, HALF)
        arguments: list[str | int] = [half, len(self._staged)]
        for one in self._staged:
            arguments.append(str(entries[one.staging_id]))
            arguments.append(staging_member(self._epoch, self._batch_id, one.staging_id))
        return arguments

    def _refusal(self, answer: str, facts: Sequence[bytes]) -> Exception:
        if answer == "HALF":
            partition, entry, *problem = map(text, facts)
            return half_applied(int(partition), entry, " ".join(problem))
        if answer == "REFUSED":
            return PassingError(text(facts[0]))
        at = int(facts[0]) - 1
        if answer == "LOST":
            found = {one.staging_id: one.fingerprint for one in self._staged}
            # Of no version, so that it is equal to nothing, whatever was counted.
            self._compare({**found, self._staged[at].staging_id: Fingerprint(int(facts[1]), 0, 0)})
        reason = f"command={self._target.command.name!r}: {text(facts[2])}"
        return BadRowError(
            bad_row_text(self._staged[at].partition, self._batch_id, facts[1], reason),
            applied="nothing of this batch",
            next_step=MEND_ROW,
        )


def clear_staged(client: redis.Redis, keys: LedgerKeys) -> None:
    """Deletes what nobody can publish any more.

    No task can stage such a partition again, since it would have to prove an older token.
    """
    with client.pipeline(transaction=True) as pipe:
        pipe.hgetall(keys.control)
        pipe.smembers(keys.staging)
        fields, found = pipe.execute()
    control = parse_control({text(name): text(value) for name, value in fields.items()})
    members = [text(member) for member in found]
    old = [member for member in members if is_left_over(control, *parse_member(member)[:2])]
    delete_staged(client, keys, old)


def delete_staged(client: redis.Redis, keys: LedgerKeys, old: Sequence[str]) -> None:
    """Deletes staged partitions, named as in the set of them."""
    for start in range(0, len(old), _DELETE_AT_ONCE):
        some = old[start : start + _DELETE_AT_ONCE]
        with client.pipeline(transaction=True) as pipe:
            ids = [parse_member(member)[2] for member in some]
            pipe.delete(*map(keys.staged, ids), *map(keys.given, ids))
            pipe.srem(keys.staging, *some)
            pipe.execute()
