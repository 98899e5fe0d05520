"""TLS: encrypted connections, client certificates, and cut streams."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

import pytest

from spark_eoc.errors import ConfigError, ProtocolError, UnacknowledgedError
from spark_eoc.producer import LineProducer
from spark_eoc.receiver import ReceiverOptions
from spark_eoc.receiver.tls import tls_context
from spark_eoc.testing.certificates import Authority
from spark_eoc.testing.wait import until
from tests.receiver.conftest import reset


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture
def server(authority) -> dict[str, str]:
    cert, key = authority.issue("server")
    return {"tls_cert": cert, "tls_key": key}


def test_producers_and_plain_senders_over_tls(bench, authority, server):
    """More than a TLS record at once, and back-pressure's leftovers inside the TLS layer."""
    receiver = bench.receive(**server)
    lines = [b"%d %s" % (number, b"x" * 100) for number in range(20_000)]
    with LineProducer("127.0.0.1", receiver.port, "p", tls_ca=authority.file) as producer:
        for line in lines:
            producer.send(line)
    context = ssl.create_default_context(cafile=authority.file)
    with (
        socket.create_connection(("127.0.0.1", receiver.port)) as sock,
        context.wrap_socket(sock, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"plain over TLS\n")
    bench.wait_for([*lines, b"plain over TLS"])


def test_only_peers_with_a_certificate_of_the_authority_are_let_in(
    bench, authority, server, tmp_path
):
    """Without one, or with a stranger's, no line is taken; the others are served."""
    receiver = bench.receive(**server, tls_ca=authority.file)
    stranger = Authority(tmp_path, "stranger").issue("client")
    for cert, key in [(None, None), stranger]:
        before = receiver.stats().accepted
        producer = LineProducer(
            "127.0.0.1", receiver.port, "p", tls_ca=authority.file, tls_cert=cert, tls_key=key
        )
        until(lambda: receiver.stats().accepted > before + 1, 20, "it tries again")  # noqa: B023
        assert producer.acknowledged == 0
        producer.abandon()
    cert, key = authority.issue("client")
    with LineProducer(
        "127.0.0.1", receiver.port, "p", tls_ca=authority.file, tls_cert=cert, tls_key=key
    ) as producer:
        producer.send(b"trusted")
    assert bench.lines() == [b"trusted"]


def test_a_receiver_of_another_authority_gets_no_line(bench, server, tmp_path):
    """Final: trying again would not make it trusted."""
    receiver = bench.receive(**server)
    other = Authority(tmp_path, "other")
    producer = LineProducer("127.0.0.1", receiver.port, "p", tls_ca=other.file)
    with pytest.raises(ProtocolError, match="not trusted"):
        producer.send(b"secret")
    producer.abandon()


def test_a_cut_stream_is_no_clean_end(bench, authority, server):
    """Without TLS's own goodbye the last text may be half a line: it is dropped."""
    receiver = bench.receive(**server)
    context = ssl.create_default_context(cafile=authority.file)
    for cut in (lambda sock: sock.shutdown(socket.SHUT_WR), reset):
        sock = socket.create_connection(("127.0.0.1", receiver.port))
        secure = context.wrap_socket(sock, server_hostname="127.0.0.1")
        secure.sendall(b"whole\nhalf")
        before = receiver.stats().dropped_unfinished
        until(lambda: receiver.stats().unfinished_bytes == 4, 20, "it has arrived")
        cut(secure)
        until(lambda: receiver.stats().dropped_unfinished > before, 20, "it is dropped")  # noqa: B023
        secure.close()
        # Else the next turn takes this one's rest for its own, and resets before it is read.
        until(lambda: receiver.stats().unfinished_bytes == 0, 20, "it is forgotten")
    bench.wait_for([b"whole", b"whole"])


def test_a_peer_without_tls_costs_only_itself(bench, dial, authority, server):
    """It is let go when the handshake fails, or its time is over."""
    receiver = bench.receive(**server, hello_timeout_ms=200)
    with dial(receiver) as plain:
        plain.sendall(b"plain text\n")
        assert plain.recv(100).startswith(b"ERR tls this receiver takes TLS only")
    dial(receiver)
    until(lambda: receiver.stats().accepted == 2, 20, "both came")
    until(lambda: receiver.stats().connections == 0, 20, "both are let go")
    with LineProducer("127.0.0.1", receiver.port, "p", tls_ca=authority.file) as producer:
        producer.send(b"x")
    bench.wait_for([b"x"])


def client_hello() -> bytes:
    """What any TLS client sends first."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), out, server_hostname="localhost"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_a_tls_hello_is_refused_where_there_is_no_tls(bench, dial, caplog, token):
    """Its bytes are no lines, though newlines may be among them; whoever sends text is served."""
    receiver = bench.receive(token=token)
    hello = client_hello()
    assert hello[:2] == b"\x16\x03"
    for number, pieces in enumerate([[hello + b"\nx\n"], [b"\x16", b"\x03\n"]], 1):
        sock = dial(receiver)
        for piece in pieces:
            sock.sendall(piece)
            until(lambda: not unread(sock, receiver), 10, "it is read")  # noqa: B023
        assert sock.makefile("rb").read().startswith(b"ERR tls looks like TLS")
        assert receiver.stats().refused == number
    assert "looks like TLS, this receiver has none" in caplog.text
    with LineProducer("127.0.0.1", receiver.port, "p", token=token) as producer:
        producer.send(b"\x16\x03 later is data")
    bench.wait_for([b"\x16\x03 later is data"])


def unread(sock: socket.socket, receiver) -> bool:
    """Whether the receiver has not yet taken in what was sent to it."""
    held = sum(peer.held for peer in list(receiver._loop.peers.connections))
    return not (held or receiver.stats().refused)


def test_a_line_may_begin_with_the_first_byte_of_tls(bench, dial):
    """Only both bytes are a TLS record; where it ends or pauses behind one, it waits."""
    sock = dial(bench.receive())
    sock.sendall(b"\x16")
    sock.sendall(b"\x04\n\x16\n\x16\x03\n")
    bench.wait_for([b"\x16\x04", b"\x16", b"\x16\x03"])


def test_a_tls_producer_is_told_that_the_receiver_has_none(bench):
    """At once, not after its time; with another server that answers no TLS, too."""
    receiver = bench.receive()
    producer = LineProducer("127.0.0.1", receiver.port, "p", tls=True)
    with pytest.raises(ProtocolError, match="does not speak TLS") as caught:
        producer.send(b"secret")
    producer.abandon()
    assert caught.value.facts["code"] == "tls"
    assert bench.lines() == []


def test_a_silent_server_is_given_up_within_the_time_that_was_asked_for():
    """In the handshake, and while the answer to the hello is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for tls in (True, False):
            begun = time.monotonic()
            producer = LineProducer(*listener.getsockname(), "p", tls=tls, connect_timeout_s=0.3)
            with pytest.raises(UnacknowledgedError, match=r"within 0\.3 s \("):
                producer.send(b"x")
            producer.abandon()
            assert time.monotonic() - begun < 3


def test_a_producer_without_tls_is_told_that_the_receiver_takes_tls_only(bench, authority, server):
    """In plain text, which it can read; whoever speaks TLS is served meanwhile."""
    receiver = bench.receive(**server)
    producer = LineProducer("127.0.0.1", receiver.port, "p")
    with pytest.raises(ProtocolError, match="takes TLS only") as caught:
        producer.send(b"x")
    producer.abandon()
    assert "--tls-ca" in str(caught.value)
    assert receiver.stats().refused == 1
    with LineProducer("127.0.0.1", receiver.port, "p", tls_ca=authority.file) as producer:
        producer.send(b"y")
    bench.wait_for([b"y"])


def test_another_tls_servers_alert_is_understood():
    """What servers of TLS answer to a first line in plain text, if they answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        producer = LineProducer(*listener.getsockname(), "p")
        with listener.accept()[0] as peer:
            peer.sendall(bytes.fromhex("15030100020246"))
            with pytest.raises(ProtocolError, match="the receiver speaks TLS"):
                producer.send(b"x")
        producer.abandon()


def test_a_receiver_reads_from_a_tls_server(bench, authority, server):
    """`connect`: the server's certificate is checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server["tls_cert"], server["tls_key"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bench.receive(connect=listener.getsockname(), tls_ca=authority.file)
        peer = context.wrap_socket(listener.accept()[0], server_side=True)
        peer.sendall(b"a\nb")
        peer.unwrap()
        bench.wait_for([b"a", b"b"])
        peer.close()


def test_files_that_are_no_certificates_are_refused(tmp_path):
    """When the receiver is built."""
    (tmp_path / "x").write_text("nothing")
    options = ReceiverOptions(
        listen=("127.0.0.1", 0), tls_cert=str(tmp_path / "x"), tls_key=str(tmp_path / "x")
    )
    with pytest.raises(ConfigError, match="TLS files"):
        tls_context(options)
