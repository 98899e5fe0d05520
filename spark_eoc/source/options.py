"""The options of ``format("replayable_socket")``: one table, checked when the frame is built.

Nothing here touches a disk or a network: creating a frame, its schema and ``explain()`` must
never connect or lock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_eoc.buffer.objects.store import is_object_url
from spark_eoc.errors import ConfigError
from spark_eoc.source.values import (
    EARLIEST,
    Retention,
    one_of,
    read_address,
    read_buffer_path,
    read_consumer,
    read_file,
    read_port,
    read_retention,
    read_secret,
    read_starting_offsets,
    read_text,
    read_truth,
    refused,
    whole_number,
)

#: A segment and the frames of one flush are addressed by 32-bit Arrow offsets.
LARGEST_SEGMENT_BYTES = 1024 * 1024 * 1024
LARGEST_LINE_BYTES = LARGEST_SEGMENT_BYTES // 2


@dataclass(frozen=True)
class SourceOptions:
    """The checked options; the name of each field is Spark's name in snake case.

    Sizes are bytes, times milliseconds, addresses ``(host, port)``. ``starting_offsets`` is
    :data:`EARLIEST`, :data:`LATEST` or the number of a record. None is the default of the log
    or the receiver, or no limit.
    """

    buffer_path: str
    connect: tuple[str, int] | None = None
    listen: tuple[str, int] | None = None
    consumer: str = "default"
    include_timestamp: bool = False
    include_offset: bool = False
    starting_offsets: str | int = EARLIEST
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_partitions: int = 1
    max_rows_per_partition: int = 250_000
    fail_on_data_loss: bool = True
    encoding_errors: str = "replace"
    max_line_bytes: int = 16 * 1024 * 1024
    on_oversize_line: str = "error"
    segment_bytes: int = 64 * 1024 * 1024
    flush_interval_ms: int | None = None
    max_buffer_bytes: int | None = None
    retention: Retention | None = None
    takeover_ms: int | None = None
    token: str | None = field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    max_connections: int | None = None
    idle_timeout_ms: int | None = None
    max_bytes_per_second: int | None = None

    @property
    def receives(self) -> bool:
        """Whether this source fills the buffer itself, or only reads what others fill."""
        return self.connect is not None or self.listen is not None


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Options as Spark delivers them, keys in any case, to checked ones.

    Raises :class:`ConfigError` that names the option, its value and the remedy.
    """
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = _known_name(key)
        values[name] = _OPTIONS[name](name, text)
    _check_addresses(values)
    _check_scope(values)
    _check_sizes(values)
    return SourceOptions(**_fields(values))


# --- one option ---------------------------------------------------------------------------


def _known_name(key: str) -> str:
    by_lower_case = {name.lower(): name for name in _OPTIONS}
    found = by_lower_case.get(key.lower())
    if found is not None:
        return found
    if key.lower() == "path":
        raise ConfigError(
            "load() takes no path here",
            next_step="call load() without one, and name the buffer with option bufferPath",
            option=key,
        )
    near = difflib.get_close_matches(key.lower(), by_lower_case, n=1, cutoff=0.0)
    raise ConfigError(
        f"replayable_socket has no option {key!r}",
        next_step=f"did you mean {by_lower_case[near[0]]!r}? All options: {', '.join(_OPTIONS)}",
        option=key,
    )


