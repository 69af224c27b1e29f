"""Tokens and TLS of the HTTP server, over real sockets."""

import asyncio
import contextlib
import socket
from datetime import UTC, datetime
from unittest.mock import create_autospec

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import client_context, server_context
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.secret_files import write_secret
from tests.support.servers.http_server import HttpHarness
from tests.support.waiting import until
from web import listener
from web.access import CHALLENGES, HttpAccess
from web.listener import HttpConnection, HttpDenials
from web.tokens import read_tokens, token_line

pytestmark = pytest.mark.real_time

HOSTS = ("127.0.0.1",)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 2, 1, tzinfo=UTC)
PATHS = ("/", "/api/v1/cluster", "/live?page=x", "/static/page.css", "/metrics", "/nowhere")


def tokens(folder, *pairs):
    lines = "".join(f"{token_line(name, token)}\n" for name, token in pairs)
    return read_tokens(write_secret(folder / "tokens", f"# tokens\n{lines}".encode()), "$.http.tokens_file")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return LocalCertificateAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_files(authority):
    return authority.issue("http", hosts=HOSTS)


@pytest.fixture(scope="module")
def trusting(authority):
    """The context of a client without a certificate, which trusts the authority."""
    return client_context(ca_file=authority.ca_file)


def refused(address, context=None):
    """Whether a program that does not use asyncio gets no answer; asyncio's clients send no alerts."""
    host, port = address.split(":")
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(socket.create_connection((host, int(port))))
        try:
            if context is not None:
                stream = stack.enter_context(context.wrap_socket(stream, server_hostname=host))
            stream.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            return stream.recv(100) == b""
        except OSError:
            return True


def of(files, **more):
    return server_context(certificate_file=files.certificate_file, key_file=files.key_file, **more)


async def test_without_a_token_only_probes_are_answered(tmp_path):
    access = HttpAccess(tokens=tokens(tmp_path, ("grafana", "secret")))
    async with (harness := HttpHarness(access=access)).server:
        assert [(await harness.get(path))[0] for path in ("/livez", "/readyz")] == [200, 200]
        answers = [
            await harness.get(path, **headers) for path in PATHS for headers in ({}, {"Authorization": "Bearer x"})
        ]
        assert [status for status, _, _ in answers] == [401] * 2 * len(PATHS)
        assert all(headers.getall("WWW-Authenticate") == list(CHALLENGES) for _, headers, _ in answers)
        assert all(text.startswith("a token is required") for _, _, text in answers)

    assert [harness.denied("no_token"), harness.denied("wrong_token")] == [len(PATHS), len(PATHS)]


@pytest.mark.parametrize(
    "authorization", ["Bearer secret", aiohttp.encode_basic_auth("me", "secret")], ids=["bearer", "basic"]
)
async def test_with_a_token_every_page_is_answered(tmp_path, authorization):
    access = HttpAccess(tokens=tokens(tmp_path, ("grafana", "secret")))
    async with (harness := HttpHarness(access=access)).server:
        found = [(await harness.get(path, Authorization=authorization))[0] for path in (*PATHS, "/livez", "/readyz")]

    assert found == [200, 200, 400, 200, 200, 404, 200, 200]
    assert harness.denied("wrong_token") == 0


async def test_readiness_names_components_only_with_a_token(tmp_path):
    access = HttpAccess(tokens=tokens(tmp_path, ("grafana", "secret")))
    async with (harness := HttpHarness(access=access)).server:
        assert (await harness.get("/readyz"))[2] == '{"state":"ready"}\n'
        assert (await harness.get("/readyz", Authorization="Bearer wrong"))[2] == '{"state":"ready"}\n'
        assert "components" in (await harness.get("/readyz", Authorization="Bearer secret"))[2]


async def test_metrics_are_open_by_setting(tmp_path):
    access = HttpAccess(tokens=tokens(tmp_path), open_metrics=True)
    async with (harness := HttpHarness(access=access)).server:
        assert [(await harness.get(path))[0] for path in ("/metrics", "/api/v1/cluster")] == [200, 401]


async def test_other_tokens_are_in_force_at_once(tmp_path):
    async with (harness := HttpHarness(access=HttpAccess(tokens=tokens(tmp_path, ("a", "old"))))).server:
        harness.server.access = HttpAccess(tokens=tokens(tmp_path, ("a", "new")))
        found = [(await harness.get("/api/v1/cluster", Authorization=f"Bearer {token}"))[0] for token in ("old", "new")]

    assert found == [401, 200]


async def test_another_daemon_reads_the_api_with_its_token_and_nothing_else(tmp_path):
    access = HttpAccess(tokens=tokens(tmp_path, ("grafana", "secret")))
    async with (harness := HttpHarness(access=access)).server:
        harness.peer_token = "peer.known"
        found = {
            token: [(await harness.get(path, Authorization=f"Bearer {token}"))[0] for path in ("/api/v1/daemon", "/")]
            for token in ("peer.known", "peer.other", "known")
        }

    assert found == {"peer.known": [200, 401], "peer.other": [401, 401], "known": [401, 401]}


