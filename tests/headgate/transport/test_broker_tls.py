"""The text for users about each kind of failed handshake; tests/contract has those that a real broker causes."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from controller.local.certificates import LocalCertificateAuthority
from controller.settings.load import load_settings, parse_settings
from headgate.client.connection import Client
from headgate.errors import ConfigError
from headgate.files.tls import client_context, server_context
from headgate.log.event_log import LogEvent
from headgate.settings.config import load_client_config
from headgate.transport.broker_tls import BrokerTls, TlsSocket, TlsSockets, tls_problem
from headgate.transport.connection_options import is_loopback, password_warning, tls_option_problem
from tests.support.samples.client_configs import client_config
from tests.support.samples.secret_files import write_secret

TLS = BrokerTls(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "broker.example")


def failed(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1)")
    error.reason = reason
    return error


def unverified(code: int, message: str = "odd") -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (unverified(7), "the broker's certificate is not signed by the authorities of the system: set ca_file"),
        (unverified(62), "the broker's certificate is not for broker.example: set server_name"),
        (unverified(23, "certificate revoked"), "the broker's certificate is refused: certificate revoked"),
        (ssl.SSLEOFError(8, "EOF"), "the broker does not answer the TLS handshake"),
        (ConnectionResetError(104, "reset"), "the broker does not answer the TLS handshake"),
        (TimeoutError("timed out"), "the broker does not answer the TLS handshake"),
        (failed("WRONG_VERSION_NUMBER"), "the broker does not answer the TLS handshake"),
        (failed("TLSV1_ALERT_PROTOCOL_VERSION"), "the broker offers no version of TLS from 1.2"),
        (failed("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "the broker requires a client certificate"),
        (failed("SSLV3_ALERT_HANDSHAKE_FAILURE"), "the broker requires a client certificate"),
        (
            failed("SSLV3_ALERT_CERTIFICATE_REVOKED"),
            "the broker refuses the client's certificate (certificate revoked)",
        ),
        (failed("NO_CIPHERS_AVAILABLE"), "TLS failed: no ciphers available"),
        (OSError(5, "Input/output error"), "TLS failed: [Errno 5] Input/output error"),
    ],
    ids=str,
)
def test_each_failure_is_one_line(error: OSError, problem: str) -> None:
    found = tls_problem(error, TLS)
    assert found.startswith(problem)
    assert "\n" not in found


def test_a_client_with_a_certificate_is_not_asked_to_set_one() -> None:
    with_certificate = replace(TLS, has_certificate=True)
    for reason in ("SSLV3_ALERT_HANDSHAKE_FAILURE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"):
        assert tls_problem(failed(reason), with_certificate).startswith("the broker refuses the client's certificate (")


def test_a_small_message_is_not_delayed() -> None:
    """Without the option, it waits until the peer has confirmed the one before."""
    with socket.socket() as sock:
        TlsSockets(TLS).wrap_socket(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# A TLS connection over real sockets, with the standard library's socket on the other side.


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


# Settings of TLS that need each other, the same for daemons and clients.


PAIR = {"certificate_file": "a.pem", "key_file": "a.key"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tls": True},
        {"tls": True, "ca_file": "ca.pem"},
        {"tls": True, **PAIR},
        *({"tls": True, "server_name": name} for name in ("broker.example", "a_b-c", "10.0.0.1", "fe80::1", "a" * 63)),
    ],
    ids=str,
)
def test_settings_with_their_partners_are_right(fields: dict[str, object]) -> None:
    assert tls_option_problem(client_config(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"ca_file": "ca.pem"}, "ca_file", "ca_file is set, and tls is not; set tls = true, or remove ca_file"),
        ({"server_name": "b"}, "server_name", "server_name is set, and tls is not"),
        (PAIR, "certificate_file", "certificate_file is set, and tls is not"),
        ({"tls": True, "key_file": "a.key"}, "certificate_file", "key_file is set, and certificate_file is not"),
        ({"tls": True, "certificate_file": "a"}, "key_file", "certificate_file is set, and key_file is not; set both"),
        ({"tls": True, "ca_file": ""}, "ca_file", "is empty; write a value, or remove the setting"),
        ({"tls": True, "server_name": ""}, "server_name", "is empty"),
        *(
            ({"tls": True, "server_name": name}, "server_name", "is neither the name nor the address of a server")
            for name in (".b", "a..b", "a.", "a b", "b\n", "ä", "a/b", "a" * 64, "a." * 126 + "ab")
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_error_names_both_settings(fields: dict[str, object], field: str, problem: str) -> None:
    found = tls_option_problem(client_config(**fields))
    assert field == found[0]
    assert problem in found[1]
    with pytest.raises(ConfigError, match=rf"^{field}: .*{problem}"):  # also without a file of settings
        client_config(**fields).broker_tls()


@pytest.mark.parametrize("settings", ["daemon", "client"])
def test_both_kinds_of_settings_are_checked_when_they_are_loaded(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    if settings == "daemon":
        text = '[ledger]\nurl = "file:///l"\n[broker]\nca_file = "ca.pem"\n'
        with pytest.raises(ConfigError, match=r"^settings: \$\.broker\.ca_file: ca_file is set, and tls is not"):
            parse_settings(text, "settings")
        return
    file.write_text('cluster = "c"\nbroker_host = "h"\nbroker_port = 1\nledger_url = "x"\nca_file = "ca.pem"\n')
    with pytest.raises(ConfigError, match=rf"^{file}: ca_file: ca_file is set, and tls is not"):
        load_client_config(file)


def test_relative_paths_of_the_daemon_are_credentials_or_beside_the_settings(tmp_path: Path) -> None:
    file, credentials = tmp_path / "headgate.toml", tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "own.key").touch()
    file.write_text(
        '[ledger]\nurl = "file:///l"\n[access]\nopen = true\n'
        '[broker]\ntls = true\nca_file = "ca.pem"\ncertificate_file = "/etc/own.pem"\nkey_file = "own.key"\n'
    )

    broker = load_settings(file, credentials=credentials).broker

    assert [str(tmp_path / "ca.pem"), "/etc/own.pem", str(credentials / "own.key")] == [
        broker.ca_file,
        broker.certificate_file,
        broker.key_file,
    ]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("headgate.example", False),
        ("localhost.example", False),
        ("127.1", False),
    ],
)
def test_loopback_is_an_address_of_this_machine_or_localhost(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("host", "password_file", "tls", "warns"),
    [
        ("broker.example", "secret", False, True),
        ("10.0.0.1", "secret", False, True),
        ("broker.example", None, False, False),
        ("broker.example", "secret", True, False),
        ("localhost", "secret", False, False),
        ("127.1.2.3", "secret", False, False),
    ],
)
def test_a_password_that_crosses_a_network_without_tls_is_worth_a_warning(
    host: str, password_file: str | None, tls: bool, warns: bool
) -> None:
    warning = password_warning(client_config(tls=tls), host, password_file)
    assert warns == (warning is not None)
    assert not warns or host in (warning or "")


def test_a_client_logs_the_warning_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = write_secret(tmp_path / "secret", b"hush")
    fields = {"username": "till", "password_file": str(secret)}
    Client.from_config(client_config(broker_host="broker.example", **fields), "consumer")
    events = [(record.msg.event, record.levelname) for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert [("broker.insecure", "WARNING")] == events
    assert "hush" not in caplog.text


def test_a_socket_that_is_not_wanted_any_more_is_closed() -> None:
    """The thread that connected it had not asked for TLS when the transport was closed."""
    sockets, sock = TlsSockets(BrokerTls(ssl.create_default_context, "broker")), socket.socket()
    sockets.abort()
    with pytest.raises(ConnectionAbortedError):
        sockets.wrap_socket(sock)
    assert -1 == sock.fileno()
