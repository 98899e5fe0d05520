"""``spark-eoc chaos``: a user's own script under kills, and the verdict over its sink."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from spark_eoc.cli.chaos_usage import KILLS, ROWS, check, load_named, read_kinds
from spark_eoc.cli.usage import UsageError, address_text, amount, reading_options, whole

if TYPE_CHECKING:
    from spark_eoc.testing.kills import Kill
    from spark_eoc.testing.place import Place
    from spark_eoc.testing.report import ChaosReport
    from spark_eoc.testing.rows import Rows
    from spark_eoc.testing.servers import MariaDB, Redis, Server

DESCRIPTION = """\
Feeds a streaming script, kills it at random instants, starts it again as a service manager would,
and at the end compares what is in its sink with what it was given, row for row.

The script stays as it is. It finds what the harness gives it in variables (EOC_INPUT, EOC_LISTEN,
EOC_BUFFER, EOC_CHECKPOINT, EOC_MYSQL_URL, EOC_REDIS_URL, EOC_FOLDER), or in its own arguments,
where {input}, {listen}, {checkpoint} and so on stand for them.

  spark-eoc chaos clicks.py --lines clicks.txt --feed folder --mariadb \\
      --setup 'CREATE TABLE clicks (value VARCHAR(200))' --query 'SELECT value FROM clicks' \\
      --kills 5 --report clicks.html -- --input {input} --checkpoint {checkpoint} --db {mysql_url}

Only servers that the harness has started itself (--mariadb, --redis) are ever killed; with
--feed buffer the receiver and the producer beside the script, too."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``chaos``."""
    parser = subparsers.add_parser(
        "chaos",
        usage="spark-eoc chaos SCRIPT.py [OPTIONS] [-- ARGUMENTS OF THE SCRIPT]",
        help="your own script under kills, and whether its sink is exactly once",
        description=DESCRIPTION,
        epilog="Exit codes: 0 exactly once, 1 not, or the script can't go on, 2 wrong usage.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT.py", help="your streaming script")
    _add_input(parser.add_argument_group("what it is given"))
    _add_sink(parser.add_argument_group("where its rows are read (one of these)"))
    _add_kills(parser.add_argument_group("what is done to it"))
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def _add_input(group: Any) -> None:
    add = group.add_argument
    add("--lines", type=Path, metavar="FILE", help="the lines (default: made up from the seed)")
    add("--rows", type=whole(1), metavar="N", help=f"lines to make up ({ROWS})")
    add(
        "--feed",
        choices=("folder", "listen", "buffer"),
        default="folder",
        help="as text files in {input}, by the acknowledged protocol to {listen}, or to a "
        "`spark-eoc receive` that fills {buffer} (%(default)s)",
    )
    add(
        "--to",
        type=address_text,
        metavar="HOST:PORT",
        help="with --feed listen: where the script listens anyway",
    )
    add(
        "--per-second",
        type=amount("lines a second"),
        default=500.0,
        metavar="N",
        help="lines a second that it is given (%(default)g)",
    )
    add("--expect", metavar="MODULE:FUNCTION", help="a line (bytes) as its value, or None")
    add("--mariadb", action="store_true", help="start a private MariaDB, and kill it too")
    add("--redis", action="store_true", help="start a private Redis, and kill it too")
    add("--setup", action="append", default=[], metavar="SQL", help="run on that MariaDB first")


def _add_sink(group: Any) -> None:
    add = group.add_argument
    add("--query", metavar="SELECT", help="MySQL: one row a line; several columns count as one")
    add("--mysql-url", metavar="URL", help="where --query is asked, unless --mariadb")
    add("--count", metavar="COLUMN", help="this column says how often the row is there")
    add("--keys", metavar="PATTERN", help="Redis: the keys, such as 'clicks:*'")
    add("--redis-url", metavar="URL", help="where --keys are read, unless --redis")
    add("--field", metavar="FIELD", help="of hashes or stream entries: this field")
    add("--counters", action="store_true", help="the values are counts of the keys' own names")
    add("--rows-from", metavar="MODULE:FUNCTION", help="any other sink: returns its values")


def _add_kills(group: Any) -> None:
    add = group.add_argument
    add("--kills", type=whole(0), metavar="N", help=f"how many ({KILLS}, or one of each kind)")
    add(
        "--kinds",
        metavar="KIND,...",
        help="driver_python, jvm, python_worker, source_runner, producer (not with folder), …",
    )
    add("--seed", type=whole(0), metavar="N", help="of kinds and instants (random, and printed)")
    add(
        "--settle-s",
        type=amount("seconds"),
        default=90.0,
        metavar="S",
        help="seconds without a new row after which the last rows are given up (%(default)g)",
    )
    add(
        "--progress-s",
        type=amount("seconds"),
        default=180.0,
        metavar="S",
        help="seconds in which a run must bring a new row (%(default)g)",
    )
    add("--submit-args", metavar="ARGS", help="spark-submit's options: '--packages … --conf …'")
    add("--checkpoint", type=Path, metavar="PATH", help="the script's, if it is not {checkpoint}")


def _add_output(group: Any) -> None:
    add = group.add_argument
    add("--report", type=Path, metavar="FILE", help="write it there: .html, .json or text")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--folder", type=Path, metavar="PATH", help="work here, and keep logs and checkpoint")


