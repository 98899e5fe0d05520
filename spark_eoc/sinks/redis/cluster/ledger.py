"""The driver's side of the ledger in a cluster: open, fence, read, settle, close."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import redis

from spark_eoc.errors import FencedError, ReplayMismatchError
from spark_eoc.sinks.entries import Control, Fingerprint, UnitEntry
from spark_eoc.sinks.ledger import Close, Compare, Open
from spark_eoc.sinks.redis.cluster.flight import each_slot
from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.lost import behind
from spark_eoc.sinks.redis.cluster.lua_control import CLUSTER_STORE_SCRIPT
from spark_eoc.sinks.redis.cluster.lua_slot import (
    CHECK_SCRIPT,
    READ_SCRIPT,
    SETTLE_SCRIPT,
    TAKE_SCRIPT,
)
from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace
from spark_eoc.sinks.redis.cluster.registered import Registered
from spark_eoc.sinks.redis.keys import parse_unit
from spark_eoc.sinks.redis.server import PassingError, Patience, run_script
from spark_eoc.sinks.redis.store import Seen, changes, texts_of
from spark_eoc.sinks.redis.target import Target
from spark_eoc.sinks.store import CloseDecision, OpenDecision


class ClusterLedger:
    """One writer's ledger, for one step of the driver's."""

    def __init__(self, target: Target, nodes: Nodes, writer_id: str) -> None:
        self._target, self._nodes, self._writer_id = target, nodes, writer_id
        self._keys = ClusterKeys.of(target.ledger, writer_id)

    def open(self, batch_id: int, decide: OpenDecision) -> Open | Compare:
        """Decides and stores, then fences: no older call can write when it returns."""
        servers = self._servers()
        checked = False
        registered = Registered(decide)
        while True:
            decision = self._try_open(batch_id, registered, servers, checked)
            if decision is not None:
                break
            self._check_floors()
            checked = True
        if isinstance(decision, Open):
            self.fence(decision.control)
            if registered.doubtful:
                decision = self._decided(batch_id, registered) or decision
        self.wait_everywhere()
        return decision

    def _decided(self, batch_id: int, registered: Registered) -> Open | None:
        """Stores what could be decided only now; nothing if another call has taken over, which
        this call's tasks will be told."""
        decision = registered.finally_(len(self.units(batch_id)))
        if decision is None:
            return None

        def step(client: redis.Redis) -> None:
            while True:
                seen = self._read(client, batch_id)[0]
                control = seen.view.control
                if control is None or control.token != decision.control.token:
                    return
                if self._store_on(client, seen, decision, None):
                    return

        self._patience("open a batch").keep_trying(step)
        return decision

    def fence(self, control: Control) -> None:
        """Takes over the entry of every slot in which an older call may write.

        No slot is added to the list under an older token any more, since the control entry has
        this call's.
        """
        self._in_slots(TAKE_SCRIPT, control, self._touched(), "fence the slots of a batch")

    def units(self, batch_id: int) -> list[UnitEntry]:
        """What is applied of the batch, by partition, over all of its slots."""
        _, touched, registered = self._look(batch_id)
        found = self._calls(READ_SCRIPT, dict.fromkeys(touched, ("", batch_id, 0, 0)))
        return _by_partition(batch_id, found, registered, self._keys)

    def close(self, batch_id: int, decide: CloseDecision) -> None:
        """Settles every slot, lets ``decide`` compare, and completes the batch."""
        while True:
            seen, touched, registered = self._look(batch_id)
            if not _still_own(seen, decide):
                break
            control = seen.view.control
            assert control is not None  # noqa: S101  `decide` has refused that
            settled = self._in_slots(SETTLE_SCRIPT, control, touched, "settle a batch's slots")
            units = _by_partition(batch_id, settled, registered, self._keys)
            # Only now: a batch is complete once its replicas have it.
            self.wait_everywhere()
            decision = decide(seen.view, units)
            if decision is None or self._store(seen, decision):
                break
        self.wait_everywhere()

    def wait_everywhere(self) -> None:
        """Waits until the replicas of every primary have what was written before."""
        replicas = self._target.replicas
        if not replicas.count:
            return
        for slot in self._patience("find its nodes").keep_trying(
            lambda _: list(self._nodes.primaries().values())
        ):
            waited = self._keys.slot(slot).waited
            place = SlotPlace(self._nodes, slot)
            Patience(place, "wait for replicas", self._target.budget_s).keep_trying(
                lambda client, waited=waited: replicas.wait(client, waited)  # type: ignore[misc]
            )

    # -- one step each -------------------------------------------------------------------------

    def _try_open(
        self, batch_id: int, decide: OpenDecision, servers: str, checked: bool
    ) -> Open | Compare | None:
        """None if the slots must be looked at first, since servers have changed."""

        def step(client: redis.Redis) -> Open | Compare | None:
            while True:
                seen = self._read(client, batch_id)[0]
                decision = decide(seen.view)
                if seen.view.control is not None and seen.servers != servers and not checked:
                    return None
                if isinstance(decision, Compare):
                    return decision
                if self._store_on(client, seen, decision, servers):
                    return decision

        return self._patience("open a batch").keep_trying(step)

    def _look(self, batch_id: int) -> tuple[Seen, list[int], dict[int, Fingerprint]]:
        """The ledger, the touched slots, and what each partition's tasks registered."""
        seen, touched = self._patience("show its ledger").keep_trying(
            lambda client: self._read(client, batch_id)
        )
        registered = {
            int(partition): parse_unit(int(partition), text).fingerprint
            for partition, text in seen.units.items()
            if text.partition("|")[0] == str(batch_id)
        }
        return seen, touched, registered

    def _read(self, client: redis.Redis, batch_id: int) -> tuple[Seen, list[int]]:
        keys = self._keys.control
        with client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.control)
            pipe.hgetall(keys.units)
            pipe.hget(keys.history, str(batch_id))
            pipe.time()
            pipe.smembers(self._keys.touched)
            *reply, touched = pipe.execute()
        return Seen.of(self._writer_id, keys, batch_id, reply), sorted(map(int, touched))

    def _touched(self) -> list[int]:
        return self._patience("show its slots").keep_trying(
            lambda client: sorted(map(int, client.smembers(self._keys.touched)))
        )

    def _store(self, seen: Seen, decision: Close) -> bool:
        return self._patience("close a batch").keep_trying(
            lambda client: self._store_on(client, seen, decision, None)
        )

    def _store_on(
        self, client: redis.Redis, seen: Seen, decision: Open | Close, servers: str | None
    ) -> bool:
        """False if the ledger changed since it was read; nothing was stored then."""
        more = {} if servers is None else {"servers": servers}
        arguments = [*seen.expected(), *changes(self._writer_id, decision, more)]
        beside = [self._keys.touched, self._keys.floors]
        keys = [seen.keys.control, seen.keys.units, seen.keys.history, *beside]
        answer, *facts = run_script(client, CLUSTER_STORE_SCRIPT, keys, arguments)
        if answer == "REFUSED":
            raise PassingError(facts[0])
        return answer == "OK"

    # -- all slots -----------------------------------------------------------------------------

    def _in_slots(
        self, script: str, control: Control, slots: Sequence[int], what: str
    ) -> dict[int, list[str]]:
        """A script that makes slots this call's; raises FencedError or SinkBehindError."""
        batch = "" if control.open_batch is None else control.open_batch
        floors = self._floors(slots)
        calls = {s: (control.token, batch, control.epoch, floors[s]) for s in slots}
        found = self._calls(script, calls, what)
        for slot, (answer, *facts) in found.items():
            if answer == "FENCED":
                raise _overtaken(slot, facts[0], control)
            if answer == "BEHIND":
                raise behind(slot, control.epoch, facts, floors[slot])
        return found

    def _check_floors(self) -> None:
        """Raises SinkBehindError if any slot that was ever settled has lost its settlement."""
        floors = self._patience("show its slots").keep_trying(
            lambda client: texts_of(client.hgetall(self._keys.floors))
        )
        calls = {int(slot): ("", "", 0, floor) for slot, floor in floors.items()}
        for slot, (answer, *facts) in self._calls(CHECK_SCRIPT, calls).items():
            if answer == "BEHIND":
                raise behind(slot, 0, facts, floors[str(slot)])

    def _calls(
        self,
        script: str,
        calls: Mapping[int, Sequence[str | int]],
        what: str = "read the ledger's slots",
    ) -> dict[int, list[str]]:
        return each_slot(self._nodes, script, calls, self._keys, (what, self._target.budget_s))

    def _floors(self, slots: Sequence[int]) -> dict[int, str]:
        def step(client: Any) -> dict[int, str]:
            found = client.hmget(self._keys.floors, [str(slot) for slot in slots])
            return {s: (f or b"0").decode() for s, f in zip(slots, found, strict=True)}

        return self._patience("show its slots").keep_trying(step) if slots else {}

    def _servers(self) -> str:
        """Names the primaries that run now: another name if one was restarted or replaced.

        What a primary has in memory stays while it runs as one; only a change can lose writes.
        """

        def step(_: redis.Redis) -> str:
            names = []
            for place in self._nodes.primaries():
                client: Any = self._nodes.client(place)
                server, replication = client.info("server"), client.info("replication")
                names.append(f"{server['run_id']} {replication['master_replid']}")
            return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:32]

        return self._patience("find its nodes").keep_trying(step)

    def _patience(self, what: str) -> Patience:
        place = SlotPlace(self._nodes, self._keys.control_slot)
        return Patience(place, what, self._target.budget_s)