#: Every option with its reader, in the order in which messages list them.
_OPTIONS: dict[str, Callable[[str, str], Any]] = {
    "host": read_text,
    "port": read_port,
    "listen": read_address,
    "bufferPath": read_buffer_path,
    "consumer": read_consumer,
    "includeTimestamp": read_truth,
    "includeOffset": read_truth,
    "startingOffsets": read_starting_offsets,
    "maxRowsPerTrigger": whole_number(1),
    "maxBytesPerTrigger": whole_number(1),
    "minPartitions": whole_number(1, 100_000),
    "maxRowsPerPartition": whole_number(1),
    "failOnDataLoss": read_truth,
    "encodingErrors": one_of("replace", "strict", "binary"),
    "maxLineBytes": whole_number(1, LARGEST_LINE_BYTES),
    "onOversizeLine": one_of("error", "truncate", "skip"),
    "segmentBytes": whole_number(4096, LARGEST_SEGMENT_BYTES),
    "flushIntervalMs": whole_number(0, 60_000),
    "maxBufferBytes": whole_number(1),
    "retention": read_retention,
    "takeoverMs": whole_number(1),
    "token": read_secret,
    "tlsCert": read_file,
    "tlsKey": read_file,
    "tlsCa": read_file,
    "maxConnections": whole_number(1, 100_000),
    "idleTimeoutMs": whole_number(1),
    "maxBytesPerSecond": whole_number(1),
}

OPTION_NAMES: tuple[str, ...] = tuple(_OPTIONS)

# --- combinations -------------------------------------------------------------------------

_LISTEN_ONLY = ("token", "tlsCert", "tlsKey", "tlsCa", "maxConnections", "idleTimeoutMs")
_WRITER_ONLY = (
    "maxLineBytes",
    "onOversizeLine",
    "segmentBytes",
    "flushIntervalMs",
    "maxBufferBytes",
    "retention",
    "takeoverMs",
    "maxBytesPerSecond",
)


def _check_addresses(values: Mapping[str, Any]) -> None:
    if "bufferPath" not in values:
        raise ConfigError(
            "option bufferPath is missing",
            next_step="name a folder on a disk that survives restarts of the driver",
            option="bufferPath",
        )
    if "listen" in values and ("host" in values or "port" in values):
        raise ConfigError(
            "host and port connect to a sender, listen waits for senders; both are given",
            next_step="leave out either listen or host and port",
            option="listen",
        )
    for one, other in (("host", "port"), ("port", "host")):
        if one in values and other not in values:
            raise ConfigError(
                f"option {one} is given without {other}",
                next_step=f"give {other} too, or listen, or neither to only read the buffer",
                option=other,
            )


def _check_scope(values: Mapping[str, Any]) -> None:
    if "listen" not in values:
        _refuse_without(values, _LISTEN_ONLY, "listen", "give listen, or leave it out")
        if "host" not in values:
            _refuse_without(
                values,
                _WRITER_ONLY,
                "host and port, or listen",
                "give it to the receiver that fills the buffer, or leave it out",
            )
    if "takeoverMs" in values and is_object_url(values.get("bufferPath", "")):
        raise ConfigError(
            "option takeoverMs has no effect on a buffer in an object store: there the newest "
            "writer takes over at once",
            next_step="leave it out",
            option="takeoverMs",
        )
    if ("tlsCert" in values) != ("tlsKey" in values):
        raise ConfigError(
            "tlsCert and tlsKey work together; only one is given",
            next_step="give both, as PEM files",
            option="tlsCert",
        )
    if "tlsCa" in values and "tlsCert" not in values:
        raise ConfigError(
            "tlsCa asks for client certificates, which needs TLS",
            next_step="give tlsCert and tlsKey too",
            option="tlsCa",
        )


def _refuse_without(
    values: Mapping[str, Any], names: Iterable[str], needed: str, remedy: str
) -> None:
    for name in names:
        if name in values:
            raise ConfigError(
                f"option {name} has no effect without {needed}", next_step=remedy, option=name
            )


def _check_sizes(values: Mapping[str, Any]) -> None:
    segment_bytes = values.get("segmentBytes", SourceOptions.segment_bytes)
    limit = values.get("maxBufferBytes")
    if limit is not None and limit < 4 * segment_bytes:
        raise refused(
            "maxBufferBytes",
            limit,
            f"give at least 4 segments, which is {4 * segment_bytes}, or a smaller segmentBytes",
        )


def _fields(values: dict[str, Any]) -> dict[str, Any]:
    fields = {_snake_case(name): value for name, value in values.items()}
    host, port = fields.pop("host", None), fields.pop("port", None)
    if host is not None:
        fields["connect"] = (host, port)
    return fields


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter.group().lower(), name)
