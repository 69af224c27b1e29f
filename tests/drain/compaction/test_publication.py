"""Which run may publish its range, and what is deleted, whatever process is suspended for how long."""

import os
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pyarrow as pa
import pytest
from msgspec.structs import replace

from controller.backup.check import check_shard
from controller.chunk_writer.builder import ChunkBuilder
from drain.backlog.aggregates import NO_ID, SCHEMA
from drain.backlog.results import ForeignResultError, Result, publish_result
from drain.compaction.job import CompactionJob, CompactionSettings, _CompactionWork
from drain.compaction.policy import ORPHAN_MAX_AGE_SECONDS, PlannedCompaction, max_run_age_seconds, refusal, replaced
from drain.compaction.published_ranges import PublishedRanges, run_folder
from drain.spark.engines import RunError
from headgate.errors import LedgerError
from headgate.ledger.compacted import Manifest, create_manifest, manifest_path, manifest_ranges
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import FANOUT, IDENTITY_PATH, ChunkRange, chunk_path, compacted_through, ranges_to_read
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.samples.manifests import compacted_object
from trials.compaction import compacted_objects

DELAY_SECONDS = 12 * 3600.0
LIMIT_SECONDS = ORPHAN_MAX_AGE_SECONDS / 2


class Processes:
    """Compactions of one shard, without Spark, that share a store and a clock."""

    def __init__(self, chunks: int = 12) -> None:
        self.ledger = LedgerInMemory(chunks)
        self.store = self.ledger.store
        self.now_ms = 1_000_000_000_000
        self.published = PublishedRanges(self.store, DELAY_SECONDS, now_ms=lambda: self.now_ms)

    def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    async def sweep_later(self) -> None:
        self.sleep(DELAY_SECONDS)
        await self.published.sweep(0)

    async def upload(self, first: int, last: int, run: str) -> tuple[Manifest, int]:
        """Do what a run does before it publishes; return the arguments for that."""
        return await compacted_objects(self.ledger.ledger, first, last, written_at_ms=self.now_ms, run=run), self.now_ms

    async def compact(self, first: int, last: int, run: str = "b") -> Manifest:
        return await self.published.publish(*await self.upload(first, last, run))

    async def ranges(self) -> list[ChunkRange]:
        return await manifest_ranges(self.store, 0)

    def job(self) -> CompactionJob:
        """Return what runs, up to the moment at which Spark is needed: that raises RunError."""
        job = CompactionJob("file:///none", Mock(), CompactionSettings(chunks=4), now_ms=lambda: self.now_ms)
        job.store, job._written = self.store, AsyncMock(side_effect=RunError("it is written"))
        return job

    async def assert_intact(self) -> None:
        assert [] == (await check_shard(self.store, 0, 1, lambda _done, _total: None)).problems


@pytest.mark.parametrize("swept", [True, False], ids=["its objects are swept", "its objects still exist"])
async def test_a_run_that_was_suspended_between_upload_and_manifest_changes_nothing_when_it_continues(swept: bool):
    """Its manifest 1-6 made readers skip 5-8, and the same run deleted 1-4 as a narrower range."""
    world = Processes()
    late = await world.upload(1, 6, "a")
    await world.compact(1, 4)
    await world.compact(5, 8)
    world.sleep(DELAY_SECONDS if swept else LIMIT_SECONDS / 2)
    await world.ledger.snapshot()
    world.ledger.trim(8)
    await world.published.sweep(0)
    await world.assert_intact()
    with pytest.raises(RunError, match=r"^chunks \d+ to \d+ are not compacted: "):
        await world.published.publish(*late)
    await world.sweep_later()
    assert [ChunkRange(1, 4), ChunkRange(5, 8)] == await world.ranges()
    await world.assert_intact()


@pytest.mark.parametrize(("chunks", "last"), [(7, 0), (8, 8), (12, 8)])
async def test_a_range_is_due_once_enough_chunks_follow_the_last_one(chunks: int, last: int) -> None:
    world = Processes(chunks)
    await world.compact(1, 4)
    assert last == await world.job().due_through(0)


