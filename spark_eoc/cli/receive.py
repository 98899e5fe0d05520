"""``spark-eoc receive``: the receiver as a daemon that fills a buffer."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from spark_eoc.cli.locked import naming_the_holder
from spark_eoc.cli.usage import address_text, amount, only_with, reading_options
from spark_eoc.errors import LogError, SparkEocError

if TYPE_CHECKING:
    from spark_eoc.buffer.interface import BufferWriter
    from spark_eoc.receiver import Receiver
    from spark_eoc.source.options import SourceOptions

TOKEN_VARIABLE = "SPARK_EOC_TOKEN"  # noqa: S105  the name of a variable
POLL_S = 0.2
HEALTH_S = 10.0

TAKEOVER = "give --takeover-ms to have a stopped writer killed"

DESCRIPTION = f"""\
Takes lines from sockets and makes them durable in a buffer, until it gets SIGTERM. A query reads
the buffer with format("replayable_socket") and the option bufferPath alone; it may be stopped and
killed while lines keep coming in.

It prints one line that begins with "ready" when it takes lines, and then only what is wrong; with
--json one object a line: ready, health, stopped. Started by systemd it says so there, too.

The options have the names, values and defaults of the source's own. The shared secret of
producers is read from the variable {TOKEN_VARIABLE}."""

#: Flag, the source's option, what stands for its value, and what it says; values are read by the
#: source's own parser.
FLAGS = (
    ("--max-line-bytes", "maxLineBytes", "BYTES", "longest line (16 MiB)"),
    ("--on-oversize-line", "onOversizeLine", "RULE", "error (default), truncate or skip"),
    ("--flush-interval-ms", "flushIntervalMs", "MS", "how long lines may wait for an fsync (10)"),
    ("--segment-bytes", "segmentBytes", "BYTES", "size of a segment (64 MiB)"),
    ("--max-buffer-bytes", "maxBufferBytes", "BYTES", "limit on what isn't handed out yet (4 GiB)"),
    (
        "--retention",
        "retention",
        "AGE,SIZE",
        "kept after all consumers, such as 12h or '1d, 20GiB'",
    ),
    ("--takeover-ms", "takeoverMs", "MS", "kill a writer that stays stopped for so long"),
    ("--max-connections", "maxConnections", "N", "limit on connections (1024)"),
    ("--idle-timeout-ms", "idleTimeoutMs", "MS", "let go of who is silent for so long (never)"),
    ("--max-bytes-per-second", "maxBytesPerSecond", "BYTES", "limit on what one connection sends"),
    ("--tls-cert", "tlsCert", "FILE", "PEM file of the certificate"),
    ("--tls-key", "tlsKey", "FILE", "PEM file of its key"),
    ("--tls-ca", "tlsCa", "FILE", "PEM file: only peers with a certificate of this authority"),
)
#: How a message about a source's option calls it here.
NAMES = {
    "bufferPath": "--buffer",
    "listen": "--listen",
    "host and port": "--connect",
    "host": "--connect",
    "port": "--connect",
    "token": TOKEN_VARIABLE,
    **{option: flag for flag, option, _, _ in FLAGS},
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``receive``."""
    parser = subparsers.add_parser(
        "receive",
        help="take lines from sockets into a buffer, as a daemon",
        description=DESCRIPTION,
        epilog="Exit codes: 0 ended by SIGTERM or SIGINT, 1 failed, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--buffer",
        required=True,
        metavar="PATH",
        help="folder of the buffer, or s3://, gs:// or az:// URL",
    )
    side = parser.add_mutually_exclusive_group(required=True)
    side.add_argument(
        "--listen",
        type=address_text,
        metavar="HOST:PORT",
        help="accept producers and plain senders",
    )
    side.add_argument(
        "--connect", type=address_text, metavar="HOST:PORT", help="read from a server, as a client"
    )
    for flag, option, metavar, text in FLAGS:
        add(flag, dest=option, metavar=metavar, help=text)
    add("--json", action="store_true", help="one JSON object a line instead of text")
    add(
        "--health-s",
        type=amount("seconds"),
        metavar="S",
        help=f"with --json: seconds between health objects ({HEALTH_S:g})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Receives until a signal; 0 then. SparkEocError if the log fails or can't be opened."""
    from spark_eoc.buffer.opening import open_writer  # noqa: PLC0415  heavy
    from spark_eoc.receiver.tls import tls_context  # noqa: PLC0415  heavy
    from spark_eoc.source.intake import (  # noqa: PLC0415  heavy
        buffer_options,
        receiver_options,
        start_receiver,
    )

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with reading_options(NAMES):
        options = source_options(args)
        receiving = receiver_options(options)
        buffering = buffer_options(options)
        tls_context(receiving)
    with naming_the_holder(TAKEOVER):
        writer = open_writer(options.buffer_path, buffering, takeover_ms=options.takeover_ms)
    try:
        receiver = start_receiver(writer, receiving)
        _ready(args, writer, receiver)
        _notify("READY=1")
        _serve(args, writer, receiver, ended)
        _notify("STOPPING=1")
        receiver.stop()
        _say(args, "stopped", _health(writer, receiver), f"stopped at {writer.end_offset}")
    finally:
        writer.close()
    return _verdict(receiver.error)


def source_options(args: argparse.Namespace) -> SourceOptions:
    """What the arguments mean, read and checked as the source's own options are."""
    from spark_eoc.source.options import parse_options  # noqa: PLC0415  heavy

    only_with(args, "--health-s", args.json, "--json")
    given = {"bufferPath": args.buffer}
    if args.listen is not None:
        given["listen"] = args.listen
    else:
        given["host"], _, given["port"] = args.connect.rpartition(":")
    for _, option, _, _ in FLAGS:
        if getattr(args, option) is not None:
            given[option] = getattr(args, option)
    token = os.environ.get(TOKEN_VARIABLE)
    if token and args.listen is not None:
        given["token"] = token
    return parse_options(given)


def _ready(args: argparse.Namespace, writer: BufferWriter, receiver: Receiver) -> None:
    host = (receiver.options.listen or receiver.options.connect or ("", 0))[0]
    verb = "listening on" if args.listen else "reading from"
    facts = {
        "host": host,
        "port": receiver.port,
        "buffer": args.buffer,
        "buffer_id": writer.buffer_id,
        "epoch": writer.epoch,
        "start_offset": writer.start_offset,
        "end_offset": writer.end_offset,
    }
    text = (
        f"ready, {verb} {host}:{receiver.port}; buffer {args.buffer} holds records "
        f"{writer.start_offset} to {writer.end_offset}"
    )
    _say(args, "ready", facts, text)


def _serve(
    args: argparse.Namespace, writer: BufferWriter, receiver: Receiver, ended: threading.Event
) -> None:
    told = time.monotonic()
    while not ended.wait(POLL_S) and receiver.running:
        if args.json and time.monotonic() - told >= (args.health_s or HEALTH_S):
            told = time.monotonic()
            _say(args, "health", _health(writer, receiver), "")


def _health(writer: BufferWriter, receiver: Receiver) -> dict[str, Any]:
    return {
        "start_offset": writer.start_offset,
        "end_offset": writer.end_offset,
        **dataclasses.asdict(receiver.stats()),
    }


def _say(args: argparse.Namespace, event: str, facts: dict[str, Any], text: str) -> None:
    print(json.dumps({"event": event, **facts}) if args.json else text, flush=True)


def _notify(state: str) -> None:
    """Tells systemd (`Type=notify`), where it started us."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.connect("\0" + address[1:] if address.startswith("@") else address)
            sock.send(state.encode())


def _verdict(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SparkEocError):
        raise error
    raise LogError(f"the receiver failed: {error!r}") from error
