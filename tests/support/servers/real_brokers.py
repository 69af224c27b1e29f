"""The brokers that contract suites run against: the fake, mosquitto without and with TLS, and amqtt."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from controller.local.embedded import EmbeddedBroker, find_mosquitto
from headgate.transport.broker_tls import BrokerTls
from tests.support.servers.tls_broker import TlsBroker

BrokerKind = Literal["mosquitto", "mosquitto-tls", "amqtt"]
BROKERS = [
    pytest.param("fake", marks=pytest.mark.looptime),
    pytest.param("mosquitto", marks=pytest.mark.contract),
    pytest.param("mosquitto-tls", marks=pytest.mark.contract),
    pytest.param("amqtt", marks=pytest.mark.contract),
]


@asynccontextmanager
async def real_broker(folder: Path, kind: BrokerKind = "mosquitto") -> AsyncIterator[EmbeddedBroker]:
    """Run a broker of one kind; skip the test if it is not installed."""
    if kind != "amqtt" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed; CI installs it, and amqtt runs everywhere")
    async with TlsBroker(folder) if kind == "mosquitto-tls" else EmbeddedBroker(folder, kind=kind) as broker:
        yield broker


def tls_of(broker: EmbeddedBroker) -> BrokerTls | None:
    """Return how to encrypt connections to ``broker``; None: not at all."""
    return broker.tls if isinstance(broker, TlsBroker) else None
