"""Free TCP ports that stay free while a server is killed and restarted."""

from __future__ import annotations

import random
import socket

# Below Linux's ephemeral range (32768 and up): otherwise an outgoing connection may be given the
# port as its own while the server is down, and the restart fails.
_LOW, _HIGH = 20000, 32000
_random = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """A port of ``host`` on which nothing listened a moment ago, outside the ephemeral range."""
    for _ in range(1000):
        port = _random.randrange(_LOW, _HIGH)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port on {host} between {_LOW} and {_HIGH}")


def accepts(port: int, host: str = "127.0.0.1", timeout: float = 1.0) -> bool:
    """Whether something accepts a connection on the port now."""
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False
