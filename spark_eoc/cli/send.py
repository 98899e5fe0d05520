"""``spark-eoc send``: files or standard input into a receiver, each line exactly once."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spark_eoc.cli.usage import UsageError, address, amount, only_with, reading_options
from spark_eoc.errors import SparkEocError

if TYPE_CHECKING:
    from spark_eoc.producer import LineProducer

TOKEN_VARIABLE = "SPARK_EOC_TOKEN"  # noqa: S105  the name of a variable
PROGRESS_S = 1.0
#: How a message about an argument of LineProducer calls it here.
NAMES = {
    "producer name": "--name",
    "a token": TOKEN_VARIABLE,
    "tls_ca": "--tls-ca",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
}

DESCRIPTION = f"""\
Sends the lines of the files, one after the other, or of standard input, over the acknowledged
protocol, and ends when all of them are durable.

The name stands for the input: sent again under the same name, after a kill or a power cut, lines
that are durable already are passed over, so files may grow but not change. Standard input can't be
sent again, so its lines are all new, unless --resume says that it begins where it began before.
The shared secret is read from the variable {TOKEN_VARIABLE}."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``send``."""
    parser = subparsers.add_parser(
        "send",
        help="send files or standard input to a receiver, each line exactly once",
        description=DESCRIPTION,
        epilog="Exit codes: 0 all is durable, 1 it is not, 2 wrong usage, 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="files; none: standard input")
    add("--to", required=True, type=address, metavar="HOST:PORT", help="the receiver")
    add("--name", required=True, metavar="NAME", help="the producer's name, one for each input")
    add(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="pass over as many lines as are durable under this name (default: with files)",
    )
    add(
        "--wait-s",
        type=amount("seconds"),
        metavar="S",
        help="give up if no receiver answers for so many seconds (default: never)",
    )
    add("--tls", action="store_true", help="use TLS")
    add("--tls-ca", metavar="FILE", help="PEM file of the authority that the receiver must have")
    add("--tls-cert", metavar="FILE", help="PEM file of our certificate")
    add("--tls-key", metavar="FILE", help="PEM file of its key")
    add("--json", action="store_true", help="print one JSON object at the end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Sends everything; 0 when all is durable. SparkEocError if it can't be."""
    from spark_eoc.producer import LineProducer  # noqa: PLC0415  heavy

    _check(args)
    host, port = args.to
    begun = time.monotonic()
    with reading_options(NAMES):
        producer = LineProducer(
            host,
            port,
            args.name,
            token=os.environ.get(TOKEN_VARIABLE) or None,
            connect_timeout_s=args.wait_s,
            tls=args.tls,
            tls_ca=args.tls_ca,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
        )
    skipped = 0
    try:
        resume = bool(args.files) if args.resume is None else args.resume
        skipped = producer.resume_from if resume else 0
        _send(producer, _lines(args.files), skipped)
        producer.close(None)
    except (SparkEocError, KeyboardInterrupt):
        if producer.taken or args.json:
            _report(args, producer, skipped, begun)
        producer.abandon()
        raise
    _report(args, producer, skipped, begun)
    return 0


def _check(args: argparse.Namespace) -> None:
    """What the parser can't tell; UsageError before anything is sent."""
    only_with(args, "--tls-key", bool(args.tls_cert), "--tls-cert")
    for path in args.files:
        if not path.is_file():
            raise UsageError(
                f"{str(path)!r} is not a file that could be read twice"
                if path.exists()
                else f"there is no file {str(path)!r}",
                applied="nothing was sent",
                next_step="give a file, or lines on standard input",
            )


def _send(producer: LineProducer, lines: Iterator[bytes], skipped: int) -> None:
    passed = sum(1 for _ in islice(lines, skipped))
    if passed < skipped:
        raise UsageError(
            f"--name: {skipped} lines of {producer.name} are durable, but the input has {passed}",
            applied="nothing was sent",
            next_step="give this input a name of its own",
        )
    show = sys.stderr.isatty()
    told = time.monotonic()
    for number, line in enumerate(lines):
        producer.send(line)
        if show and number % 1000 == 0 and time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"\r{producer.acknowledged:,} lines durable", end="", file=sys.stderr)
    producer.flush()
    if show:
        print(f"\r{producer.acknowledged:,} lines durable", file=sys.stderr)


def _lines(files: list[Path]) -> Iterator[bytes]:
    """All lines without their ends; the receiver's rules: one carriage return belongs to it."""
    with contextlib.ExitStack() as stack:
        inputs: Iterator[IO[bytes]] = (
            (stack.enter_context(path.open("rb")) for path in files)
            if files
            else iter([sys.stdin.buffer])
        )
        for each in inputs:
            for line in each:
                yield line.removesuffix(b"\n").removesuffix(b"\r") if line[-1:] == b"\n" else line


def _report(args: argparse.Namespace, producer: LineProducer, skipped: int, begun: float) -> None:
    """What is durable and what isn't, counted from this run's first line."""
    first = producer.sent - producer.taken
    facts = {
        "name": args.name,
        "skipped": skipped,
        "sent": producer.taken,
        "acknowledged": producer.acknowledged - first,
        "last_number": producer.acknowledged,
        "seconds": round(time.monotonic() - begun, 3),
    }
    if args.json:
        print(json.dumps(facts), flush=True)
    else:
        print(
            f"{args.name}: {facts['acknowledged']:,} of {facts['sent']:,} lines durable in "
            f"{facts['seconds']} s, {skipped:,} passed over, last number {facts['last_number']:,}"
        )
