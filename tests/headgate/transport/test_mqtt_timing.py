"""An attempt to connect ends when it is not wanted any more, and not later than the wait for it."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from headgate.client.connection import Client
from headgate.settings.config import ClientConfig
from headgate.transport.broker_tls import BrokerTls, TlsSockets
from headgate.transport.connection_options import MqttTiming
from headgate.transport.mqtt import MqttTransport
from tests.support.servers.scripted_broker import scripted_broker


@pytest.mark.parametrize("tls", [False, True], ids=["without TLS", "in the handshake"])
async def test_closing_does_not_wait_for_a_broker_that_does_not_answer(tls: bool) -> None:
    """A command that has said so must end, and not wait for its attempt."""
    limit_seconds = 100.0
    context = ssl.create_default_context()
    encrypted = BrokerTls(lambda: context, "localhost") if tls else None
    contacted = asyncio.Event()
    async with scripted_broker(b"", contacted) as port:
        timing = MqttTiming(connect_timeout_seconds=limit_seconds, keepalive_seconds=int(limit_seconds))
        transport = MqttTransport("127.0.0.1", port, "c", tls=encrypted, timing=timing)
        await transport.__aenter__()
        await contacted.wait()
        async with asyncio.timeout(limit_seconds / 2):
            await transport.__aexit__(None, None, None)

    assert transport.unreachable_reason is None


@pytest.mark.parametrize(("seconds", "expected"), [(None, 3.0), (0.5, 0.5), (4.0, 4.0), (60.0, 10.0)])
def test_an_attempt_does_not_outlive_the_wait_for_it(seconds: float | None, expected: float) -> None:
    assert MqttTiming.for_first_connection(seconds).connect_timeout_seconds == expected


def test_the_client_of_a_command_uses_the_wait_of_the_command(tmp_path: Path) -> None:
    config = ClientConfig(
        cluster="c", broker_host="h", broker_port=1, ledger_url=tmp_path.as_uri(), broker_timeout_seconds=4.0
    )
    transport = Client.from_config(config, "admin").transport

    assert isinstance(transport, MqttTransport)
    assert transport._timing.connect_timeout_seconds == 4.0


def test_after_closing_no_handshake_begins() -> None:
    """The thread that connects may reach it only then."""
    context = ssl.create_default_context()
    sockets = TlsSockets(BrokerTls(lambda: context, "localhost"))
    sockets.abort()
    with socket.socket() as plain, pytest.raises(ConnectionAbortedError):
        sockets.wrap_socket(plain)