@pytest.mark.parametrize(("now_ms", "last"), [(300_012, 12), (300_011, 8), (300_003, 0), (-300_000, 12), (-298_996, 0)])
@pytest.mark.parametrize("is_small", [True, False])
async def test_old_chunks_become_a_range_wide_if_small(now_ms, last, is_small, monkeypatch):
    """Ledger time waits until the clocks have caught up with it, maybe for years."""
    monkeypatch.setattr("drain.compaction.job.TASK_BYTES", 10**9 if is_small else 1)
    world = Processes(12)
    await publish_result(world.store, Result(0, 12, (), at_ms=12))
    world.now_ms, job = now_ms, world.job()
    with pytest.raises(RunError, match="it is written") if last else nullcontext():
        assert await job.compact_next(0) is None
    ranges = [call.args[0].planned.range for call in job._written.await_args_list]
    assert ranges == ([ChunkRange(1, last if is_small else 4)] if last else [])


async def test_a_wide_range_that_fails_is_followed_by_narrower_ones_up_to_its_end() -> None:
    """A damaged chunk, or the limit of a run's age, kept all of them from being compacted."""
    world = Processes(40)
    await publish_result(world.store, Result(0, 40, (), at_ms=40))
    job = world.job()
    for first in (1, 1, 1, 1, *range(5, 34, 4)):
        if first > 1:
            await world.compact(first - 4, first - 1)
        with pytest.raises(RunError):
            await job.compact_next(0)
    lasts = [call.args[0].planned.range.last for call in job._written.await_args_list]
    assert [32, 16, 8, 4, *range(8, 33, 4), 40] == lasts


async def test_a_merge_that_fails_is_repeated_after_new_chunks_are_compacted() -> None:
    world = Processes(4 * FANOUT + 4)
    await publish_result(world.store, Result(0, 4 * FANOUT + 4, (), at_ms=4 * FANOUT + 4))
    for first in range(1, 4 * FANOUT, 4):
        world.store.objects[(await world.compact(first, first + 3)).facts] = b"damaged"
    job = world.job()
    for error in (LedgerError, RunError):
        with pytest.raises(error):
            await job.compact_next(0)
    assert job._written.await_args.args[0].planned.range == ChunkRange(4 * FANOUT + 1, 4 * FANOUT + 4)


@pytest.mark.parametrize(("last", "at_ms", "term"), [(4, 13, 0), (4, 4, 9), (13, 13, 6)], ids=["time", "term", "none"])
async def test_nothing_is_compacted_by_the_count_of_a_history_that_is_gone(last: int, at_ms: int, term: int) -> None:
    """It does not know what exists in the ledger that was put back, whose records would be left out."""
    world = Processes(12)
    await publish_result(world.store, Result(0, last, (), at_ms, "", term))
    with pytest.raises(ForeignResultError, match="its last chunk is missing, or is another one now"):
        await world.job().compact_next(0)


@pytest.mark.real_time
async def test_objects_that_spark_wrote_are_counted_and_flushed_with_the_folders_that_lead_to_them(
    tmp_path: Path, monkeypatch
):
    path = "compacted/shard=0000/run/topic_id=1/segment=0/x.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    job, synced = CompactionJob(tmp_path.as_uri(), Mock(), CompactionSettings(), now_ms=lambda: 0), set()
    planned = PlannedCompaction(ChunkRange(1, 4), 0, ())
    work = _CompactionWork("", 0, planned, "compacted/shard=0000/run", (), None, frozenset({(1, 0)}))
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(Path(f"/proc/self/fd/{handle}").readlink()))
    for records in (1, 2):
        row = {"topic_id": 1, "segment": 0, "subscription_id": NO_ID, "kind": 0, "records": records}
        facts = pa.Table.from_pylist([row], SCHEMA)
        job.runner.run = AsyncMock(return_value=([compacted_object(1, 0, path)], facts))
        with nullcontext() if records == 1 else pytest.raises(RunError, match="has 2 records, but 1 were written"):
            await job._written(work, 0, 0)
    assert {tmp_path / path, *(tmp_path / path).parents[:6]} <= synced


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        (IDENTITY_PATH, identity_object("d" * 32), f"without an id, and {'d' * 32} is there now"),
        (chunk_path(0, 4), b"", "chunk 4 is missing or another one by now: an older ledger was put back"),
        (chunk_path(0, 4), ChunkBuilder().encode(shard=0, number=4, leader_epoch=1, at_ms=4), "chunk 4 is missing or"),
    ],
    ids=["another ledger", "an older one", "an older one that grew again"],
)
async def test_a_run_publishes_nothing_in_what_was_put_in_the_place_of_its_ledger(path: str, data: bytes, reason: str):
    world = Processes()
    late = await world.upload(1, 4, "a")
    world.store.objects.pop(path, None)
    world.store.objects |= {path: data} if data else {}
    with pytest.raises(RunError, match=reason):
        await world.published.publish(*late)
    assert [] == await world.ranges()


