"""When the snapshot job starts, and how its process is supervised."""

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from controller.snapshots.format import decode_file
from controller.snapshots.job import main
from controller.snapshots.scheduler import SnapshotScheduler, due_shards
from headgate.ledger.identity import name_level
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import snapshot_path
from headgate.storage.object_store import LocalStore
from metrics import events
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.ledgers import RandomLedger
from tests.support.waiting import until

pytestmark = pytest.mark.real_time


def test_a_shard_is_due_when_its_head_is_far_enough_after_its_snapshot() -> None:
    assert [1, 3] == due_shards({0: 9, 1: 10, 2: 19, 3: 20}, {2: 10, 3: 10}, 10)


class Reports(RecordingObserver):
    @property
    def snapshots(self) -> dict[int, int]:
        return {event.shard: event.chunk for event in self.of(events.SnapshotFound)}

    @property
    def failures(self) -> int:
        return len(self.of(events.SnapshotJobFailed))


def scheduler(
    store: LocalStore,
    reports: Reports,
    heads: dict[int, int],
    *,
    ledger_url: str = "",
    chunks: int = 1,
    command: Any = (),
) -> SnapshotScheduler:
    found = SnapshotScheduler(
        store=store, ledger_url=ledger_url, chunks=chunks, pause_seconds=0.01, heads=lambda: heads, observer=reports
    )
    if command:
        found._command = lambda _: command
    return found


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.snapshots.scheduler.CHECK_INTERVAL_SECONDS", 0.01)


async def test_a_job_that_fails_or_cannot_be_started_is_reported_and_repeated(tmp_path: Path) -> None:
    for command in ([sys.executable, "-c", "raise SystemExit('headgate: no')"], [str(tmp_path / "missing")]):
        reports = Reports()
        running = asyncio.create_task(scheduler(LocalStore(tmp_path), reports, {0: 1}, command=command).run())
        await until(lambda reports=reports: reports.failures >= 2)
        running.cancel()


async def test_snapshots_of_a_lost_ledger_do_not_count_once_an_older_one_was_put_back(tmp_path: Path) -> None:
    ledger, heads, reports = RandomLedger(tmp_path / "ledger", 1), {0: 5}, Reports()
    ledger.grow(4)
    older = shutil.copytree(tmp_path / "ledger", tmp_path / "older")
    ledger.grow(20)
    heads[0] = 25
    found = scheduler(
        LocalStore(tmp_path / "ledger"), reports, heads, ledger_url=(tmp_path / "ledger").as_uri(), chunks=4
    )
    assert ["--shard", "0", "--head", "25"] == list(found._command([0]))[-4:], "the job lists no folder then"
    running = asyncio.create_task(found.run())
    await until(lambda: reports.snapshots.get(0) == 25, 60)
    shutil.rmtree(tmp_path / "ledger")
    shutil.copytree(older, tmp_path / "ledger")
    heads[0] = 5
    await until(lambda: reports.snapshots[0] == 5, 60)
    running.cancel()


async def test_a_job_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.snapshots.scheduler.JOB_TIMEOUT_SECONDS", 0.1)
    reports = Reports()
    hanging = scheduler(LocalStore(tmp_path), reports, {0: 1}, command=["sleep", "600"])
    running = asyncio.create_task(hanging.run())
    await until(lambda: reports.failures >= 2)
    running.cancel()

    assert "600" not in [word for child in psutil.Process().children() for word in child.cmdline()]


def test_a_shard_that_cannot_be_read_does_not_prevent_snapshots_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RandomLedger(tmp_path, 1, shard=0).grow(3)
    RandomLedger(tmp_path, 1, shard=1).grow(3)
    next((tmp_path / "chunks" / "shard=0000").iterdir()).write_bytes(b"")
    asyncio.run(name_level(LocalStore(tmp_path), 1))

    heads = ["--head", "4", "--head", "4"]
    assert 1 == main(["--ledger", tmp_path.as_uri(), "--shard", "0", "--shard", "1", *heads])
    output = capsys.readouterr()
    assert "shard 1: snapshot of chunk 4" in output.out
    assert "headgate: shard 0: chunk" in output.err
    assert [4] == asyncio.run(Ledger(LocalStore(tmp_path), 1).snapshots())
    snapshot = decode_file((tmp_path / snapshot_path(1, 4)).read_bytes(), shard=1, chunk=4)
    assert "_Core.shard_counts" not in snapshot.header.fields, "the ledger's level does not allow it"


def test_an_invalid_ledger_url_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["--ledger", "nowhere", "--shard", "0"])
    assert "headgate: ledger URL 'nowhere'" in capsys.readouterr().err
