"""``spark-eoc buffer``: look into a buffer, check it, repair it, trim it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from base64 import b64encode
from typing import TYPE_CHECKING, Any

from spark_eoc.cli.buffer_objects import run_in_store
from spark_eoc.cli.buffer_view import log_table
from spark_eoc.cli.locked import naming_the_holder
from spark_eoc.cli.usage import UsageError, amount, check_consumer, reading_options, whole
from spark_eoc.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from spark_eoc.buffer import LogReport

DESCRIPTION = """\
ls      extent, segments, consumers and producers of a buffer
cat     its lines, from an offset on
verify  checks every frame, beside a running writer too; exit code 1 if anything is damaged
repair  makes a damaged buffer fit to be opened: keeps all that can be read, copies each damaged
        file aside, leaves a hole in the numbers for what is lost; needs the writer stopped
trim    deletes what every consumer has committed, now, whatever the retention; with --forget
        a consumer that is gone for good holds nothing back any more; needs the writer stopped
expire  forgets the sequence numbers of producers that sent nothing for --idle-days; one that
        comes back under such a name is refused, for good; needs the writer stopped

In an object store trim works beside the writer, expire takes the buffer over (a receiver that works
on it ends, and has to be started again), and there is no repair."""

#: What an option is for; elsewhere it would do nothing.
BELONGS = {"first": "cat", "count": "cat", "forget": "trim", "idle_days": "expire"}
FLAGS = {"first": "--from", "count": "--count", "forget": "--forget", "idle_days": "--idle-days"}
BESIDE = "ls, cat and verify work beside it"
ACTIONS = ("ls", "cat", "verify", "repair", "trim", "expire")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``buffer``."""
    parser = subparsers.add_parser(
        "buffer",
        help="look into a buffer, verify, repair or trim it",
        description=DESCRIPTION,
        epilog="Exit codes: 0 well, 1 damaged or failed, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("action", choices=ACTIONS, help="what to do; see above")
    add("path", metavar="PATH", help="folder of the buffer, or its URL in an object store")
    add(
        "--from",
        dest="first",
        type=whole(0),
        metavar="OFFSET",
        help="cat: first record (the start)",
    )
    add("--count", type=whole(1), metavar="N", help="cat: at most so many records")
    add("--forget", metavar="CONSUMER", help="trim: forget this consumer first")
    add(
        "--idle-days",
        type=amount("days", zero=True),
        metavar="N",
        help="expire: silent for at least so many days",
    )
    add("--json", action="store_true", help="one JSON object, or with cat one a record")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Does the action; 1 if something is damaged or was lost. Raises LogError, UsageError."""
    _check(args)
    if "://" in args.path and args.action not in ("cat", "expire"):
        return run_in_store(args)
    actions = {
        "ls": _ls,
        "cat": _cat,
        "verify": _verify,
        "repair": _repair,
        "trim": _trim,
        "expire": _expire,
    }
    with naming_the_holder(BESIDE):
        return actions[args.action](args)


def _check(args: argparse.Namespace) -> None:
    """What the parser can't tell; UsageError before anything is touched."""
    if "://" in args.path:
        from spark_eoc.buffer.objects.store import checked_url  # noqa: PLC0415  heavy

        with reading_options():
            checked_url(args.path)
    for name, action in BELONGS.items():
        if getattr(args, name) is not None and args.action != action:
            raise UsageError(
                f"{FLAGS[name]} does nothing for buffer {args.action}",
                next_step=f"leave it out; it belongs to buffer {action}",
            )
    if args.action == "expire" and args.idle_days is None:
        raise UsageError("expire needs --idle-days", next_step="say how long a producer is idle")


def _ls(args: argparse.Namespace) -> int:
    report = _report(args)
    print(json.dumps(_facts(report)) if args.json else "\n".join(log_table(report)))
    return 0


def _verify(args: argparse.Namespace) -> int:
    report = _report(args)
    if args.json:
        print(json.dumps(_facts(report)))
    else:
        for damage in report.damages:
            print(f"{damage.file} at byte {damage.position}: {damage.why}")
        frames = sum(segment.frames for segment in report.segments)
        verdict = f"{len(report.damages)} damages" if report.damages else "all whole"
        print(f"{len(report.segments)} segments, {frames} frames: {verdict}")
    return 1 if report.damages else 0


def _repair(args: argparse.Namespace) -> int:
    from spark_eoc.buffer import repair  # noqa: PLC0415  heavy

    report = repair(args.path)
    if args.json:
        print(json.dumps(dataclasses.asdict(report)))
    else:
        for kept in report.kept:
            print(f"kept as it was: {kept}")
        for first, end in report.lost:
            print(f"given up: records {first} up to, not including, {end}")
        print(f"{len(report.rewritten)} segments written anew")
    return 1 if report.lost else 0


def _trim(args: argparse.Namespace) -> int:
    from spark_eoc.buffer import BufferOptions, LogWriter, remove_consumer  # noqa: PLC0415  heavy
    from spark_eoc.buffer.consumers import read_positions  # noqa: PLC0415  heavy

    check_consumer(args.forget, read_positions(args.path))
    writer = LogWriter.open(args.path, BufferOptions(retention_ms=0, retention_bytes=0))
    try:
        forgotten = args.forget is not None and remove_consumer(args.path, args.forget)
        before = writer.start_offset
        start = writer.apply_trim()
    finally:
        writer.close()
    facts = {"start_offset": start, "before": before, "forgotten": forgotten}
    print(json.dumps(facts) if args.json else f"starts at {start}, before at {before}")
    return 0


def _expire(args: argparse.Namespace) -> int:
    from spark_eoc.buffer.expiry import count_expired, known_producers  # noqa: PLC0415  heavy
    from spark_eoc.buffer.opening import open_writer  # noqa: PLC0415  heavy

    writer = open_writer(args.path)
    try:
        before_us = int((time.time() - args.idle_days * 86_400) * 1_000_000)
        expired = writer.expire_producers(before_us)
        writer.sync()
        left = len(known_producers(writer.producers))
        remembered = count_expired(writer.producers)
    finally:
        writer.close()
    facts = {"expired": expired, "left": left, "remembered": remembered}
    print(json.dumps(facts) if args.json else f"{expired} producers forgotten, {left} left")
    return 0


def _cat(args: argparse.Namespace) -> int:
    from spark_eoc.buffer.opening import open_reader, read_piece  # noqa: PLC0415  heavy

    reader = open_reader(args.path)
    first = reader.start_offset() if args.first is None else args.first
    end = reader.end_offset()
    if not reader.start_offset() <= first <= end:
        raise OffsetOutOfRangeError(
            f"--from {first}: the buffer holds records {reader.start_offset()} up to, not "
            f"including, {end}",
            next_step="begin at one of these, or leave --from out",
        )
    if args.count is not None:
        end = min(end, first + args.count)
    for piece in reader.split(first, end, skip_gaps=True):
        for batch in read_piece(piece, timestamp=True, offset=True, wait_seconds=0):
            _print_lines(args, batch)
    return 0


def _print_lines(args: argparse.Namespace, batch: Any) -> None:
    if args.json:
        for line, time, offset in zip(*(column.to_pylist() for column in batch), strict=True):
            print(json.dumps({"offset": offset, "time": time.isoformat(), **_value(line)}))
    else:
        lines = b"".join(line + b"\n" for line in batch.column("value").to_pylist())
        sys.stdout.buffer.write(lines)
        sys.stdout.buffer.flush()


def _value(line: bytes) -> dict[str, str]:
    try:
        return {"value": line.decode()}
    except UnicodeDecodeError:
        return {"value": line.decode("utf-8", "replace"), "base64": b64encode(line).decode()}


def _report(args: argparse.Namespace) -> LogReport:
    from spark_eoc.buffer import verify  # noqa: PLC0415  heavy

    return verify(args.path)


def _facts(report: LogReport) -> dict[str, Any]:
    return dataclasses.asdict(report)
