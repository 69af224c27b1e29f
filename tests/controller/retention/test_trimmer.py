"""How a leader deletes old chunks, looks whether the others exist, and what the next leader does."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from controller.chunk_writer.group_commit import GroupCommit, TermEndedError
from controller.retention.trimmer import Trimmer
from controller.settings.sections import IngestSettings
from headgate.ledger.compacted import create_manifest
from headgate.ledger.objects import snapshot_path
from headgate.model import entries as e
from metrics import events
from shard.state.shard_state import ShardState
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.recording_observer import RecordingObserver
from tests.support.samples.manifests import compacted_object, manifest
from tests.support.whole_state import everything

HOUR = 3_600_000


class TrimmingLeader:
    """A trimmer on a ledger of 12 chunks that is compacted to chunk 9, with snapshots at 11 and 12."""

    def __init__(self, kept: LedgerInMemory, state: ShardState) -> None:
        self.kept = kept
        self.observer = RecordingObserver()
        self.now_ms = 10 * HOUR
        self.context = SimpleNamespace(
            trace_commits=None,
            ledger=kept.ledger,
            ingest=IngestSettings(write_timeout_seconds=5, unreachable_seconds=5),
            observer=self.observer,
            now_ms=lambda: self.now_ms,
        )
        self.commit = GroupCommit(
            self.context,
            state,
            yields_to_contender=lambda: False,
            on_durable=lambda *_: None,
            on_records=lambda *_: None,
        )
        self.state = state
        self.trimmer = self.new_trimmer(delay_seconds=3600)

    def new_trimmer(self, delay_seconds: float | None) -> Trimmer:
        self.context.trim_delay_seconds = delay_seconds
        return Trimmer(self.context, self.state, self.commit)

    async def trim_once(self) -> None:
        """Run a round, make its decision durable, and run another round."""
        running = asyncio.create_task(self.commit.run())
        await self.trimmer.trim_once()
        await self.commit.flush()
        await self.trimmer.trim_once()
        running.cancel()


async def compacted_ledger(written_at_ms: int = 0) -> tuple[LedgerInMemory, TrimmingLeader]:
    kept = LedgerInMemory(11)
    await kept.snapshot()
    kept.grow()
    await kept.snapshot()
    item, facts = compacted_object(1, 0, "x", size_bytes=70), "compacted/shard=0000/a/facts.parquet"
    await create_manifest(kept.store, manifest(1, 9, item, written_at_ms=written_at_ms, facts=facts))
    kept.store.objects[facts] = b""
    state, _ = await kept.restored()
    return kept, TrimmingLeader(kept, state)


async def test_chunks_are_deleted_once_the_trim_point_is_durable() -> None:
    kept, leader = await compacted_ledger()
    kept.store.objects[snapshot_path(0, 10)] = b"damaged, and two are intact"
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
    assert {"chunk": 7, "snapshot": 3, "manifest": 1, "compacted": 1} == counted
    restored, _ = await kept.restored()
    assert 9 == restored.trimmed_below


@pytest.mark.parametrize("set_ms", [1000 * HOUR, -1000 * HOUR], ids=["forward", "back"])
@pytest.mark.parametrize("is_of_spark", [False, True])
async def test_a_clock_that_is_set_neither_deletes_early_nor_keeps_chunks_permanently(set_ms, is_of_spark) -> None:
    kept, leader = await compacted_ledger(set_ms if is_of_spark else 0)
    leader.now_ms += 0 if is_of_spark else set_ms
    leader.trimmer = leader.new_trimmer(delay_seconds=4 * 3600)
    await leader.trim_once()
    assert list(range(1, 13)) == await kept.ledger.numbers()
    await asyncio.sleep(4 * 3600)
    await leader.trim_once()
    assert [1, 6, 9] == (await kept.ledger.numbers())[:3]


async def test_a_shard_is_listed_ever_more_seldom_until_it_is_written_or_compacted() -> None:
    kept, leader = await compacted_ledger()
    leader.context.trim_interval_seconds = 30
    trimming = asyncio.create_task(leader.new_trimmer(delay_seconds=3600).run())
    writing = asyncio.create_task(leader.commit.run())
    await asyncio.sleep(120)
    assert 9 == leader.state.trimmed_below
    await asyncio.sleep(3600)
    kept.store.calls["names"] = 0
    await asyncio.sleep(3600)
    assert kept.store.calls["names"] <= 2 * 7, "of snapshots and manifests"
    listings = []
    for chunks in (1, 2):
        for _ in range(chunks):
            leader.commit.barrier()
            await leader.commit.flush()
        kept.store.calls["names"] = 0
        await asyncio.sleep(1200)
        listings.append(kept.store.calls["names"])
    trimming.cancel()
    writing.cancel()

    assert listings[0] <= 2 * 3, "a leader without requests writes a chunk every half an hour"
    assert listings[1] >= 2 * 5


@pytest.mark.parametrize(
    ("folder", "lost", "reported"),
    [
        ("compacted/", True, [events.TrimFailed(shard=0)] * 2),
        ("manifests/", False, [events.TrimFailed(shard=0)] * 2),
        ("snapshots/", False, [events.SnapshotRejected(shard=0)]),
        (snapshot_path(0, 12), False, [events.SnapshotRejected(shard=0)]),
        ("manifests/", None, [events.TrimFailed(shard=0)]),
    ],
)
async def test_nothing_is_deleted_while_what_replaces_it_is_lost_or_damaged(folder, lost, reported) -> None:
    """``lost`` None: between two reads of one round."""
    kept, leader = await compacted_ledger()
    path = next(path for path in kept.store.objects if path.startswith(folder))
    if lost is None:
        kept.store.paths = AsyncMock(side_effect=lambda _: kept.store.objects.pop(path, None) and [])
    else:
        data = kept.store.objects.pop(path)
        kept.store.objects |= {} if lost else {path: data[:-9]}
    await leader.trim_once()

    assert list(range(1, 13)) == await kept.ledger.numbers()
    assert reported == leader.observer.of(type(reported[0]))


async def test_the_next_leader_finishes_a_trim() -> None:
    kept, leader = await compacted_ledger()
    kept.store.fail_next("unavailable", "delete")
    await leader.trim_once()
    assert (1, 13) == (len(leader.observer.of(events.TrimFailed)), len(await kept.ledger.numbers()))
    state, _ = await kept.restored()
    before = everything(state)
    await TrimmingLeader(kept, state).trimmer.trim_once()

    assert [1, 6, 9, 10, 11, 12, 13] == await kept.ledger.numbers()
    assert before == everything(state), "no new entry is needed"


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_term_ends_in_its_first_round_if_an_old_chunk_is_missing(deletes: bool) -> None:
    kept, leader = await compacted_ledger()
    kept.lose(5)
    trimmer = leader.trimmer if deletes else leader.new_trimmer(delay_seconds=None)

    with pytest.raises(TermEndedError, match="chunk 5 is missing"):
        await trimmer.trim_once()


@pytest.mark.parametrize(
    ("writes", "problem"),
    [(False, "chunk 13 of this term is missing: the ledger was put back"), (True, "chunk 13 is missing")],
)
async def test_a_term_ends_and_deletes_nothing_of_an_older_ledger_that_was_put_back_under_it(writes, problem) -> None:
    """What replaces the chunks in the lost ledger is missing there."""
    kept, leader = await compacted_ledger()
    older = {path: data for path, data in kept.store.objects.items() if path.startswith("chunks/")}
    running = asyncio.create_task(leader.commit.run())
    await leader.trimmer.trim_once()
    await leader.commit.flush()
    kept.store.objects.clear()
    kept.store.objects.update(older)
    if writes:
        leader.commit.barrier()
        await leader.commit.flush()
    running.cancel()

    with pytest.raises(TermEndedError, match=problem):
        await leader.trimmer.trim_once()
    assert list(range(1, 13)) == (await kept.ledger.numbers())[:12]
