"""The daemon's connection to the Spark process: what it reports, and when leaders check again."""

from __future__ import annotations

import random
from pathlib import Path

from prometheus_client import CollectorRegistry

from controller.drain_connection import DrainConnection
from controller.settings.load import LedgerSettings, Settings
from metrics.instruments import Instruments


async def test_leaders_check_again_once_when_the_drain_service_becomes_ready(tmp_path: Path) -> None:
    """Otherwise blocked segments wait for the end of a pause, up to a quarter of an hour."""
    rechecks: list[None] = []
    settings = Settings(ledger=LedgerSettings(url=tmp_path.as_uri()))
    drain = DrainConnection(settings, Instruments(CollectorRegistry()), random.Random(1), lambda: rechecks.append(None))

    drain._on_state("degraded", "the process ended")
    assert [] == rechecks
    assert "the process ended" == drain.problem()
    for _ in range(2):
        drain._on_state("ready", "it responds")

    assert [None] == rechecks
    assert drain.problem() is None
