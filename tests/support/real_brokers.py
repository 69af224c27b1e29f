"""The brokers that contract suites run against: the fake, mosquitto and amqtt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from controller.local.embedded import EmbeddedBroker, find_mosquitto

BROKERS = [
    pytest.param("fake", marks=pytest.mark.looptime),
    pytest.param("mosquitto", marks=pytest.mark.contract),
    pytest.param("amqtt", marks=pytest.mark.contract),
]


@asynccontextmanager
async def real_broker(folder: Path, kind: Literal["mosquitto", "amqtt"] = "mosquitto") -> AsyncIterator[EmbeddedBroker]:
    """Run a broker of one kind; skip the test if it is not installed."""
    if kind == "mosquitto" and find_mosquitto() is None:
        pytest.skip("mosquitto is not installed; CI installs it, and amqtt runs everywhere")
    async with EmbeddedBroker(folder, kind=kind) as broker:
        yield broker
