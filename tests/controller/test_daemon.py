"""What the daemon does itself before a reign begins; as a whole it is tested as a process (tests/system)."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from controller import daemon as daemon_module
from controller.daemon import Daemon
from controller.settings.load import IngestSettings, LedgerSettings, Settings
from controller.state.shard_state import ShardState
from drain.checker.checker import SparkDrainChecker
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import LocalStore
from tests.support.broker import FakeBroker


def test_what_was_restored_is_frozen_before_a_reign_is_built_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the collector looks through all of it again and again while clients wait (measured: 0.3 s each time)."""
    ledger = LedgerSettings(url=tmp_path.as_uri())
    daemon: Any = Daemon(Settings(ledger=ledger))
    built: list[int] = []

    def build(**_: Any) -> object:
        built.append(gc.get_freeze_count())
        return object()

    monkeypatch.setattr(daemon_module, "ShardLeader", build)
    controller: Any = daemon._controller(Ledger(LocalStore(tmp_path), 0), object(), object(), object())
    before = gc.get_freeze_count()
    try:
        controller._new_leader(ShardState(0), lambda: False)
        (frozen,) = built
    finally:
        gc.unfreeze()

    assert frozen > before + 1000, "everything that lives in this process, so the state as well"


async def test_devices_are_switched_by_the_settings_at_the_beginning_of_a_reign_and_under_it(tmp_path: Path) -> None:
    """A reign that begins after a reload takes what was reloaded."""
    on = Settings(ledger=LedgerSettings(url=tmp_path.as_uri()))
    off = on.replace(ingest=IngestSettings(mqtt_devices=False))
    daemon: Any = Daemon(on)
    transport = FakeBroker().transport("d")
    controller: Any = daemon._controller(Ledger(LocalStore(tmp_path), 0), object(), transport, object())
    daemon._controllers = [controller]
    switched: list[bool] = []
    try:
        for read in (off, on, off):
            controller.leader = controller._new_leader(ShardState(0), lambda: False)
            switched.append(controller.leader.devices.subscriptions._enabled)
            daemon.reload(read)
            switched.append(controller.leader.devices.subscriptions._enabled)
    finally:
        gc.unfreeze()

    assert [True, False, False, True, True, False] == switched


async def test_a_process_that_becomes_ready_is_connected_to_at_once(tmp_path: Path) -> None:
    """Or the children that wait for it wait for the checker's next attempt too, up to half a minute."""
    daemon: Any = Daemon(Settings(ledger=LedgerSettings(url=tmp_path.as_uri())))
    daemon._checker = SparkDrainChecker(f"unix:{tmp_path / 'nobody'}")

    daemon._on_drain_state("degraded", "the process ended")
    assert not daemon._checker._process_ready.is_set()
    daemon._on_drain_state("ready", "it answers")

    assert daemon._checker._process_ready.is_set()
