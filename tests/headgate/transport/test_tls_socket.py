"""A TLS connection over real sockets, with the standard library's socket on the other side."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import client_context, server_context
from headgate.transport.broker_tls import TlsSocket

NAME = "broker.example"
SECONDS = 30.0
"""Limit on waiting."""
Serve = Callable[[ssl.SSLSocket], object]


class CountingSocket:
    """A socket that counts how often it is written to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.writes = 0

    def send(self, data: bytes) -> int:
        self.writes += 1
        return self._sock.send(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


class Connection:
    """A connected `TlsSocket`, and what its server returned."""

    def __init__(self, client: TlsSocket, raw: CountingSocket, server: Future[object]) -> None:
        self.client = client
        self.raw = raw
        self._server = server

    def served(self) -> object:
        return self._server.result(SECONDS)

    def receive(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer if the peer closes the connection."""
        found = b""
        while len(found) < size:
            try:
                part = self.client.recv(size - len(found))
            except BlockingIOError:
                time.sleep(0.001)  # Another thread serves.
                continue
            if not part:
                break
            found += part
        return found


class Scene:
    """Certificates, and a thread that serves."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor, open_sockets: contextlib.ExitStack) -> None:
        self.authority = LocalCertificateAuthority(folder)
        self.files = self.authority.issue("broker", hosts=(NAME,))
        self._threads, self._open_sockets = threads, open_sockets

    def pair(self) -> tuple[socket.socket, socket.socket]:
        pair = socket.socketpair()
        for sock in pair:
            self._open_sockets.enter_context(sock)
            sock.settimeout(SECONDS)
        return pair

    def connect(self, serve: Serve, *, name: str = NAME) -> Connection:
        """Complete a handshake with a server that continues with ``serve``."""
        near, far = self.pair()
        context = server_context(certificate_file=self.files.certificate_file, key_file=self.files.key_file)
        # A client that closes before it has read them resets the connection, which Python 3.13 reports.
        context.num_tickets = 0

        def run() -> object:
            with context.wrap_socket(far, server_side=True) as sock:
                return serve(sock)

        served = self._threads.submit(run)
        raw = CountingSocket(near)
        client = TlsSocket(raw, client_context(ca_file=self.authority.ca_file), name)  # type: ignore[arg-type]
        connection = Connection(client, raw, served)
        client.do_handshake()
        client.setblocking(False)
        return connection


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as open_sockets:
        yield Scene(tmp_path, threads, open_sockets)


def read_all(sock: ssl.SSLSocket) -> bytes:
    found = b""
    while part := sock.recv(100_000):
        found += part
    return found


def test_what_has_arrived_is_decrypted_at_once_and_read_in_any_sizes(scene: Scene) -> None:
    sent = bytes(range(256)) * 150
    done = threading.Event()

    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(sent)
        done.wait(SECONDS)

    connection = scene.connect(serve)
    head = connection.receive(1)
    rest_known = connection.client.pending()
    found = head + connection.receive(2) + connection.receive(len(sent) - 3)

    assert found == sent
    assert rest_known > 0
    assert connection.client.pending() == 0
    with pytest.raises(BlockingIOError):
        connection.client.recv(1)
    done.set()


def test_a_full_connection_blocks_and_continues_with_the_same_bytes(scene: Scene) -> None:
    """Nothing is encrypted twice, and nothing is lost, when the peer reads late."""
    begin = threading.Event()

    def serve(sock: ssl.SSLSocket) -> bytes:
        begin.wait(SECONDS)
        return read_all(sock)

    connection = scene.connect(serve)
    message, blocked, position = bytes(range(256)) * 16_000, 0, 0
    while position < len(message):
        try:
            position += connection.client.send(message[position:])
        except BlockingIOError:
            blocked += 1
            begin.set()
            time.sleep(0.001)  # Another thread serves.
    connection.client.close()

    assert blocked > 0
    assert connection.served() == message


def test_data_before_a_failure_is_read_first_and_the_failure_stays(scene: Scene) -> None:
    def serve(sock: ssl.SSLSocket) -> None:
        sock.sendall(b"good")
        with socket.socket(fileno=sock.detach()) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))  # not encrypted with the key of the connection

    connection = scene.connect(serve)
    connection.served()

    assert connection.receive(4) == b"good"
    for _ in range(2):
        with pytest.raises(ssl.SSLError):
            connection.receive(1)
    assert connection.client.failure is not None


def test_a_message_to_a_peer_that_has_refused_the_connection_finds_its_reason(scene: Scene) -> None:
    """TLS 1.3 refuses a client's certificate after the client has completed its handshake."""
    near, far = scene.pair()
    files = scene.files
    context = server_context(
        certificate_file=files.certificate_file, key_file=files.key_file, client_ca_file=scene.authority.ca_file
    )
    ended = threading.Event()

    def serve() -> None:
        with pytest.raises(ssl.SSLError), context.wrap_socket(far, server_side=True):
            pass
        far.close()
        ended.set()

    server = threading.Thread(target=serve)
    server.start()
    client = TlsSocket(near, client_context(ca_file=scene.authority.ca_file), NAME)
    client.do_handshake()
    client.setblocking(False)
    assert ended.wait(SECONDS)
    server.join(SECONDS)

    with pytest.raises(OSError):
        client.send(b"hello")

    assert "CERTIFICATE_REQUIRED" in str(client.failure.reason)


def test_a_failed_handshake_closes_the_socket_and_tells_the_peer(scene: Scene) -> None:
    near, far = scene.pair()
    context = server_context(certificate_file=scene.files.certificate_file, key_file=scene.files.key_file)
    said: list[str] = []

    def serve() -> None:
        with pytest.raises(ssl.SSLError) as refused, context.wrap_socket(far, server_side=True) as sock:
            sock.recv(1)
        said.append(str(refused.value.reason))

    server = threading.Thread(target=serve)
    server.start()
    client = TlsSocket(near, client_context(ca_file=scene.authority.ca_file), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        client.do_handshake()
    server.join(SECONDS)

    assert client.fileno() == -1
    assert client.in_handshake
    assert any("BAD_CERTIFICATE" in reason for reason in said)


def test_a_handshake_ends_in_time_although_bytes_arrive(scene: Scene) -> None:
    """Each byte would start another time-out of the socket."""
    near, far = scene.pair()
    stop = threading.Event()

    def drip() -> None:
        far.send(b"\x16\x03\x03\x40\x00")
        while not stop.wait(0.05):
            with contextlib.suppress(OSError):
                far.send(b"\x00")

    server = threading.Thread(target=drip)
    server.start()
    client = TlsSocket(near, client_context(ca_file=scene.authority.ca_file), NAME)
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.do_handshake()
    stop.set()
    server.join(SECONDS)
