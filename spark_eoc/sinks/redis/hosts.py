"""URLs that name several hosts, such as ``redis+sentinel://user@a:26379,b:26379/name``."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from spark_eoc.errors import ConfigError


@dataclass(frozen=True)
class HostList:
    """``scheme`` is ``redis`` or ``rediss``; ``user`` is everything before the hosts, with ``@``,
    secrets included; each of ``hosts`` has a port."""

    scheme: str
    user: str
    hosts: tuple[str, ...]
    path: str
    query: str

    @classmethod
    def parse(cls, url: str, kind: str, port: int) -> HostList:
        """Of ``redis+kind://`` or ``rediss+kind://``; ``port`` where a host names none. Raises
        ConfigError, which doesn't show the URL."""
        # Newer Pythons take brackets behind another host for a broken URL, so the hosts are cut
        # out before they are read one by one.
        before, _, rest = url.partition("://")
        scheme, _, found = before.lower().partition("+")
        end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
        login, at, names = rest[:end].rpartition("@")
        try:
            tail = urlsplit(f"//host{rest[end:]}")
            hosts = tuple(_with_port(name, port) for name in names.split(","))
        except ValueError:
            scheme = found = ""
        if found != kind or scheme not in {"redis", "rediss"}:
            raise ConfigError(
                "the Redis URL can't be read (it is not shown, since it may hold a password)",
                next_step=f"write it as redis+{kind}://user:password@host:{port},host:{port}/..., "
                "with special characters percent-encoded",
            )
        return cls(scheme, login + at, hosts, tail.path, tail.query)

    def shown(self) -> str:
        """User and hosts, without the password."""
        name = self.user.rstrip("@").partition(":")[0]
        return f"{name}@{','.join(self.hosts)}" if name else ",".join(self.hosts)


def _with_port(name: str, port: int) -> str:
    parts = urlsplit(f"//{name}")
    if not parts.hostname:
        raise ValueError(name)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or port}"
