"""How lines get to a query under kills: as files, to its port, or to a receiver beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from spark_eoc.testing.daemons import ReceiverDaemon
from spark_eoc.testing.inputs import FolderInput, Input, ProcessInput, SocketInput
from spark_eoc.testing.kills import Kill
from spark_eoc.testing.place import Place
from spark_eoc.testing.server import Server

#: ``folder``: files appear in ``place.input``. ``listen``: lines come to ``place.listen`` by the
#: acknowledged protocol. ``buffer``: to ``spark-eoc receive``, which fills ``place.buffer``.
FEEDS = ("folder", "listen", "buffer")


@dataclass(frozen=True)
class Feed:
    """An input, and the processes of it that may be killed."""

    input: Input
    servers: Mapping[Kill, Server] = field(default_factory=dict)


def open_feed(
    how: str,
    lines: Sequence[bytes],
    place: Place,
    stack: ExitStack,
    *,
    per_second: float,
    kinds: Collection[Kill] = (),
) -> Feed:
    """The input of one of FEEDS; ``stack`` closes what is started for it.

    The producer is a process of its own with ``buffer``, and where ``kinds`` name it.
    """
    folder = Path(place.folder)
    if how == "folder":
        return Feed(FolderInput(lines, place.input, per_second=per_second))
    servers: dict[Kill, Server] = {}
    if how == "buffer":
        receiver = ReceiverDaemon.on(place.buffer, folder / "receiver")
        servers[Kill.RECEIVER] = stack.enter_context(receiver)
        host, port = "127.0.0.1", receiver.port
    else:
        # An IPv6 address has brackets around it there.
        host, port = place.listen.rpartition(":")[0].strip("[]"), place.port
    if how == "listen" and Kill.PRODUCER not in kinds:
        transcript = folder / "transcript"
        sent = SocketInput(lines, port, transcript=transcript, host=host, per_second=per_second)
        return Feed(sent)
    process = ProcessInput(
        lines, port, folder=folder / "producer", host=host, per_second=per_second
    )
    servers[Kill.PRODUCER] = stack.enter_context(process.producer)
    return Feed(process, servers)
