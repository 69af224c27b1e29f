"""Which chunks are deleted, when, and by which leader."""

from __future__ import annotations

import asyncio

import pytest

from controller.commit import GroupCommit
from controller.retention.trim_policy import deletable, trim_point
from controller.retention.trimmer import Trimmer
from controller.snapshots.job import take_snapshot
from controller.snapshots.restore import catch_up
from controller.state.shard_state import ShardState
from coordinator.steps import complete_now
from headgate.ledger.chunk_ranges import ChunkRange
from headgate.ledger.compacted import CompactedObject, Manifest, create_manifest
from headgate.ledger.paths import snapshot_path
from headgate.model import entries as e
from metrics import events
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.whole_state import everything

HOUR = 3_600_000


def point(snapshots: list[int], *manifests: tuple[int, int, int]) -> int:
    """Return the trim point at hour 10 with a delay of 6 h; manifests are (first, last, hour written)."""
    visible = [(ChunkRange(first, last), hour * HOUR) for first, last, hour in manifests]
    return trim_point(snapshots, visible, now_ms=10 * HOUR, delay_ms=6 * HOUR)


@pytest.mark.parametrize(
    ("snapshots", "manifests", "expected"),
    [
        ([30, 40], [(1, 20, 0)], 20),
        ([15, 40], [(1, 20, 0)], 15),
        ([], [(1, 20, 0)], 1),
        ([30], [], 1),
        ([30], [(1, 20, 5)], 1),
        ([30], [(1, 10, 4), (11, 20, 5)], 10),
        ([30], [(11, 20, 0)], 1),
        ([60], [(1, 10, 0), (11, 20, 1), (1, 20, 9)], 20),
    ],
    ids=[
        "the last compacted chunk is kept",
        "chunks from the oldest snapshot on are kept",
        "no snapshot",
        "nothing is compacted",
        "a manifest younger than the delay",
        "one manifest younger than the delay",
        "no manifest covers the first chunks",
        "replaced manifests count",
    ],
)
def test_the_trim_point_keeps_what_restore_and_readers_need(
    snapshots: list[int], manifests: list[tuple[int, int, int]], expected: int
) -> None:
    assert expected == point(snapshots, *manifests)


def test_the_first_chunk_of_every_term_is_kept() -> None:
    assert [2, 3, 5] == deletable([5, 4, 3, 2, 1, 6], below=6, term_start_chunks=[1, 4])


class TrimmingLeader:
    """A trimmer on a ledger of 12 chunks that is compacted to chunk 9, with a snapshot at 12."""

    def __init__(self, kept: LedgerInMemory, state: ShardState) -> None:
        self.kept = kept
        self.observer = RecordingObserver()
        self.now_ms = 10 * HOUR
        self.commit = GroupCommit(
            kept.ledger,
            state,
            now_ms=lambda: self.now_ms,
            observer=self.observer,
            write_timeout_seconds=5,
            unreachable_seconds=5,
            yields_to_contender=lambda: False,
            on_durable=lambda _: None,
            on_records=lambda *_: None,
        )
        self.trimmer = Trimmer(
            kept.ledger,
            state,
            self.commit,
            delay_seconds=3600,
            observer=self.observer,
            now_ms=lambda: self.now_ms,
        )

    async def trim_once(self) -> None:
        """Run a round, make its decision durable, and run another round."""
        running = asyncio.create_task(self.commit.run())
        await self.trimmer.trim_once()
        await self.commit.flush()
        await self.trimmer.trim_once()
        running.cancel()


async def compacted_ledger() -> tuple[LedgerInMemory, TrimmingLeader]:
    kept = LedgerInMemory(12)
    await kept.snapshot()
    item = CompactedObject(
        path="x",
        topic_id=1,
        segment=0,
        first_offset=0,
        end_offset=1,
        size_bytes=70,
        first_at_ms=0,
        last_at_ms=0,
        checksum=0,
    )
    await create_manifest(
        kept.store,
        Manifest(
            shard=0,
            first=1,
            last=9,
            level=0,
            written_at_ms=0,
            last_at_ms=0,
            facts="f",
            facts_checksum=0,
            objects=[item],
        ),
    )
    state, _ = await kept.restored()
    return kept, TrimmingLeader(kept, state)


async def test_chunks_are_deleted_once_the_trim_point_is_durable() -> None:
    kept, leader = await compacted_ledger()
    await leader.trimmer.trim_once()
    assert 12 == len(await kept.ledger.numbers()), "the trim point is not durable yet"
    await leader.trim_once()

    assert [1, 6, 9, 10, 11, 12, 13] == await kept.ledger.numbers()
    assert (await kept.ledger.read(13)).entries == (e.LedgerTrimmed(below=9),)
    assert [events.ChunksDeleted(shard=0, count=1)] * 6 == leader.observer.of(events.ChunksDeleted)
    assert [] == leader.observer.of(events.TrimFailed)
    assert (
        events.CompactionAdvanced(shard=0, chunk=9, size_bytes=70) == leader.observer.of(events.CompactionAdvanced)[-1]
    )
    counted = {event.kind: event.count for event in leader.observer.of(events.ObjectsCounted)}
    assert {"chunk": 7, "snapshot": 1, "manifest": 1, "compacted": 1} == counted
    restored, _ = await kept.restored()
    assert 9 == restored.trimmed_below


async def test_the_next_leader_finishes_a_trim() -> None:
    kept, leader = await compacted_ledger()
    kept.store.fail_next("unavailable", "delete")
    await leader.trim_once()
    assert (1, 13) == (len(leader.observer.of(events.TrimFailed)), len(await kept.ledger.numbers()))
    state, _ = await catch_up(kept.ledger, ShardState(0), kept.on_unusable, complete_now)
    before = everything(state)
    after = TrimmingLeader(kept, state)
    await after.trimmer.trim_once()

    assert [1, 6, 9, 10, 11, 12, 13] == await kept.ledger.numbers()
    assert before == everything(state), "no new entry is needed"


async def test_a_damaged_snapshot_prevents_trimming() -> None:
    kept, leader = await compacted_ledger()
    path = snapshot_path(0, 12)
    kept.store.objects[path] = kept.store.objects[path][:-9]
    await leader.trim_once()

    assert 12 == len(await kept.ledger.numbers())
    assert [events.SnapshotRejected(shard=0)] == leader.observer.of(events.SnapshotRejected)


async def test_a_damaged_manifest_prevents_trimming() -> None:
    kept, leader = await compacted_ledger()
    (path,) = (path for path in kept.store.objects if path.startswith("manifests/"))
    kept.store.objects[path] = b"{"
    await leader.trim_once()

    assert (12, 2) == (len(await kept.ledger.numbers()), len(leader.observer.of(events.TrimFailed)))


async def test_a_trimmed_ledger_can_be_snapshotted() -> None:
    kept, leader = await compacted_ledger()
    await leader.trim_once()

    assert 13 == await take_snapshot(kept.ledger, least_chunks=1, now_ms=0)
