"""An attempt to connect ends when it is not wanted any more, and not later than the wait for it."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from headgate.transport.broker_tls import BrokerTls
from headgate.transport.mqtt import MqttTransport
from headgate.transport.mqtt_timing import MqttTiming
from tests.support.servers.scripted_broker import scripted_broker


@pytest.mark.parametrize("tls", [False, True], ids=["without TLS", "in the handshake"])
async def test_closing_does_not_wait_for_a_broker_that_does_not_answer(tls: bool) -> None:
    """A command that has said so must end, and not wait for its attempt."""
    limit_seconds = 100.0
    context = ssl.create_default_context()
    encrypted = BrokerTls(lambda: context, "localhost") if tls else None
    contacted = asyncio.Event()
    async with scripted_broker(b"", contacted) as port:
        transport = MqttTransport(
            "127.0.0.1", port, "c", tls=encrypted, timing=MqttTiming(connect_timeout_seconds=limit_seconds)
        )
        await transport.__aenter__()
        await contacted.wait()
        async with asyncio.timeout(limit_seconds / 2):
            await transport.__aexit__(None, None, None)

    assert transport.unreachable_reason is None


@pytest.mark.parametrize(("seconds", "expected"), [(None, 3.0), (0.5, 0.5), (4.0, 4.0), (60.0, 10.0)])
def test_an_attempt_does_not_outlive_the_wait_for_it(seconds: float | None, expected: float) -> None:
    assert MqttTiming.for_first_connection(seconds).connect_timeout_seconds == expected
