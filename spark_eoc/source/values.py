"""What one option's text means: each reader takes name and text, and refuses with a remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from spark_eoc.buffer.objects.store import checked_url, is_object_url
from spark_eoc.errors import ConfigError

EARLIEST = "earliest"
LATEST = "latest"

_AGES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


@dataclass(frozen=True)
class Retention:
    """What the log keeps although every consumer has passed it; None is without that bound.

    With both, what is younger than ``age_ms``, but at most ``size_bytes``.
    """

    age_ms: int | None
    size_bytes: int | None


def refused(name: str, text: object, remedy: str) -> ConfigError:
    """The error for an option's text, with what to give instead."""
    return ConfigError(f"option {name} is {text!r}", next_step=remedy, option=name, value=str(text))


def whole_number(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """A reader of whole numbers from ``least`` to ``most``, both included."""
    within = f"from {least} to {most}" if most is not None else f"of at least {least}"

    def parse(name: str, text: str) -> int:
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", text):
            raise refused(name, text, f"give a whole number {within}, digits only")
        number = int(text)
        if number < least or (most is not None and number > most):
            raise refused(name, text, f"give a whole number {within}")
        return number

    return parse


def read_truth(name: str, text: str) -> bool:
    """``true`` or ``false``, in any case."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise refused(name, text, "give true or false")
    return word == "true"


def one_of(*words: str) -> Callable[[str, str], str]:
    """A reader of one of ``words``, in any case."""

    def parse(name: str, text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise refused(name, text, f"give one of {', '.join(words)}")
        return word

    return parse


def read_text(name: str, text: str) -> str:
    """Text that isn't blank, without blanks around it."""
    if not text.strip():
        raise refused(name, text, "give a value, or leave the option out")
    return text.strip()


def read_secret(name: str, text: str) -> str:
    """Text as it is, that isn't empty."""
    if not text:
        raise refused(name, text, "give a value, or leave the option out")
    return text


def read_file(name: str, text: str) -> str:
    """An absolute path; tasks have working folders of their own."""
    return os.path.abspath(os.path.expanduser(read_text(name, text)))


def read_buffer_path(name: str, text: str) -> str:
    """A path that may hold a buffer; refuses what can't append and fsync by its name."""
    path = read_text(name, text)
    if is_object_url(path):
        return checked_url(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
        raise refused(
            name,
            text,
            "give a plain path on a disk that can append and fsync, without a scheme, or "
            "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix",
        )
    if re.match(r"/(dbfs|Volumes)(/|$)", path):
        raise refused(
            name,
            text,
            "this path can neither append and fsync nor refuse to overwrite; give a local disk "
            "such as /local_disk0/eoc, or the object store itself, such as s3://bucket/prefix",
        )
    return read_file(name, path)


def read_consumer(name: str, text: str) -> str:
    """A consumer's name, which becomes part of a file's."""
    word = text.strip()
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", word):
        raise refused(
            name, text, "give 1 to 100 letters, digits, '.', '_' or '-', not beginning with '.'"
        )
    return word


def read_starting_offsets(name: str, text: str) -> str | int:
    """:data:`EARLIEST`, :data:`LATEST` or the number of a record."""
    word = text.strip().lower()
    if word in (EARLIEST, LATEST):
        return word
    if re.fullmatch(r"[0-9]{1,18}", word):
        return int(word)
    raise refused(name, text, f"give {EARLIEST}, {LATEST} or the number of a record")


def read_address(name: str, text: str) -> tuple[str, int]:
    """``host:port``; an IPv6 address may stand in brackets."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port):
        raise refused(name, text, "give host:port, such as 127.0.0.1:9999")
    return host, read_port(name, port)


read_port = whole_number(1, 65535)


def read_retention(name: str, text: str) -> Retention:
    """An age, a size, or both with a comma."""
    limits: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,15})\s*([A-Za-z]+)\s*", part)
        unit = match.group(2).lower() if match else ""
        table, limit = (_AGES, "age_ms") if unit in _AGES else (_SIZES, "size_bytes")
        if match is None or unit not in table or limit in limits:
            raise refused(
                name,
                text,
                "give an age (ms, s, min, h, d), a size (B, KiB, MiB, GiB, TiB), "
                "or both with a comma, such as '12h, 20GiB'",
            )
        limits[limit] = int(match.group(1)) * table[unit]
    return Retention(age_ms=limits.get("age_ms"), size_bytes=limits.get("size_bytes"))
