"""When a round of snapshots begins, and that its process is started, watched and ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from controller.snapshots import scheduler as snapshot_keeper
from controller.snapshots.format import decode_snapshot
from controller.snapshots.job import main
from controller.snapshots.restore import apply_new_chunks
from controller.snapshots.scheduler import SnapshotScheduler, due_shards
from controller.state.shard_state import ShardState
from headgate.ledger.ledger import Ledger, snapshot_path
from headgate.storage.object_store import LocalStore
from metrics import events
from tests.support.ledgers import RandomLedger
from tests.support.recording_observer import RecordingObserver
from tests.support.waiting import until
from tests.support.whole_state import everything


def test_a_shard_is_due_once_its_head_is_far_enough_beyond_its_snapshot() -> None:
    assert [1, 3] == due_shards({0: 9, 1: 10, 2: 19, 3: 20}, {2: 10, 3: 10}, 10)


class Seen(RecordingObserver):
    """What the scheduler reports."""

    @property
    def snapshots(self) -> dict[int, int]:
        return {event.shard: event.chunk for event in self.of(events.SnapshotFound)}

    @property
    def failures(self) -> int:
        return len(self.of(events.SnapshotJobFailed))

    @property
    def overdue(self) -> list[float]:
        return [event.seconds for event in self.of(events.SnapshotOverdueMeasured)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_keeper, "CHECK_INTERVAL_SECONDS", 0.01)


async def test_the_real_job_writes_what_the_ledger_folds_to(tmp_path: Path) -> None:
    ledger = RandomLedger(tmp_path, 3)
    ledger.grow(40)
    store, seen = LocalStore(tmp_path), Seen()
    keeper = SnapshotScheduler(
        store=store, ledger_url=ledger.url, chunks=20, pause_seconds=0.01, heads=lambda: {0: 41}, observer=seen
    )
    running = asyncio.create_task(keeper.run())
    await until(lambda: seen.snapshots == {0: 41})
    running.cancel()

    restored = decode_snapshot(await store.read(snapshot_path(0, 41)), shard=0, chunk=41)
    folded = ShardState(0)
    assert 41 == await apply_new_chunks(Ledger(store, 0), folded)
    assert everything(folded) == everything(restored)


async def test_a_job_that_fails_or_cannot_be_started_is_told_and_tried_again(tmp_path: Path) -> None:
    for command in ([sys.executable, "-c", "raise SystemExit('error: no')"], [str(tmp_path / "missing")]):
        seen = Seen()
        keeper = SnapshotScheduler(
            store=LocalStore(tmp_path),
            ledger_url="",
            chunks=1,
            pause_seconds=0.01,
            heads=lambda: {0: 1},
            observer=seen,
            command=command,
        )
        running = asyncio.create_task(keeper.run())
        await until(lambda seen=seen: seen.failures >= 2)
        running.cancel()


async def test_it_tells_how_long_a_snapshot_has_been_due_until_there_is_one(tmp_path: Path) -> None:
    store, seen, heads = LocalStore(tmp_path), Seen(), {0: 7}
    keeper = SnapshotScheduler(
        store=store,
        ledger_url="",
        chunks=5,
        pause_seconds=0.01,
        heads=lambda: heads,
        observer=seen,
        command=[sys.executable, "-c", "raise SystemExit('error: no')"],
    )
    running = asyncio.create_task(keeper.run())
    await until(lambda: seen.failures >= 2, 30)
    assert seen.overdue[0] == 0 < seen.overdue[1]
    assert seen.overdue == sorted(seen.overdue)

    await store.create(snapshot_path(0, 6), b"by another daemon")
    await until(lambda: seen.overdue[-1] == 0, 30)
    heads[0] = 20
    await until(lambda: seen.overdue[-1] > 0, 30)
    del heads[0]  # another daemon leads
    await until(lambda: seen.overdue[-1] == 0, 30)
    running.cancel()


async def test_a_job_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_keeper, "JOB_TIMEOUT_SECONDS", 0.1)
    seen = Seen()
    keeper = SnapshotScheduler(
        store=LocalStore(tmp_path),
        ledger_url="",
        chunks=1,
        pause_seconds=60,
        heads=lambda: {0: 1},
        observer=seen,
        command=["sleep", "600"],
    )
    running = asyncio.create_task(keeper.run())
    await until(lambda: seen.failures == 1)
    running.cancel()

    assert "600" not in [word for child in psutil.Process().children() for word in child.cmdline()]


def test_one_shard_that_cannot_be_read_does_not_keep_the_others_from_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RandomLedger(tmp_path, 1, shard=0).grow(3)
    RandomLedger(tmp_path, 1, shard=1).grow(3)
    next((tmp_path / "ledger" / "shard=0000").iterdir()).write_bytes(b"")

    assert 1 == main(["--ledger", tmp_path.as_uri(), "--shard", "0", "--shard", "1"])
    told = capsys.readouterr()
    assert "shard 1: snapshot of chunk 4" in told.out
    assert "error: shard 0: chunk" in told.err
    assert [4] == asyncio.run(Ledger(LocalStore(tmp_path), 1).snapshots())


def test_a_url_that_names_no_store_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["--ledger", "nowhere", "--shard", "0"])
    assert "error: ledger URL 'nowhere'" in capsys.readouterr().err
