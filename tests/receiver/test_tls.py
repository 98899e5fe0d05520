"""TLS: encrypted connections, client certificates, and cut streams."""

from __future__ import annotations

import socket
import ssl

import pytest

from spark_eoc.errors import ConfigError, ProtocolError
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
    dial(receiver).sendall(b"plain text\n")
    dial(receiver)
    until(lambda: receiver.stats().accepted == 2, 20, "both came")
    until(lambda: receiver.stats().connections == 0, 20, "both are let go")
    with LineProducer("127.0.0.1", receiver.port, "p", tls_ca=authority.file) as producer:
        producer.send(b"x")
    bench.wait_for([b"x"])


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
