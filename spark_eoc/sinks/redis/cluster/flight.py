"""One script for many slots: sent to all nodes at once, many calls on each connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha1
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from spark_eoc.sinks.redis.cluster.keys import ClusterKeys
from spark_eoc.sinks.redis.cluster.nodes import Nodes, SlotPlace, asked_place
from spark_eoc.sinks.redis.replicas import Replicas
from spark_eoc.sinks.redis.resp import bulk, command
from spark_eoc.sinks.redis.server import PassingError, Patience, run_script, text

#: Calls and bytes that are under way at a time.
FLIGHT_CALLS = 1000
FLIGHT_BYTES = 2 * 1024 * 1024

Reply = list[Any] | RedisError


@dataclass(frozen=True)
class SlotCall:
    """A script's call for one slot: ``count`` encoded arguments, from the number of keys on."""

    slot: int
    count: int
    parts: Sequence[bytes | memoryview]

    @classmethod
    def of(cls, slot: int, keys: Sequence[str], arguments: Sequence[str | int]) -> SlotCall:
        """From plain keys and arguments."""
        words = [str(len(keys)), *keys, *map(str, arguments)]
        return cls(slot, len(words), [bulk(*(word.encode() for word in words))])

    @property
    def size(self) -> int:
        """Bytes on their way."""
        return sum(map(len, self.parts))


def flights(calls: Iterable[SlotCall]) -> Iterator[list[SlotCall]]:
    """Cut into what is sent before any answer is read."""
    flight: list[SlotCall] = []
    size = 0
    for call in calls:
        if flight and (len(flight) == FLIGHT_CALLS or size + call.size > FLIGHT_BYTES):
            yield flight
            flight, size = [], 0
        flight.append(call)
        size += call.size
    if flight:
        yield flight


def fly(
    nodes: Nodes, script: str, flight: Sequence[SlotCall], replicas: Replicas, keys: ClusterKeys
) -> dict[int, Reply]:
    """Each slot's answer, or the error that it met: then nothing is known of that slot.

    With ``replicas`` the answers of a node are believed only if enough of its replicas have what
    was written until then. After any error everything is looked up again.
    """
    source = script.encode()
    digest = sha1(source, usedforsecurity=False).hexdigest().encode()
    replies: dict[int, Reply] = {}
    sent: list[tuple[str, list[SlotCall]]] = []
    try:
        for place, calls in _by_place(nodes, flight).items():
            sent.append((place, calls))
            waited = _wait_words(calls[0], replicas, keys)
            _send(nodes, place, calls, (source, digest), waited)
        for place, calls in sent:
            replies.update(_receive(nodes, place, calls, replicas))
    except RedisError as error:
        nodes.forget()
        return {call.slot: replies.get(call.slot, error) for call in flight}
    if any(isinstance(reply, NoScriptError) for reply in replies.values()):
        nodes.known_scripts.clear()
    return replies


def each_slot(
    nodes: Nodes,
    script: str,
    calls: Mapping[int, Sequence[str | int]],
    keys: ClusterKeys,
    patience: tuple[str, float],
) -> dict[int, list[str]]:
    """A small script in every slot of ``calls``, which holds its arguments: all the answers.

    What a flight did not bring is done one by one, within a budget: ``patience`` is what for and
    how many seconds. Raises SinkUnavailableError.
    """
    orders = [SlotCall.of(s, [keys.slot(s).control], words) for s, words in calls.items()]
    found: dict[int, list[str]] = {}
    for flight in flights(orders):
        for slot, reply in fly(nodes, script, flight, Replicas(), keys).items():
            if isinstance(reply, list) and reply[0] != b"REFUSED":
                found[slot] = [text(part) for part in reply]
                continue
            place = SlotPlace(nodes, slot, asked_place(reply))
            step = partial(_run, script, keys.slot(slot).control, calls[slot])
            found[slot] = Patience(place, *patience).keep_trying(step)
    return found


def _run(script: str, key: str, arguments: Sequence[str | int], client: Any) -> list[str]:
    reply = run_script(client, script, [key], arguments)
    if reply[0] == "REFUSED":
        raise PassingError(reply[1])
    return reply


def _by_place(nodes: Nodes, flight: Sequence[SlotCall]) -> dict[str, list[SlotCall]]:
    found: dict[str, list[SlotCall]] = {}
    for call in flight:
        found.setdefault(nodes.place(call.slot), []).append(call)
    return found


def _wait_words(call: SlotCall, replicas: Replicas, keys: ClusterKeys) -> list[bytes]:
    if not replicas.count:
        return []
    waited = keys.slot(call.slot).waited.encode()
    wait = bulk(b"%d" % replicas.count, b"%d" % replicas.timeout_ms)
    return [command(b"HSET", 3, [bulk(waited, b"waited", b"1")]), command(b"WAIT", 2, [wait])]


def _send(
    nodes: Nodes,
    place: str,
    calls: Sequence[SlotCall],
    script: tuple[bytes, bytes],
    after: Sequence[bytes],
) -> None:
    client: Any = nodes.client(place)
    source, digest = script
    if (place, digest) not in nodes.known_scripts:
        client.execute_command("SCRIPT", "LOAD", source)
        nodes.known_scripts.add((place, digest))
    packed = [command(b"EVALSHA", call.count + 1, [bulk(digest), *call.parts]) for call in calls]
    client.connection.send_packed_command([b"".join([*packed, *after])], check_health=False)


def _receive(
    nodes: Nodes, place: str, calls: Sequence[SlotCall], replicas: Replicas
) -> dict[int, Reply]:
    connection: Any = nodes.client(place).connection
    found: dict[int, Reply] = {call.slot: _reply(connection) for call in calls}
    if replicas.count:
        written, reached = _reply(connection), _reply(connection)
        if isinstance(written, RedisError) or isinstance(reached, RedisError):
            return dict.fromkeys(found, ResponseError("WAIT was refused"))
        if int(reached) < replicas.count:
            return dict.fromkeys(found, ResponseError("too few replicas"))
    return found


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