def _still_own(seen: Seen, decide: CloseDecision) -> bool:
    """False if this very call has closed the batch already; raises FencedError if another has.

    Only ``decide`` knows this call's token. Asked without units it refuses them at most, and
    nobody else's slots may be settled.
    """
    try:
        return decide(seen.view, []) is not None
    except ReplayMismatchError:
        return True


def _overtaken(slot: int, epoch: str, control: Control) -> FencedError:
    return FencedError(
        f"another call has taken over: slot {slot} of the Redis Cluster is at epoch {epoch}, and "
        f"this call opened epoch {control.epoch}",
        applied="what its tasks had committed; the new owner completes the batch",
        next_step="let this run end; only one run of a query may be alive",
    )


def _by_partition(
    batch_id: int,
    found: dict[int, list[str]],
    registered: dict[int, Fingerprint],
    keys: ClusterKeys,
) -> list[UnitEntry]:
    """Units of partitions, of those in their slots; complete if they are all that a task said."""
    by: dict[int, list[tuple[int, UnitEntry]]] = {}
    for slot, (_, *facts) in sorted(found.items()):
        for partition, text in _pairs(facts):
            entry = parse_unit(int(partition), text, f"key {keys.slot(slot).units}")
            by.setdefault(int(partition), []).append((slot, entry))
    return [_summed(p, batch_id, entries, registered.get(p)) for p, entries in by.items()]


def _summed(
    partition: int,
    batch_id: int,
    entries: Sequence[tuple[int, UnitEntry]],
    registered: Fingerprint | None,
) -> UnitEntry:
    whole = Fingerprint.sum([entry.fingerprint for _, entry in entries])
    letters = sum(entry.dead_letters for _, entry in entries)
    if registered == whole and all(entry.complete for _, entry in entries):
        return UnitEntry(partition, batch_id, whole, dead_letters=letters)
    parts = tuple((slot, entry.rows_done) for slot, entry in entries)
    return UnitEntry(partition, batch_id, whole, complete=False, parts=parts, dead_letters=letters)


def _pairs(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    return zip(words[::2], words[1::2], strict=True)
