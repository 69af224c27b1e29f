"""The daemon's connection to the Spark process: what it reports, and when leaders check again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from controller.drain_connection import DrainConnection
from controller.settings.load import LedgerSettings, Settings
from drain.checker.checker import SparkDrainChecker
from metrics.instruments import Instruments


async def test_a_drain_service_that_becomes_ready_is_connected_to_at_once(tmp_path: Path) -> None:
    """Otherwise blocked segments wait for the next attempt too, up to half a minute."""
    rechecks: list[None] = []
    settings = Settings(ledger=LedgerSettings(url=tmp_path.as_uri()))
    drain: Any = DrainConnection(
        settings, Instruments(CollectorRegistry()), random.Random(1), lambda: rechecks.append(None)
    )
    drain._checker = SparkDrainChecker(f"unix:{tmp_path / 'missing'}")

    drain._on_state("degraded", "the process ended")
    assert not drain._checker._process_ready.is_set()
    assert [] == rechecks
    assert "the process ended" == drain.problem()
    for _ in range(2):
        drain._on_state("ready", "it responds")

    assert drain._checker._process_ready.is_set()
    assert [None] == rechecks
    assert drain.problem() is None