async def test_a_manifest_that_arrives_after_its_objects_were_swept_is_withdrawn() -> None:
    world = Processes()
    manifest, began_ms = await world.upload(1, 6, "a")
    create = world.store.create

    async def delayed(path: str, data: bytes) -> None:
        world.sleep(ORPHAN_MAX_AGE_SECONDS)
        await world.published.sweep(0)
        await create(path, data)

    world.store.create = delayed  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"was withdrawn: .* is missing"):
        await world.published.publish(manifest, began_ms)
    assert [] == await world.ranges()
    await world.assert_intact()


async def test_a_run_that_sleeps_after_its_publication_withdraws_nothing() -> None:
    """Others rely on the range by then: what it replaced is gone."""
    world = Processes()
    await world.compact(1, 4)
    manifest, began_ms = await world.upload(1, 8, "a")
    create = world.store.create

    async def slow(path: str, data: bytes) -> None:
        await create(path, data)
        await world.sweep_later()

    world.store.create = slow  # type: ignore[method-assign]
    await world.published.publish(manifest, began_ms)
    assert [ChunkRange(1, 8)] == await world.ranges()
    await world.assert_intact()


@pytest.mark.parametrize("damage", ["missing", "other bytes", "records missing that are not counted"])
async def test_a_replaced_range_is_kept_while_the_wider_one_is_not_intact(damage: str) -> None:
    world = Processes()
    await world.compact(1, 4)
    wider, began_ms = await world.upload(1, 8, "b")
    item = compacted_object(7, 0, f"{run_folder(wider)}/x.parquet")
    await world.store.create(item.path, b"")
    await world.published.publish(replace(wider, objects=[item]), began_ms)
    lost = item.path if "records" in damage else wider.facts
    del world.store.objects[lost]
    world.store.objects |= {lost: b"other"} if damage == "other bytes" else {}
    world.sleep(DELAY_SECONDS)
    with pytest.raises(LedgerError, match=lost):
        await world.published.sweep(0)
    assert [ChunkRange(1, 4), ChunkRange(1, 8)] == await world.ranges()


async def test_a_replaced_range_is_deleted_with_its_objects_after_the_delay() -> None:
    world = Processes()
    for first, last in ((1, 4), (5, 8), (1, 8)):
        await world.compact(first, last)
    world.sleep(DELAY_SECONDS - 1)
    await world.published.sweep(0)
    assert len(await world.ranges()) == 3
    world.sleep(1)

    await world.published.sweep(0)
    assert [ChunkRange(1, 8)] == await world.ranges()
    assert len(await world.store.folders("compacted/shard=0000")) == 1


async def test_a_range_that_crosses_the_others_is_deleted_and_hides_nothing() -> None:
    """A version without these rules could leave one."""
    world = Processes()
    await world.compact(1, 4)
    await create_manifest(world.store, (await world.upload(1, 6, "a"))[0])
    await world.compact(5, 8)
    assert [ChunkRange(1, 4), ChunkRange(5, 8)] == ranges_to_read(await world.ranges())
    await world.sweep_later()
    assert [ChunkRange(1, 4), ChunkRange(5, 8)] == await world.ranges()
    await world.assert_intact()


