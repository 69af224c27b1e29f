"""The daemon's own steps before a term. tests/system runs it as a process."""

from __future__ import annotations

import asyncio
import gc
import struct
from pathlib import Path
from typing import Any

import pytest
import structlog

from controller.access.rules import Act, Action
from controller.daemon import Daemon
from controller.leadership.election import ElectionClientError
from controller.settings.load import (
    AccessSettings,
    DrainSettings,
    HttpSettings,
    IngestSettings,
    LedgerSettings,
    Settings,
    ZooKeeperSettings,
)
from controller.state.shard_state import ShardState
from headgate.errors import ConfigError
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import LocalStore
from tests.support.broker import FakeBroker


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(ledger=LedgerSettings(url=tmp_path.as_uri()))


def test_the_restored_state_is_frozen_before_the_leader_is_created(tmp_path: Path, settings: Settings) -> None:
    """Otherwise the garbage collector traverses it repeatedly (0.3 s each time, measured)."""
    freeze_counts: list[int] = []

    def leader_type(*_: Any) -> Any:
        freeze_counts.append(gc.get_freeze_count())

    daemon: Any = Daemon(settings, leader_type)
    controller: Any = daemon._controller(Ledger(LocalStore(tmp_path), 0), object(), object(), object())
    before = gc.get_freeze_count()
    try:
        controller._new_leader(ShardState(0), lambda: False)
        (frozen,) = freeze_counts
    finally:
        gc.unfreeze()

    assert frozen > before + 1000, "all live objects are frozen, the state included"


def test_a_jump_of_the_clock_is_reported_and_not_followed(settings: Settings) -> None:
    clocks = [(10**12, 0), (10**12 + 1000, 1000), (2 * 10**12, 2000), (10**12 + 3000, 3000)]
    daemon: Any = Daemon(settings, read_clocks=iter(clocks).__next__)

    with structlog.testing.capture_logs() as logged:
        assert [10**12 + 1000, 10**12 + 2000, 10**12 + 3000] == [daemon._now_ms() for _ in range(3)]
    assert [("clock.stepped", 10**9 - 2), ("clock.stepped", 0)] == [
        (line["event"], line["held_seconds"]) for line in logged
    ]


async def test_the_end_of_the_zookeeper_client_ends_the_daemon(settings: Settings) -> None:
    """A server whose reply is too short for its header ends kazoo's connection thread."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        accepted = struct.pack("!iiqi16s?", 0, 4000, 1, 16, b"", False)
        for body in (accepted, b"x"):
            writer.write(len(body).to_bytes(4) + body)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        daemon = Daemon(
            settings.replace(
                zookeeper=ZooKeeperSettings(hosts=f"127.0.0.1:{port}"),
                http=HttpSettings(port=0),
                drain=DrainSettings(spawn=False),
            )
        )
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(60):
                await daemon.run(asyncio.Event())

    assert caught.group_contains(ElectionClientError, match="the ZooKeeper client has ended")


async def test_a_reload_enables_and_disables_devices_now_and_for_later_terms(
    tmp_path: Path, settings: Settings
) -> None:
    """A term that starts after a reload uses the new settings."""
    off = settings.replace(ingest=IngestSettings(mqtt_devices=False))
    daemon: Any = Daemon(settings)
    transport = FakeBroker().transport("d")
    controller: Any = daemon._controller(Ledger(LocalStore(tmp_path), 0), object(), transport, object())
    daemon._controllers = [controller]
    enabled: list[bool] = []
    try:
        for read in (off, settings, off):
            controller.leader = controller._new_leader(ShardState(0), lambda: False)
            enabled.append(controller.leader.devices.subscriptions._enabled)
            daemon.reload(read)
            enabled.append(controller.leader.devices.subscriptions._enabled)
    finally:
        gc.unfreeze()

    assert [True, False, False, True, True, False] == enabled


def test_sighup_puts_other_access_rules_into_force_or_changes_nothing(tmp_path: Path, settings: Settings) -> None:
    daemon: Any = Daemon(settings.replace(access=AccessSettings(open=True)))
    access = tmp_path / "access.toml"
    access.write_text('[[users.alice]]\nrole = "administrator"\n')
    with_file = daemon.settings.replace(access=AccessSettings(file=str(access)))
    deletion = Act(Action.ADMINISTER, "orders")
    assert daemon._access.rules.judge("mallory", deletion).allowed

    daemon.reload(with_file)
    assert [True, False] == [daemon._access.rules.judge(user, deletion).allowed for user in ("alice", "mallory")]
    assert with_file.access == daemon.settings.access

    access.write_text('[[users.mallory]]\nrole = "boss"\n')
    with pytest.raises(ConfigError, match="boss"):
        daemon.reload(with_file)
    assert not daemon._access.rules.judge("mallory", deletion).allowed
