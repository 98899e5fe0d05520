"""What is wrong with a call of ``spark-eoc chaos``, found before anything is started."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_eoc.cli.usage import UsageError, check_fresh, only_with
from spark_eoc.errors import ConfigError

if TYPE_CHECKING:
    from spark_eoc.testing.kills import Kill

#: Lines to make up, and kills unless there are more kinds.
ROWS, KILLS = 5000, 5

#: Kinds of kills that only a test in Python can carry out: they need what it has started.
ELSEWHERE = ("network", "spark_worker", "clock")

#: With which --feed there is such a process.
FEEDS_OF = {"receiver": ("buffer",), "producer": ("listen", "buffer")}


def check(args: argparse.Namespace) -> None:
    """What the parser can't tell; UsageError before anything is started."""
    if not args.script.is_file():
        raise UsageError(f"there is no script {str(args.script)!r}", applied="nothing was started")
    if args.lines and not args.lines.is_file():
        raise UsageError(f"--lines: there is no file {str(args.lines)!r}", next_step="name one")
    if args.lines and not args.lines.stat().st_size:
        raise UsageError(f"--lines: {str(args.lines)!r} is empty", next_step="give it lines")
    if args.report and args.report.is_dir():
        raise UsageError(f"--report: {str(args.report)!r} is a folder", next_step="name a file")
    if args.report and not args.report.absolute().parent.is_dir():
        raise UsageError(
            f"--report: there is no folder {str(args.report.absolute().parent)!r}",
            next_step="make it first",
        )
    check_fresh(args.folder)
    _check_sink(args)
    _check_partners(args)
    _check_kinds(args)
    _check_placeholders(args)
    for flag, text in (("--expect", args.expect), ("--rows-from", args.rows_from)):
        if text:
            load_named(flag, text)
    _check_count(args)


def _check_count(args: argparse.Namespace) -> None:
    from spark_eoc.testing.chaos import require_lines  # noqa: PLC0415  heavy

    lines = len(args.lines.read_bytes().splitlines()) if args.lines else args.rows or ROWS
    try:
        require_lines(lines, KILLS if args.kills is None else args.kills)
    except ConfigError as error:
        raise UsageError(
            f"{'--lines' if args.lines else '--rows'}: {error.what}", next_step=error.next_step
        ) from error


def _check_sink(args: argparse.Namespace) -> None:
    from spark_eoc.testing.rows import KeyRows, QueryRows  # noqa: PLC0415  heavy

    given = [name for name in ("query", "keys", "rows_from") if getattr(args, name)]
    if len(given) != 1:
        raise UsageError(
            f"{len(given)} ways to read the sink were given",
            next_step="give one of --query, --keys or --rows-from",
        )
    if args.query and not (args.mariadb or args.mysql_url):
        raise UsageError("--query: no server", next_step="add --mariadb, or --mysql-url URL")
    if args.keys and not (args.redis or args.redis_url):
        raise UsageError("--keys: no server", next_step="add --redis, or --redis-url URL")
    for flag, url, schemes in (
        ("--mysql-url", args.mysql_url, ("mysql://",)),
        ("--redis-url", args.redis_url, ("redis://", "rediss://", "unix://")),
    ):
        if url and not url.startswith(schemes):
            # It may hold a password, so it is not shown.
            raise UsageError(
                f"{flag}: the URL does not begin with {' or '.join(schemes)}",
                next_step="write it so",
            )
    try:
        if args.mysql_url and args.query:
            QueryRows(args.mysql_url, args.query)
        if args.redis_url and args.keys:
            KeyRows(args.redis_url, args.keys)
    except ConfigError as error:
        flag = "--mysql-url" if args.query else "--redis-url"
        raise UsageError(f"{flag}: {error.what}", next_step=error.next_step) from error


def _check_partners(args: argparse.Namespace) -> None:
    only_with(args, "--to", args.feed == "listen", "--feed listen")
    only_with(args, "--setup", args.mariadb, "--mariadb")
    only_with(args, "--count", bool(args.query), "--query")
    only_with(args, "--field", bool(args.keys), "--keys")
    only_with(args, "--counters", bool(args.keys), "--keys")
    for flag, given, other in (
        ("--rows", args.rows and args.lines, "--lines"),
        ("--mysql-url", args.mysql_url and args.mariadb, "--mariadb"),
        ("--redis-url", args.redis_url and args.redis, "--redis"),
    ):
        if given:
            raise UsageError(f"{flag} does nothing beside {other}", next_step="leave one out")


def _check_kinds(args: argparse.Namespace) -> None:
    for kind in read_kinds(args.kinds):
        if kind.value in ELSEWHERE:
            raise UsageError(
                f"--kinds: {kind} is for tests in Python", next_step="name another kind"
            )
        if kind.value in ("mariadb", "redis") and not getattr(args, kind.value):
            raise UsageError(
                f"--kinds: {kind} needs a server that may be killed", next_step=f"add --{kind}"
            )
        feeds = FEEDS_OF.get(kind.value, ())
        if feeds and args.feed not in feeds:
            raise UsageError(
                f"--kinds: {kind} needs a process that feeds the script",
                next_step=f"add --feed {' or '.join(feeds)}",
            )
        if kind.value == "full" and not args.redis:
            raise UsageError("--kinds: full needs a server to fill up", next_step="add --redis")


def _check_placeholders(args: argparse.Namespace) -> None:
    """A misspelt one would reach the script as it stands, one without a value as nothing."""
    from spark_eoc.testing.place import Place  # noqa: PLC0415  heavy

    known = [field.name for field in dataclasses.fields(Place)]
    empty = {
        "input": ("" if args.feed == "folder" else "--feed folder"),
        "listen": ("" if args.feed == "listen" else "--feed listen"),
        "mysql_url": "" if args.mariadb or args.mysql_url else "--mariadb or --mysql-url",
        "redis_url": "" if args.redis or args.redis_url else "--redis or --redis-url",
    }
    for word in re.findall(r"\{([A-Za-z_]+)\}", " ".join(args.rest)):
        near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.75)
        if word not in known and near:
            raise UsageError(f"{{{word}}} is no placeholder", next_step=f"write {{{near[0]}}}")
        if empty.get(word):
            raise UsageError(f"{{{word}}} has no value here", next_step=f"give {empty[word]}")


def read_kinds(text: str | None) -> list[Kill]:
    """The kinds of ``--kinds``; none given: none."""
    from spark_eoc.testing.kills import Kill  # noqa: PLC0415  heavy

    try:
        return [Kill.named(name.strip()) for name in text.split(",")] if text else []
    except ConfigError as error:
        known = ", ".join(kind.value for kind in Kill if kind.value not in ELSEWHERE)
        raise UsageError(f"--kinds: {error.what}", next_step=f"name some of {known}") from error


def load_named(flag: str, text: str) -> Any:
    """``module:function``, looked for beside the current folder too."""
    module, _, name = text.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{flag}: {text!r} can't be imported: {error}",
            next_step="write MODULE:FUNCTION, a module in this folder or installed",
        ) from error
    finally:
        sys.path.pop(0)