@pytest.mark.parametrize("manifest_is", ["not listed", "lost"])
async def test_objects_without_a_manifest_are_kept_while_nothing_else_has_their_records(manifest_is: str) -> None:
    world = Processes()
    manifest = await world.compact(1, 4)
    path, names = manifest_path(0, manifest.range), world.store.names
    found = world.store.objects[path]
    if manifest_is == "lost":
        await world.ledger.snapshot()
        world.ledger.trim(4)
        del world.store.objects[path]
    else:
        world.store.names = AsyncMock(return_value=[])  # type: ignore[method-assign]
    await world.sweep_later()
    world.store.objects[path], world.store.names = found, names  # type: ignore[method-assign]

    await world.assert_intact()


@pytest.mark.parametrize("is_second", [True, False])
async def test_a_run_keeps_its_objects_unless_another_one_published_its_range(is_second: bool) -> None:
    """Its own manifest may be stored without an answer."""
    world = Processes()
    late = await world.upload(1, 4, "a")
    if is_second:
        first = await world.compact(1, 4)
    else:
        world.store.fail_next("unknown_written")
    assert (first if is_second else late[0]) == await world.published.publish(*late)
    assert is_second == (await world.store.paths(run_folder(late[0])) == [])
    await world.assert_intact()


@pytest.mark.parametrize(("watermark", "deleted"), [(4, True), (3, False)])
async def test_a_run_deletes_what_was_pruned_meanwhile(
    watermark: int, deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has deleted it from the ranges that were published before. An older count does not know new segments."""
    counted = AsyncMock(return_value=Result(0, watermark, ()))
    monkeypatch.setattr("drain.compaction.published_ranges.newest_of_history", counted)
    world = Processes()
    manifest, began_ms = await world.upload(1, 4, "a")
    item = compacted_object(7, 0, f"{run_folder(manifest)}/x.parquet")
    await world.store.create(item.path, b"records")
    await world.published.publish(replace(manifest, objects=[item]), began_ms)
    assert deleted == (item.path not in world.store.objects)
    put_back = Mock(watermark=4, rows=[Mock(topic_id=7, segment=0, subscription_id=None)])
    for counted.return_value in Result(0, 4, ()), put_back, Result(0, 4, ()):
        await world.sweep_later()
        assert deleted == (item.path not in world.store.objects), "it may have been pruned just now, and have readers"
    await world.sweep_later()
    assert item.path not in world.store.objects, "the process had ended before it could delete it"


def test_a_run_publishes_only_within_half_of_every_delay() -> None:
    assert LIMIT_SECONDS == max_run_age_seconds(DELAY_SECONDS)
    assert 30 == max_run_age_seconds(60)
    for age, refused in ((30, False), (30.1, True)):
        assert refused is (refusal(ChunkRange(1, 4), [], age_seconds=age, max_age_seconds=30) is not None)


@pytest.mark.parametrize(
    ("written", "published", "refused"),
    [
        ((5, 8), [(1, 4)], False),
        ((1, 8), [(1, 4), (5, 8)], False),
        ((1, 6), [(1, 4), (5, 8)], True),
        ((5, 8), [], True),
        ((1, 4), [(1, 8)], True),
        ((5, 8), [(1, 6)], True),
    ],
    ids=["continues", "replaces", "crosses", "has a gap before it", "is narrower", "begins within another"],
)
def test_a_range_is_published_if_it_is_read(written: tuple[int, int], published: list[tuple[int, int]], refused: bool):
    others = [ChunkRange(*each) for each in published]
    reason = refusal(ChunkRange(*written), others, age_seconds=0, max_age_seconds=1)
    assert refused is (reason is not None)


def test_only_ranges_that_the_chain_covers_are_replaced() -> None:
    listed = [ChunkRange(*each) for each in ((1, 4), (1, 6), (5, 8), (7, 12), (10, 14))]
    chain = ranges_to_read(listed)
    assert [ChunkRange(1, 6), ChunkRange(7, 12)] == chain
    assert 12 == compacted_through(chain)

    found = dict(replaced(listed))
    assert {ChunkRange(1, 4): chain[:1], ChunkRange(5, 8): chain} == found
    assert manifest_path(0, ChunkRange(10, 14)) not in {manifest_path(0, each) for each in found}