async def test_other_certificates_are_in_force_for_the_next_connection(authority, server_files, trusting, tmp_path):
    """The old context keeps its certificate although its files were replaced."""
    other = LocalCertificateAuthority(tmp_path)
    async with (harness := HttpHarness(access=HttpAccess(tls=of(server_files)))).server:
        harness.server.access = HttpAccess(tls=of(other.issue("http", hosts=HOSTS)))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await harness.get("/livez", tls=trusting)
        assert (await harness.get("/livez", tls=client_context(ca_file=other.ca_file)))[0] == 200


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    authority, server_files, trusting, tmp_path
):
    required = HttpAccess(tls=of(server_files, client_ca_file=authority.ca_file))
    known = authority.issue("prometheus", client=True)
    stranger = LocalCertificateAuthority(tmp_path).issue("prometheus", client=True)
    contexts = [
        client_context(ca_file=authority.ca_file, certificate_file=each.certificate_file, key_file=each.key_file)
        for each in (known, stranger)
    ]
    async with (harness := HttpHarness(access=required)).server:
        assert (await harness.get("/metrics", tls=contexts[0]))[0] == 200
        for context in (trusting, contexts[1]):
            assert await asyncio.to_thread(refused, harness.server.address, context)
        await until(lambda: harness.denied("client_certificate") == 2)


async def test_a_handshake_that_does_not_end_is_ended_and_delays_no_other(server_files, trusting, monkeypatch):
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 1)
    access = HttpAccess(tls=of(server_files))
    async with (harness := HttpHarness(access=access)).server:
        host, port = harness.server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03")
        assert (await harness.get("/livez", tls=trusting))[0] == 200
        assert await reader.read() == b""
        writer.close()

    assert harness.denied("slow_handshake") == 1


async def test_at_the_limit_the_oldest_handshake_is_ended_first(server_files, trusting, monkeypatch):
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 3)
    access = HttpAccess(tls=of(server_files))
    async with (harness := HttpHarness(access=access)).server:
        host, port = harness.server.address.split(":")
        served = await asyncio.open_connection(host, int(port), ssl=trusting)
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        assert (await harness.get("/livez", tls=trusting))[0] == 200
        assert [await reader.read() for reader, _ in silent[:5]] == [b""] * 5

        served[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await served[0].readline() == b"HTTP/1.1 200 OK\r\n"
        for _, writer in (served, *silent):
            writer.transport.abort()


SOME_HEADERS = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
REQUEST = SOME_HEADERS + b"\r\n"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
async def test_a_request_that_does_not_arrive_ends_its_connection_and_is_counted(
    tls, server_files, trusting, monkeypatch
):
    """A connection without any request is not: browsers open some in advance, and keep others alive."""
    monkeypatch.setattr(listener, "KEEPALIVE_SECONDS", 0.5)
    access = HttpAccess(tls=of(server_files) if tls else None)

    async def slow_requests(*sent):
        async with (harness := HttpHarness(access=access)).server:
            host, port = harness.server.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting if tls else None)
            for part in sent:
                writer.write(part)
                if part == REQUEST:
                    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await reader.read()
            writer.close()
        return harness.denied("slow_request")

    counted = await asyncio.gather(
        slow_requests(), slow_requests(SOME_HEADERS), slow_requests(REQUEST), slow_requests(REQUEST, SOME_HEADERS)
    )
    assert counted == [0, 1, 0, 1]


@pytest.mark.virtual_time
async def test_refusals_are_logged_once_per_peer_reason_and_hour_and_all_are_counted():
    observer = RecordingObserver()
    denials = HttpDenials(observer)
    with capture_logs() as logs:
        for _ in range(3):
            denials.report("no_token", "10.0.0.1")
        denials.report("wrong_token", "10.0.0.1")
        denials.report("no_token", "10.0.0.2")
        await asyncio.sleep(3600)
        denials.report("no_token", "10.0.0.1")

    assert len(observer.events) == 6
    assert [(line["peer"], line["reason"]) for line in logs] == [
        ("10.0.0.1", "no_token"),
        ("10.0.0.1", "wrong_token"),
        ("10.0.0.2", "no_token"),
        ("10.0.0.1", "no_token"),
    ]


# Which end of a connection counts as a request that was too slow: `test_server_security` has the others.


async def test_a_client_that_gives_up_is_not_slow() -> None:
    transport = create_autospec(asyncio.Transport, instance=True)
    transport.is_closing.return_value = False
    ends: list[bool] = []
    connection = HttpConnection(
        create_autospec(web.RequestHandler, instance=True), 0.0, lambda _, slow: ends.append(slow)
    )
    connection.connection_made(transport)
    connection.data_received(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
    connection.eof_received()
    connection.connection_lost(None)

    assert [False] == ends
