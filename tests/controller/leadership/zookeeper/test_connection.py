"""Sockets and credentials of the ZooKeeper connection. tests/contract has the rest, with real servers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from controller.leadership.zookeeper.connection import DigestUser, _Threads
from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import client_context, server_context


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[tuple[_Threads, socket.socket, socket.socket]]:
    """Yield kazoo's threads, and both ends of a TLS connection, the client's first."""
    authority = LocalCertificateAuthority(tmp_path)
    files = authority.issue("server", hosts=["127.0.0.1"])
    context = server_context(certificate_file=files.certificate_file, key_file=files.key_file)
    threads = _Threads(client_context(ca_file=authority.ca_file), on_problem=pytest.fail, on_end=lambda _: None)
    accepted: list[socket.socket] = []
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))

        def serve() -> None:
            accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))

        serving = threading.Thread(target=serve)
        serving.start()
        client = threads.create_connection(("127.0.0.1", listener.getsockname()[1]), "127.0.0.1", timeout=30)
        stack.enter_context(closing(client))
        serving.join(30)
        stack.enter_context(closing(accepted[0]))
        yield threads, client, accepted[0]


def test_what_tls_has_decrypted_is_readable(connections: tuple[_Threads, socket.socket, socket.socket]) -> None:
    """Two replies may arrive in one record. kazoo reads the first, then waits for the socket: until its next ping."""
    threads, client, server = connections
    server.sendall(b"12")
    assert client.recv(1) == b"1"

    assert threads.select([client], [], [], 0.0) == ([client], [], [])
    assert client.recv(1) == b"2"
    assert threads.select([client], [], [], 0.0) == ([], [], [])


def test_a_disconnection_looks_like_a_failed_network(connections: tuple[_Threads, socket.socket, socket.socket]):
    """It is no problem of TLS, and kazoo connects again."""
    threads, client, _ = connections

    threads.disconnect()

    # kazoo takes both for a lost connection. The first one: this side had not read all, which Python 3.13 reports.
    with suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_a_server_that_never_answers_the_handshake_is_named() -> None:
    problems: list[str] = []
    threads = _Threads(client_context(), on_problem=problems.append, on_end=lambda _: None)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TimeoutError):
            threads.create_connection(("127.0.0.1", port), "127.0.0.1", timeout=0.1)

    assert len(problems) == 1
    assert f"no TLS connection to ZooKeeper server 127.0.0.1:{port} (" in problems[0]
    assert "timed out" in problems[0]


def test_a_user_is_named_by_a_hash_and_never_by_the_password() -> None:
    user = DigestUser("headgate", "sesame")

    assert "sesame" not in repr(user)
    # As `echo -n headgate:sesame | openssl dgst -sha1 -binary | base64` prints it.
    assert user.identity == "headgate:gW8DmXGhRbjwhehRVkQGmq+sCE8="
