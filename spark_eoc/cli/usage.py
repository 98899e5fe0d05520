"""What is wrong with a command line: values that an option can't have, options that don't fit.

The readers are argparse's ``type=``; what only several arguments together tell is a
:class:`UsageError`. Either way the exit code is 2, and the text names the option.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spark_eoc.errors import ConfigError


class UsageError(ConfigError):
    """The command line is wrong; nothing was done."""


@contextmanager
def reading_options(flags: Mapping[str, str] | None = None) -> Iterator[None]:
    """What is refused inside is wrong usage; ``flags`` says how options are called here."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(
            _called(error.what, flags or {}),
            applied=error.applied,
            next_step=_called(error.next_step, flags or {}) if error.next_step else None,
            **error.facts,
        ) from error


def _called(text: str, flags: Mapping[str, str]) -> str:
    for option, flag in flags.items():
        text = re.sub(rf"(\boption )?(?<![\w./-]){option}(?![\w/-])", flag, text)
    return text


def only_with(args: argparse.Namespace, flag: str, given: bool, needed: str) -> None:
    """Refuses ``flag`` where it would do nothing; ``given`` tells whether it has its partner."""
    if getattr(args, flag.removeprefix("--").replace("-", "_")) and not given:
        raise UsageError(
            f"{flag} does nothing without {needed}", next_step=f"give {needed}, or leave it out"
        )


def check_fresh(folder: Path | None) -> None:
    """Refuses a ``--folder`` in which a run before may have left its checkpoint and its rows."""
    if folder is None or not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"--folder: {str(folder)!r} is not a folder", next_step="name a new one")
    if any(folder.iterdir()):
        raise UsageError(
            f"--folder: {str(folder)!r} is not empty: what is in it would be mixed with this run",
            next_step="name a new one, or empty it",
        )


def check_consumer(name: str | None, known: Iterable[str]) -> None:
    """Refuses a consumer to be forgotten that the buffer does not know."""
    if name is not None and name not in known:
        raise UsageError(
            f"--forget: the buffer has no consumer {name!r}",
            applied="nothing was trimmed",
            next_step=f"its consumers: {', '.join(map(repr, known)) or 'none'}",
        )


def address(text: str) -> tuple[str, int]:
    """``host:port``, an IPv6 address in brackets."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not host:port, such as 127.0.0.1:9999")
    return host, int(port)


def address_text(text: str) -> str:
    """The text of an :func:`address`."""
    address(text)
    return text


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers from ``least`` to ``most``, both included."""
    within = f"from {least:,}" + (f" to {most:,}" if most is not None else "")

    def read(text: str) -> int:
        if not re.fullmatch("-?[0-9]{1,18}", text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {within}")
        number = int(text)
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text} is not {within}")
        return number

    return read


def amount(unit: str, *, zero: bool = False) -> Callable[[str], float]:
    """A reader of numbers of ``unit`` above 0, or with ``zero`` from 0; no NaN, no infinity."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and (number > 0 or (zero and number == 0))):
            least = "from 0" if zero else "above 0"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {unit} {least}")
        return number

    return read