def run(args: argparse.Namespace) -> int:
    """Runs the script under kills; 0 when it is exactly once."""
    from spark_eoc.testing.reaper import reaper  # noqa: PLC0415  only when it is used

    check(args)
    signal.signal(signal.SIGTERM, _interrupt)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="spark-eoc-chaos-"))
    if args.folder is None:
        reaper().folder(str(folder))  # for a run that is killed
    try:
        with reading_options():
            report = _chaos(args, folder)
    finally:
        if args.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
            reaper().forget(str(folder))
    print(json.dumps(report.to_json()) if args.json else report, flush=True)
    if args.report is not None:
        report.save(args.report)
    return 0 if report.exactly_once else 1


def _chaos(args: argparse.Namespace, folder: Path) -> ChaosReport:
    from spark_eoc.testing.chaos import SCRIPT_KILLS, Chaos  # noqa: PLC0415  heavy
    from spark_eoc.testing.feeds import open_feed  # noqa: PLC0415  heavy
    from spark_eoc.testing.kills import KillSchedule  # noqa: PLC0415  heavy

    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = _servers(args, stack, folder)
        place = _place(args, folder, servers)
        # Drawn here, so that made-up lines come from the same one.
        seed = KillSchedule(args.seed, count=0).seed
        kinds, lines = read_kinds(args.kinds), _lines(args, seed)
        fed = open_feed(args.feed, lines, place, stack, per_second=args.per_second, kinds=kinds)
        servers.update(fed.servers)
        kinds = kinds or [*SCRIPT_KILLS, *servers]
        return Chaos(
            command=[sys.executable, str(args.script), *map(place.fill, args.rest)],
            folder=folder,
            input=fed.input,
            rows=_rows(args, place),
            kills=max(KILLS, len(kinds)) if args.kills is None else args.kills,
            kinds=kinds,
            seed=seed,
            servers=servers,
            env={**place.environment, **_submit(args.submit_args)},
            checkpoints={"query": args.checkpoint or place.checkpoint},
            expect=load_named("--expect", args.expect) if args.expect else None,
            settle_s=args.settle_s,
            progress_s=args.progress_s,
            on_event=lambda event: print(event, file=sys.stderr),
        ).run()


def _servers(args: argparse.Namespace, stack: ExitStack, folder: Path) -> dict[Kill, Server]:
    from spark_eoc.testing.kills import Kill  # noqa: PLC0415  heavy
    from spark_eoc.testing.servers import MariaDB, Redis  # noqa: PLC0415  heavy

    servers: dict[Kill, Server] = {}
    if args.mariadb:
        mariadb: MariaDB = stack.enter_context(MariaDB.start(folder / "mariadb"))
        mariadb.query("CREATE DATABASE IF NOT EXISTS eoc")
        with mariadb.connect("eoc") as connection, connection.cursor() as cursor:
            for sql in args.setup:
                _set_up(cursor, sql)
        servers[Kill.MARIADB] = mariadb
    if args.redis:
        redis: Redis = stack.enter_context(Redis.start(folder / "redis"))
        servers[Kill.REDIS] = redis
    return servers


def _set_up(cursor: Any, sql: str) -> None:
    import pymysql  # noqa: PLC0415  heavy

    try:
        cursor.execute(sql)
    except pymysql.Error as error:
        raise UsageError(
            f"--setup: {sql!r}: {error}",
            applied="the script was not started",
            next_step="write it so that MariaDB takes it",
        ) from error


def _place(args: argparse.Namespace, folder: Path, servers: dict[Kill, Any]) -> Place:
    from spark_eoc.testing.kills import Kill  # noqa: PLC0415  heavy
    from spark_eoc.testing.place import Place  # noqa: PLC0415  heavy
    from spark_eoc.testing.ports import free_port  # noqa: PLC0415  heavy

    mariadb, redis = servers.get(Kill.MARIADB), servers.get(Kill.REDIS)
    listen = args.to or f"127.0.0.1:{free_port()}"
    return Place(
        folder=str(folder),
        input=str(folder / "input") if args.feed == "folder" else "",
        listen=listen if args.feed == "listen" else "",
        buffer=str(folder / "buffer"),
        checkpoint=str(folder / "checkpoint"),
        mysql_url=mariadb.url("eoc") if mariadb else args.mysql_url or "",
        redis_url=redis.url() if redis else args.redis_url or "",
    )


def _lines(args: argparse.Namespace, seed: int) -> list[bytes]:
    from spark_eoc.testing.inputs import made_up  # noqa: PLC0415  heavy

    if args.lines is None:
        return made_up(args.rows or ROWS, seed)
    lines: list[bytes] = args.lines.read_bytes().splitlines()
    return lines


def _rows(args: argparse.Namespace, place: Place) -> Rows:
    from spark_eoc.testing.rows import FunctionRows, KeyRows, QueryRows  # noqa: PLC0415  heavy

    if args.query:
        return QueryRows(place.mysql_url, args.query, count=args.count)
    if args.keys:
        return KeyRows(place.redis_url, args.keys, field=args.field, count=args.counters)
    return FunctionRows(load_named("--rows-from", args.rows_from))


def _submit(text: str | None) -> dict[str, str]:
    """A script that is run by Python hands these to Spark's own launcher."""
    return {"PYSPARK_SUBMIT_ARGS": f"{text} pyspark-shell"} if text else {}


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
