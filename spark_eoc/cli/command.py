"""``spark-eoc``: reads the arguments, runs one subcommand, turns errors into messages.

An error is one message on stderr; what the exit codes mean stands in :data:`EXIT_CODES`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, cast

from spark_eoc.cli.usage import UsageError
from spark_eoc.errors import SparkEocError

#: Modules below spark_eoc.cli, in the order of the help text. Each has ``add_parser(subparsers)``
#: and ``run(args) -> int``, and imports what is heavy in ``run`` only.
COMMANDS = ("demo", "receive", "send", "buffer", "chaos")
#: Of these, whose ``args.rest`` is what stands after ``--``.
PASSES_ON = ("chaos",)

OK, ANOMALY, USAGE, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = """\
exit codes:
  0    well: done, all durable, exactly once, nothing damaged
  1    something is wrong: an anomaly or a damage was found, or the command failed
  2    wrong usage: the command line can't work, and nothing was done
  130  interrupted"""

Subparsers = argparse._SubParsersAction  # its only name, also in typeshed


class Command(Protocol):
    """What a module of a subcommand offers."""

    def add_parser(self, subparsers: Subparsers[argparse.ArgumentParser]) -> None:
        """Adds the subcommand's own parser, with ``run`` as its default ``run``."""

    def run(self, args: argparse.Namespace) -> int:
        """Does the work and returns the exit code; raises SparkEocError."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, all subcommands included."""
    parser = argparse.ArgumentParser(
        prog="spark-eoc",
        description="Exactly-once for Spark Structured Streaming: show it, run it, look into it.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = cast(Command, import_module(f"spark_eoc.cli.{name.replace('-', '_')}"))
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line (``sys.argv`` by default) and returns the exit code."""
    words, rest = _split(list(sys.argv[1:] if argv is None else argv))
    args = build_parser().parse_args(words, argparse.Namespace(rest=rest))
    try:
        return int(args.run(args))
    except UsageError as error:
        print(f"spark-eoc {words[0]}: error: {error}", file=sys.stderr)
        return USAGE
    except SparkEocError as error:
        print(f"spark-eoc: {type(error).__name__}: {error}", file=sys.stderr)
        return ANOMALY
    except KeyboardInterrupt:
        print("spark-eoc: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Our output went to something like `head`; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ANOMALY
    except OSError as error:
        # A file that may not be read, a disk that is full: for the operator, not for us.
        print(f"spark-eoc: {error}", file=sys.stderr)
        return ANOMALY


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands after ``--`` is for the script that such a command runs."""
    if words[:1] and words[0] in PASSES_ON and "--" in words:
        place = words.index("--")
        return words[:place], words[place + 1 :]
    return words, []


def _version() -> str:
    try:
        return f"spark-eoc {version('spark-eoc')}"
    except PackageNotFoundError:
        return "spark-eoc (not installed)"
