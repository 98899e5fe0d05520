"""The few socket calls of the receiver, with TLS's extra answers folded in. Never blocks."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl


def read_some(sock: socket.socket, most: int) -> bytes | None:
    """Bytes that are there, about ``most``; None if there are none yet, b"" at a clean end; OSError
    at a reset."""
    try:
        data = sock.recv(most)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    if not isinstance(sock, ssl.SSLSocket) or not data:
        return data
    # Decrypted bytes that are left inside the TLS layer make no socket readable: take them now.
    parts = [data]
    while sock.pending():
        parts.append(sock.recv(sock.pending()))
    return b"".join(parts)


def has_ended(sock: socket.socket) -> bool:
    """Whether the peer has closed and nothing that it sent is left to read. TLS: unknown, False."""
    if isinstance(sock, ssl.SSLSocket):
        return False
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def write_some(sock: socket.socket, data: bytearray) -> bool:
    """Sends from the front of ``data`` and deletes what was sent; True if nothing is left."""
    try:
        while data:
            del data[: sock.send(data)]
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True


def first_byte(sock: socket.socket) -> bytes | None:
    """The first byte that came, left where it is, below any TLS; None if there is none yet, b"" if
    the peer has ended. OSError at a reset."""
    try:
        return socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except BlockingIOError:
        return None


def without_tls(sock: socket.socket) -> socket.socket:
    """The connection under a TLS socket whose handshake has not begun; that one is used up."""
    return socket.socket(fileno=sock.detach())


def shake_hands(sock: socket.socket) -> bool:
    """Goes on with a TLS handshake; True when it is done. OSError if it failed."""
    if not isinstance(sock, ssl.SSLSocket):
        return True
    try:
        sock.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    return True


def hang_up(sock: socket.socket) -> None:
    """Closes; with TLS the peer is told that this is the end and not a cut, if that is possible."""
    if isinstance(sock, ssl.SSLSocket):
        with contextlib.suppress(OSError, ValueError):
            sock.unwrap()
    sock.close()


def adopt(
    sock: socket.socket, context: ssl.SSLContext | None, server_name: str | None
) -> socket.socket:
    """A connected socket made ready for the loop; TLS begins later, in ``shake_hands``."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return sock
    # A cut stream must not look like a clean end (suppress_ragged_eofs), since the end of a
    # plain stream completes its last line.
    return context.wrap_socket(
        sock,
        server_side=server_name is None,
        server_hostname=server_name,
        do_handshake_on_connect=False,
        suppress_ragged_eofs=False,
    )


def listen_on(host: str, port: int) -> socket.socket:
    """A listening socket; OSError if it can't be bound. A name of both kinds is taken as IPv4:
    senders try both, or know 127.0.0.1 only."""
    families = [info[0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    family = socket.AF_INET if socket.AF_INET in families else families[0]
    sock = socket.create_server((host, port), family=family, backlog=512)
    sock.setblocking(False)
    return sock


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost: no."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
