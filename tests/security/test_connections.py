"""Connections without credentials, without TLS, and under the names of others; tests/contract has impostors."""

import asyncio
import socket
import ssl
import urllib.error
import urllib.request
import warnings
from collections.abc import Awaitable, Callable

import pytest

from bench.harness.raw_client import RawClient
from controller.local.certificates import LocalCertificateAuthority
from headgate.files.tls import client_context
from headgate.model import entries as e
from headgate.protocol.codec import daemon_client_id, device_session_id
from tests.support.servers.programs import TEST_SECONDS, TIMEOUT_FACTOR
from tests.support.worlds.security_scene import Attack, BrokerLog, Metric, Scene

pytestmark = [pytest.mark.security, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(TEST_SECONDS)]

CLUSTER = "test"
NOT_AUTHORIZED = BrokerLog("Client <unknown> disconnected, not authorised")
Attempt = Callable[[Scene, str], Awaitable[str]]
CLIENT_REFUSES, SERVER_REFUSES = "the client refuses", "the server refuses"


def handshake(port: int, context: ssl.SSLContext) -> str:
    """Return how a handshake with a server on this machine ends. Unlike asyncio, a blocking socket sends its alert."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5 * TIMEOUT_FACTOR) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
        ):
            # In TLS 1.3 a client has finished before the server has checked its certificate.
            encrypted.sendall(b"srvr")
            return "connected" if encrypted.recv(1) else SERVER_REFUSES
    except ssl.SSLCertVerificationError:
        return CLIENT_REFUSES
    except (ssl.SSLError, ConnectionError):
        return SERVER_REFUSES


def old_tls(context: ssl.SSLContext) -> ssl.SSLContext:
    """Let ``context`` speak TLS 1.1 only, which OpenSSL allows at security level 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def trusting_others(scene: Scene) -> ssl.SSLContext:
    """Return a context that trusts another authority than that of the cluster."""
    return client_context(ca_file=LocalCertificateAuthority(scene.cluster.folder / "other-authority").ca_file)


# The broker


def connects(user: str | None = None, password: str | None = None, *, tls: bool = True) -> Attempt:
    """Return the broker's answer to a connection."""

    async def attempt(scene: Scene, _: str) -> str:
        broker = scene.cluster.broker
        context = scene.context() if tls else None
        client = RawClient(broker.host, broker.port, "intruder", user=user, password=password, context=context)
        try:
            return await client.connect()
        except ConnectionError:
            return "closed"
        finally:
            await client.close()

    return attempt


def shakes_hands(port: Callable[[Scene], int], context: Callable[[Scene], ssl.SSLContext]) -> Attempt:
    """Return which side refuses the TLS handshake."""

    async def attempt(scene: Scene, _: str) -> str:
        return await asyncio.to_thread(handshake, port(scene), context(scene))

    return attempt


def takes_over(client_id: Callable[[Scene], str]) -> Attempt:
    """Connect with the client id of another, and delete what waits in its session."""

    async def attempt(scene: Scene, user: str) -> str:
        async with scene.raw(user, client_id(scene)) as thief:
            await thief.subscribe(f"headgate/{CLUSTER}/#")
            await scene.next_round()
            foreign = [topic for topic, _ in thief.received if not topic.endswith(("/leader", "/head", "/cluster"))]
        return "connected, and receives nothing of others" if not foreign else f"receives {foreign}"

    return attempt


def disturbs(client_id: Callable[[Scene], str]) -> Attempt:
    """Connect with the client id of an honest client, as long as that lets it."""

    async def attempt(scene: Scene, user: str) -> str:
        async with scene.raw(user, client_id(scene)) as thief, asyncio.timeout(TEST_SECONDS / 2):
            await thief.disconnected.wait()
        return "the owner returns"

    return attempt


# HTTP


def reads(path: str, *, token: str | None = None, tls: bool = True) -> Attempt:
    """Return the status of a page, or that the server closes the connection."""

    async def attempt(scene: Scene, _: str) -> str:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = f"{'https' if tls else 'http'}://{scene.daemon.http_address}{path}"
        return await asyncio.to_thread(_fetch, urllib.request.Request(url, headers=headers), scene.context())

    return attempt


