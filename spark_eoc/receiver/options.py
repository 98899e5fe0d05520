"""What a receiver can be told, checked when it is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spark_eoc.errors import ConfigError
from spark_eoc.protocol import check_token

#: One read of a socket, bytes.
READ_BYTES = 256 * 1024

OVERSIZE_RULES = ("error", "truncate", "skip")


@dataclass(frozen=True)
class ReceiverOptions:
    """Exactly one of ``connect`` and ``listen`` is given, each ``(host, port)``; port 0 is any.

    ``on_oversize_line`` says what happens to a line longer than ``max_line_bytes`` (without its
    line end) on a plain connection: ``error`` ends the connection, and with ``connect`` the
    receiver (its one stream can't be read further); ``truncate`` stores the first
    ``max_line_bytes``; ``skip`` stores nothing of it. All are counted in ``Receiver.stats()``. A
    producer of the acknowledged protocol is told (``ERR oversize``) unless the rule is truncate.

    ``flush_interval_ms`` is how long lines of plain connections may wait to share an fsync; when a
    producer waits for its acknowledgement nothing is held back. ``max_pending_bytes`` bounds the
    lines that wait for the log, and once more the unfinished lines of all connections together.
    ``max_frame_bytes`` bounds the lines of one frame, and so does half a segment; larger ones
    cost more memory and are slower. Under load several frames share an fsync.
    ``idle_timeout_ms`` 0 is off. ``max_bytes_per_second``, 0 is off, is what one connection may
    send: beyond it the connection is not read for a while, and nothing is dropped.
    """

    connect: tuple[str, int] | None = None
    listen: tuple[str, int] | None = None
    flush_interval_ms: float = 10
    max_line_bytes: int = 16 * 1024 * 1024
    on_oversize_line: str = "error"
    max_pending_bytes: int = 64 * 1024 * 1024
    max_frame_bytes: int = 4 * 1024 * 1024
    max_connections: int = 1024
    idle_timeout_ms: float = 0
    max_bytes_per_second: float = 0
    hello_timeout_ms: float = 10_000
    reconnect_min_ms: float = 50
    reconnect_max_ms: float = 5_000
    trim_interval_ms: float = 2_000
    token: str | None = field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        self._check_mode()
        self._check_sizes()
        self._check_secrets()

    def _check_mode(self) -> None:
        if (self.connect is None) == (self.listen is None):
            raise ConfigError("a receiver needs exactly one of connect and listen")
        host, port = self.connect or self.listen or ("", -1)
        lowest = 0 if self.listen else 1
        if not host or not lowest <= port <= 65535:
            raise ConfigError(f"{host!r}:{port} is not a host and a port from {lowest} to 65535")

    def _check_sizes(self) -> None:
        if self.on_oversize_line not in OVERSIZE_RULES:
            raise ConfigError(
                f"onOversizeLine is {self.on_oversize_line!r}",
                next_step=f"use one of {', '.join(OVERSIZE_RULES)}",
            )
        for name in ("max_line_bytes", "max_pending_bytes", "max_frame_bytes", "max_connections"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in (
            "flush_interval_ms",
            "idle_timeout_ms",
            "trim_interval_ms",
            "max_bytes_per_second",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.max_line_bytes > 1 << 30:
            raise ConfigError("max_line_bytes is at most 1 GiB: a frame's offsets have 32 bits")

    def _check_secrets(self) -> None:
        check_token(self.token)
        if self.token is not None and self.connect is not None:
            raise ConfigError("token goes with listen: a receiver that connects authenticates none")
        if self.listen is not None and self.tls_ca is not None and self.tls_cert is None:
            raise ConfigError("tls_ca without tls_cert: a TLS listener needs its own certificate")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together")
        for name, path in self.tls_files.items():
            if not Path(path).is_file():
                raise ConfigError(f"option {name}: there is no file {path!r}")

    @property
    def tls_files(self) -> dict[str, str]:
        """The files that are given, by the option's name."""
        files = {"tlsCert": self.tls_cert, "tlsKey": self.tls_key, "tlsCa": self.tls_ca}
        return {name: path for name, path in files.items() if path is not None}

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_cert is not None or self.tls_ca is not None
