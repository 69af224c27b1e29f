"""What the daemon does itself before a reign begins; as a whole it is tested as a process (tests/system)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from controller import daemon as daemon_module
from controller.daemon import Daemon
from controller.settings import IngestSettings, LedgerSettings, Settings
from controller.state import ShardState
from drain.checker import SparkDrainChecker
from headgate.ledger import Ledger
from headgate.store import LocalStore


@pytest.mark.parametrize("devices", [True, False])
def test_what_was_restored_is_frozen_before_a_reign_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: bool
) -> None:
    """Or the collector looks through all of it again and again while clients wait (measured: 0.3 s each time)."""
    ledger = LedgerSettings(url=tmp_path.as_uri())
    daemon: Any = Daemon(Settings(ledger=ledger, ingest=IngestSettings(devices=devices)))
    built: list[tuple[int, bool]] = []

    def build(**given: Any) -> object:
        built.append((gc.get_freeze_count(), given["open_session"] is not None))
        return object()

    monkeypatch.setattr(daemon_module, "ShardReign", build)
    controller: Any = daemon._controller(Ledger(LocalStore(tmp_path), 0), object(), object(), object())
    before = gc.get_freeze_count()
    try:
        controller._new_reign(ShardState(0), lambda: False)
        ((frozen, opens),) = built
    finally:
        gc.unfreeze()

    assert frozen > before + 1000, "everything that lives in this process, so the state as well"
    assert opens is devices


async def test_a_process_that_becomes_ready_is_connected_to_at_once(tmp_path: Path) -> None:
    """Or the children that wait for it wait for the checker's next attempt too, up to half a minute."""
    daemon: Any = Daemon(Settings(ledger=LedgerSettings(url=tmp_path.as_uri())))
    daemon._checker = SparkDrainChecker(f"unix:{tmp_path / 'nobody'}")

    daemon._on_drain_state("degraded", "the process ended")
    assert not daemon._checker._told_well.is_set()
    daemon._on_drain_state("ready", "it answers")

    assert daemon._checker._told_well.is_set()
