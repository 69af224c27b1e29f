"""A check reads everything, and names what a daemon or a consumer could not read."""

import msgspec
import pytest

from controller.backup.check import CheckedShard, check_shard, missing_numbers
from controller.backup.copy import copy_shard
from headgate.errors import LedgerError
from headgate.ledger.compacted import create_manifest, manifest_path
from headgate.ledger.objects import ChunkRange, chunk_path, snapshot_path
from headgate.model import entries as e
from headgate.model.layout import shard_of
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.manifests import compacted_object
from trials.compaction import compact, compacted_objects

FACTS = "compacted/shard=0000/000000000001-000000000008-0-a/facts.parquet"


async def checked(ledger: LedgerInMemory, shards: int = 1) -> CheckedShard:
    return await check_shard(ledger.store, 0, shards, lambda _done, _total: None)


async def compacted_ledger() -> LedgerInMemory:
    """Return a ledger with a topic, a range, a snapshot, and chunks that were trimmed."""
    ledger = LedgerInMemory(5)
    ledger.grow(e.TopicCreated(topic="orders", topic_id=1, segments=1, token="t"))
    for _ in range(4):
        ledger.grow()
    await compact(ledger.ledger, 1, 8)
    await ledger.snapshot()
    ledger.trim(5)
    return ledger


async def test_an_intact_shard_is_counted() -> None:
    found = await checked(await compacted_ledger())

    assert [] == found.problems
    assert (11, 8, 1, 1, 10) == (found.last_chunk, found.chunks, found.topics, found.ranges, found.newest_snapshot)


async def test_chunks_that_a_running_cluster_trims_meanwhile_are_not_missed() -> None:
    ledger = await compacted_ledger()

    def trim(done: int, _: int) -> None:
        if done == 1:
            ledger.grow(e.LedgerTrimmed(below=8))
            ledger.lose(7)

    assert [] == (await check_shard(ledger.store, 0, 1, trim)).problems


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (chunk_path(0, 9), "chunk 9 is missing"),
        (snapshot_path(0, 10), "no snapshot"),
        ("manifests/shard=0000/000000000001-000000000008.json", "chunks 2 to 4 are missing, and no compacted range"),
        (FACTS, f"{FACTS} is missing, which manifests/shard=0000/000000000001-000000000008.json names"),
    ],
    ids=["a chunk", "the snapshot of a trimmed ledger", "the range of trimmed chunks", "an object of a range"],
)
async def test_a_lost_object_is_named(lost: str, named: str) -> None:
    ledger = await compacted_ledger()
    del ledger.store.objects[lost]

    assert any(named in problem for problem in (await checked(ledger)).problems)


@pytest.mark.parametrize(
    "path",
    [chunk_path(0, 6), snapshot_path(0, 10), "manifests/shard=0000/000000000001-000000000008.json", FACTS],
    ids=["a chunk below the snapshot", "a snapshot", "a manifest", "a compacted object"],
)
async def test_a_damaged_object_is_found(path: str) -> None:
    ledger = await compacted_ledger()
    ledger.store.objects[path] = b"x" + ledger.store.objects[path][1:]

    assert (await checked(ledger)).problems


async def test_a_chunk_of_another_history_is_named_also_below_the_snapshot() -> None:
    """Each is intact."""
    ledger, other = await compacted_ledger(), LedgerInMemory(5)
    for entries in ((e.TermStarted(leader_epoch=6, instance="b", term_id=66),), ()):
        other.grow(*entries)
    ledger.store.objects[chunk_path(0, 7)] = other.store.objects[chunk_path(0, 7)]

    named = [f"{chunk_path(0, number)} does not follow chunk {number - 1}" for number in (7, 8)]
    assert named == [problem.partition(":")[0] for problem in (await checked(ledger)).problems]


async def test_a_range_that_crosses_the_others_does_not_make_up_for_a_missing_one() -> None:
    """What is intact is what readers can read: they read ranges one after the other, from chunk 1 on."""
    ledger = LedgerInMemory(10)
    for first, last in ((1, 4), (3, 8)):
        await compact(ledger.ledger, first, last)
    await ledger.snapshot()
    ledger.trim(6)

    assert any("chunks 5 to 5 are missing, and no compacted range" in each for each in (await checked(ledger)).problems)
    with pytest.raises(LedgerError, match=r"the copy cannot be read: .*chunks 5 to 5 are missing"):
        await copy_shard(ledger.store, FakeStore(), 0, lambda _done, _all: None)


async def test_the_objects_of_a_removed_segment_are_not_missed() -> None:
    """A manifest names them until the next compaction."""
    ledger = LedgerInMemory(10)
    manifest = await compacted_objects(ledger.ledger, 1, 8)
    removed = compacted_object(7, 0, "compacted/pruned")
    await create_manifest(ledger.store, msgspec.structs.replace(manifest, objects=[removed]))

    assert [] == (await checked(ledger)).problems
    destination = FakeStore()
    await copy_shard(ledger.store, destination, 0, lambda _done, _all: None)
    assert manifest_path(0, ChunkRange(1, 8)) in destination.objects


async def test_a_ledger_of_another_number_of_shards_is_recognized_by_its_topics() -> None:
    shards = next(n for n in range(2, 9) if shard_of("orders", n))
    (problem,) = (await checked(await compacted_ledger(), shards)).problems

    assert problem.startswith(
        f"topic 'orders' is in shard 0 and belongs to shard {shard_of('orders', shards)} of {shards}"
    )


@pytest.mark.parametrize(
    ("numbers", "ranges", "named"),
    [
        ([1, 2, 3], [], []),
        ([1, 4], [ChunkRange(1, 3)], []),
        ([4, 5], [ChunkRange(1, 2), ChunkRange(1, 4)], []),
        ([1, 4], [], ["chunks 2 to 3 are missing"]),
        ([5], [ChunkRange(1, 3)], ["chunks 4 to 4 are missing"]),
        ([1, 2], [ChunkRange(1, 4)], ["ends at chunk 4, and the last chunk is 2"]),
        ([], [], ["chunks/shard=0000: there is no chunk"]),
    ],
)
def test_numbers_without_a_chunk_or_a_range_are_named(numbers: list[int], ranges: list[ChunkRange], named: list[str]):
    found = list(missing_numbers(0, numbers, ranges))

    assert len(named) == len(found)
    assert all(text in problem for text, problem in zip(named, found, strict=True))