def _fetch(request: urllib.request.Request, context: ssl.SSLContext) -> str:
    try:
        with urllib.request.urlopen(request, timeout=5 * TIMEOUT_FACTOR, context=context) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return str(error.code)
    except (urllib.error.URLError, ConnectionError):
        return "closed"


def broker_port(scene: Scene) -> int:
    return scene.cluster.broker.port


def http_port(scene: Scene) -> int:
    return scene.daemon.settings.http.port


def http_denied(reason: str) -> Metric:
    return Metric("headgate_http_denied_total", {"reason": reason})


ATTACKS = [
    Attack("rival", "connects without a user", connects(), "Not authorized", NOT_AUTHORIZED),
    Attack("rival", "guesses a password", connects("shop", "guess"), "Not authorized", NOT_AUTHORIZED),
    Attack("rival", "invents a user", connects("root", "root"), "Not authorized", NOT_AUTHORIZED),
    Attack(
        "rival",
        "speaks MQTT without TLS",
        connects("shop", "x", tls=False),
        "closed",
        BrokerLog("wrong version number"),
    ),
    Attack(
        "rival",
        "speaks MQTT over TLS 1.1",
        shakes_hands(broker_port, lambda scene: old_tls(scene.context())),
        SERVER_REFUSES,
        BrokerLog("unsupported protocol|no suitable signature algorithm"),
    ),
    Attack(
        "shop",
        "does not trust the broker's authority",
        shakes_hands(broker_port, trusting_others),
        CLIENT_REFUSES,
        BrokerLog("unknown ca"),
    ),
    Attack("rival", "reads the status without a token", reads("/api/v1/cluster"), "401", http_denied("no_token")),
    Attack("rival", "reads the metrics without a token", reads("/metrics"), "401", http_denied("no_token")),
    Attack(
        "rival",
        "reads the status with a wrong token",
        reads("/api/v1/cluster", token="hg_guess"),
        "401",
        http_denied("wrong_token"),
    ),
    Attack("rival", "speaks HTTP without TLS", reads("/api/v1/cluster", tls=False), "closed", http_denied("plaintext")),
    Attack(
        "rival",
        "speaks HTTP over TLS 1.1",
        shakes_hands(http_port, lambda scene: old_tls(scene.context())),
        SERVER_REFUSES,
        http_denied("handshake"),
    ),
    Attack(
        "rival",
        "does not trust the daemon's authority",
        shakes_hands(http_port, trusting_others),
        CLIENT_REFUSES,
        http_denied("server_certificate"),
    ),
    Attack(
        "rival",
        "takes over the client id of a daemon",
        takes_over(lambda _: daemon_client_id(CLUSTER, "only")),
        "connected, and receives nothing of others",
        BrokerLog("New client connected from .* as headgate:test:daemon:only "),
    ),
    Attack(
        "sensor",
        "takes over the session of devices",
        takes_over(lambda _: device_session_id(CLUSTER, 0, 1, 1)),
        "connected, and receives nothing of others",
        BrokerLog("New client connected from .* as headgate:test:shard:0:topic:1:0000000000000001 "),
    ),
    Attack(
        "rival",
        "takes over the client id of a producer",
        disturbs(lambda scene: scene.producer_client_id),
        "the owner returns",
        BrokerLog("Client producer-[0-9a-f]+ already connected, closing old connection"),
    ),
    Attack(
        "colleague",
        "takes over the client id of a consumer",
        disturbs(lambda scene: scene.consumer_client_id),
        "the owner returns",
        BrokerLog("Client consumer-[0-9a-f]+ already connected, closing old connection"),
        allowed=(e.ConsumerDisconnected, e.ConsumerReconnected),
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
async def test_a_connection_without_a_right_has_no_effect(scene: Scene, attack: Attack) -> None:
    await scene.attacked(attack)
