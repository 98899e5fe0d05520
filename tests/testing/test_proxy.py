"""The proxy does exactly what its rules say, to the byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest

from spark_eoc.testing.proxy import Proxy, Rules
from spark_eoc.testing.wait import until


class Echo:
    """Sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.got = b""
        self.ended = ""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            try:
                while data := peer.recv(65536):
                    self.got += data
                    peer.sendall(data)
                self.ended = "fin"
            except ConnectionError:
                self.ended = "reset"
            peer.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.listener.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as through:
        yield through


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 5)


def read_all(client: socket.socket) -> tuple[bytes, str]:
    got = b""
    try:
        while data := client.recv(65536):
            got += data
    except ConnectionError:
        return got, "reset"
    return got, "fin"


def test_without_rules_everything_passes_both_ways(proxy: Proxy, echo: Echo):
    """A megabyte goes round, then the FIN."""
    data = bytes(range(256)) * 4096
    with connect(proxy) as client:
        thread = threading.Thread(
            target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR))
        )
        thread.start()
        assert read_all(client) == (data, "fin")
        thread.join()
    assert echo.got == data


@pytest.mark.parametrize("n", [0, 1, 7, 10])
def test_cut_to_server_lets_exactly_n_bytes_through(proxy: Proxy, echo: Echo, n: int):
    """The server sees n bytes and a reset; so does the client."""
    proxy.set(Rules(cut_to_server=n), times=1)
    with connect(proxy) as client:
        client.sendall(b"0123456789")
        _, end = read_all(client)
    assert end == "reset"
    until(lambda: echo.ended, 5, "the server's end")
    assert (echo.got, echo.ended) == (b"0123456789"[:n], "reset")
    assert proxy.fired == 1
    with connect(proxy) as client:  # the fault is used up
        client.sendall(b"again")
        assert client.recv(10) == b"again"


@pytest.mark.parametrize("n", [1, 7])
def test_cut_to_client_lets_exactly_n_bytes_back(proxy: Proxy, echo: Echo, n: int):
    """The server has everything, the client n bytes of the answer."""
    proxy.set(Rules(cut_to_client=n), times=1)
    with connect(proxy) as client:
        client.sendall(b"0123456789")
        got, end = read_all(client)
    assert end == "reset"
    assert len(got) <= n  # a reset may overtake what the kernel had not handed out
    until(lambda: echo.ended, 5, "the server's end")
    assert echo.got == b"0123456789"


def test_half_close_ends_one_direction_only(proxy: Proxy, echo: Echo):
    """The client reads n bytes and a FIN, and may go on sending."""
    proxy.set(Rules(half_close_to_client=3), times=1)
    with connect(proxy) as client:
        client.sendall(b"012345")
        assert read_all(client) == (b"012", "fin")
        client.sendall(b"more")
        until(lambda: echo.got == b"012345more", 5, "the other direction")


def test_delay_holds_each_piece(proxy: Proxy):
    """There and back takes at least twice the delay."""
    proxy.set(Rules(delay_s=0.1))
    with connect(proxy) as client:
        began = time.monotonic()
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        assert time.monotonic() - began >= 0.2


def test_a_black_hole_takes_and_gives_nothing_until_it_is_lifted(proxy: Proxy, echo: Echo):
    """Bytes vanish without an error; afterwards a reset, since TCP delivers nothing that comes
    behind bytes that are lost. A connection that lost none goes on."""
    with connect(proxy) as client:
        proxy.set(Rules(black_hole=True))
        client.settimeout(0.2)
        client.sendall(b"gone")
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.set()
        client.settimeout(5)
        assert read_all(client) == (b"", "reset")
    until(lambda: echo.ended, 5, "the server's end")
    assert echo.got == b""
    with connect(proxy) as client:
        proxy.set(Rules(black_hole=True))
        proxy.set()
        client.sendall(b"here")
        assert client.recv(10) == b"here"


def test_cut_all_resets_living_connections(proxy: Proxy):
    """Both sides notice."""
    with connect(proxy) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        assert proxy.cut_all() == 1
        assert read_all(client)[1] == "reset"


def test_the_answer_to_commit_is_lost_but_the_commit_is_not(mariadb):
    """Of a swallowed COMMIT the client sees an error, and the rows are there."""
    mariadb.query("CREATE TABLE t (n INT) ENGINE=InnoDB")
    with Proxy(mariadb.port) as proxy:
        connection = pymysql.connect(
            host="127.0.0.1", port=proxy.port, user="root", database=mariadb.name
        )
        proxy.set(Rules(swallow_answer_to=b"COMMIT"), times=1)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(pymysql.OperationalError):
                connection.commit()
        assert proxy.fired == 1
    assert mariadb.query("SELECT n FROM t") == [(1,)]
