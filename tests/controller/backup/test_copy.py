"""A copy of a shard is a prefix of it, also while the source is written, compacted and trimmed."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from controller.backup.check import check_shard
from controller.backup.copy import CopiedShard, copy_shard
from controller.snapshots.job import take_snapshot
from headgate.errors import LedgerError, StoreUnavailableError
from headgate.ledger.checksum import checksum
from headgate.ledger.compacted import create_manifest, manifest_folder, manifest_path, read_manifest
from headgate.ledger.identity import identity_object, name_level, read_ledger_id, read_level, read_shards
from headgate.ledger.ledger import Ledger, shard_folders
from headgate.ledger.objects import IDENTITY_PATH, ChunkRange, chunk_name, chunk_path, snapshot_folder
from headgate.model import entries as e
from tests.support.fakes.memory_ledger import LedgerInMemory
from tests.support.fakes.object_store import FakeStore
from tests.support.samples.manifests import compacted_object
from tests.support.whole_state import everything
from trials.compaction import compact, compacted_objects


def nothing(_done: int, _total: int) -> None:
    pass


class Watched(FakeStore):
    """A store that calls a function when an object is created."""

    def __init__(self, on_create: Callable[[str], None]) -> None:
        super().__init__()
        self.on_create = on_create

    async def create(self, path: str, data: bytes) -> None:
        await super().create(path, data)
        self.on_create(path)


def before_listing(source: LedgerInMemory, folder: str, change: Callable[[], Awaitable[None]]) -> None:
    """Call ``change`` before the first listing of ``folder``."""
    listed, changes = source.store.names, [change]

    async def names(prefix: str, after: str = "") -> list[str]:
        if prefix == folder and changes:
            await changes.pop()()
        return await listed(prefix, after)

    source.store.names = names  # type: ignore[method-assign]


async def copied(source: LedgerInMemory, destination: FakeStore) -> CopiedShard:
    return await copy_shard(source.store, destination, 0, nothing)


async def compacted(chunks: int, through: int) -> LedgerInMemory:
    """Return a ledger whose first chunks are in a compacted range."""
    source = LedgerInMemory(chunks)
    await compact(source.ledger, 1, through)
    return source


async def assert_equal_state(source: LedgerInMemory, destination: FakeStore) -> None:
    state, _ = await LedgerInMemory(store=destination).restored()
    assert everything(source.state) == everything(state)


async def problems(store: FakeStore) -> list[str]:
    return (await check_shard(store, 0, 1, nothing)).problems


async def test_a_copy_has_the_state_of_its_source() -> None:
    source, destination = LedgerInMemory(8), FakeStore()
    await source.snapshot()
    source.grow()
    await name_level(source.store, 7, shards=4)

    assert CopiedShard(0, last_chunk=9, chunks=9, ranges=0, snapshots=1) == await copied(source, destination)
    await assert_equal_state(source, destination)
    assert ([0], 7) == (await shard_folders(destination), await read_level(destination))
    assert await read_shards(destination) == 4, "most of which nothing has led yet"

    destination.objects = {path: data for path, data in destination.objects.items() if "shard=0000" not in path}
    [gone] = await problems(destination)
    assert "there is no chunk, and begun/0.json says that this shard has had one" in gone


async def test_a_second_run_adds_what_is_new_and_overwrites_nothing() -> None:
    source, destination = LedgerInMemory(8), FakeStore()
    await copied(source, destination)
    before = dict(destination.objects)
    source.grow()

    assert CopiedShard(0, last_chunk=9, chunks=1, ranges=0, snapshots=0) == await copied(source, destination)
    assert before.items() <= destination.objects.items()
    await assert_equal_state(source, destination)


async def test_chunks_that_are_written_meanwhile_are_copied_and_no_snapshot_is_ahead_of_them() -> None:
    source = LedgerInMemory(4)

    def write(path: str) -> None:
        if source.state.chunk < 7:
            source.grow()

    destination = Watched(write)
    await copied(source, destination)
    await assert_equal_state(source, destination)
    assert [] == await problems(destination)


@pytest.mark.parametrize("grows_to", [2, 5, 9], ids=["shorter", "as long", "longer"])
async def test_a_source_that_is_put_back_meanwhile_is_refused(grows_to: int) -> None:
    source = LedgerInMemory(5)

    def put_back(path: str) -> None:
        if path == chunk_path(0, 3):
            other = LedgerInMemory(2, FakeStore())
            while other.state.chunk < grows_to:
                other.grow(e.TermStarted(leader_epoch=2, instance="b", term_id=77))
            source.store.objects = other.store.objects

    with pytest.raises(LedgerError, match="put back meanwhile"):
        await copied(source, Watched(put_back))


@pytest.mark.parametrize("folder", [snapshot_folder(0), manifest_folder(0)])
async def test_a_snapshot_or_a_range_beyond_the_copied_chunks_is_left_out(folder: str) -> None:
    """A daemon would refuse the copy, or give its numbers to other chunks."""
    source, destination = LedgerInMemory(6), FakeStore()

    async def publish() -> None:
        later = await compacted(8, 8)
        await later.snapshot()
        source.store.objects |= {at: data for at, data in later.store.objects.items() if not at.startswith("chunks/")}

    before_listing(source, folder, publish)
    found = await copied(source, destination)
    assert (0, 0) == (found.ranges, found.snapshots)
    assert [] == await problems(destination)
    await assert_equal_state(source, destination)


async def test_chunks_that_are_trimmed_before_they_are_copied_are_in_the_copied_range() -> None:
    source = await compacted(24, 20)
    await source.snapshot()

    def trim(path: str) -> None:
        if path == chunk_path(0, 1):
            source.trim(20)

    destination = Watched(trim)
    await copied(source, destination)

    assert 19 not in await Ledger(destination, 0).numbers(), "deleted before it was copied"
    assert [] == await problems(destination)
    await assert_equal_state(source, destination)


async def test_a_copy_that_no_snapshot_makes_readable_is_refused() -> None:
    """The leader has the state in memory, so only its next start would fail. A backup of then would be none."""
    source, destination = await compacted(24, 20), FakeStore()
    source.trim(20)
    with pytest.raises(LedgerError, match="chunk 19 is missing, and no snapshot covers it"):
        await copied(source, destination)


async def test_a_range_without_its_objects_is_an_error_and_not_copied() -> None:
    source, destination = await compacted(4, 4), FakeStore()
    del source.store.objects[next(path for path in source.store.objects if path.endswith("facts.parquet"))]

    with pytest.raises(LedgerError, match="a compacted object is missing: an object that manifests/shard=0000"):
        await copied(source, destination)
    assert not any(path.startswith("manifests/") for path in destination.objects)


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("listed", [True, False], ids=["deleted", "left out of a range"])
async def test_a_copy_without_the_data_of_a_deleted_topic_has_its_deletion(trimmed: bool, listed: bool) -> None:
    """The source deletes both after the last chunk was copied, and may have trimmed the deletion, too."""
    source, path = LedgerInMemory(3), "compacted/shard=0000/1-4/topic_id=1/segment=0/x.parquet"
    source.grow(e.TopicCreated(topic_id=1, topic="sensors", token="t", segments=1))
    source.store.objects[path] = b"records"
    item = compacted_object(1, 0, path, checksum=checksum(b"records"))
    manifest = await compacted_objects(source.ledger, 1, 4)
    if listed:
        await create_manifest(source.store, msgspec.structs.replace(manifest, objects=[item]))

    async def delete() -> None:
        del source.store.objects[path]
        source.grow(e.TopicDeleted(topic_id=1, token="d"))
        if not listed:
            await create_manifest(source.store, manifest)
        if trimmed:
            source.grow()
            await source.snapshot()
            source.trim(6)

    before_listing(source, manifest_folder(0), delete)

    def interrupt(created: str) -> None:
        if created.startswith("manifests/"):
            raise StoreUnavailableError("the network is down")

    destination = Watched(interrupt)
    with pytest.raises(LedgerError if trimmed else StoreUnavailableError):
        await copied(source, destination)
    assert trimmed or chunk_path(0, 5) in destination.objects
    assert [] == await problems(destination)


async def test_a_chunk_that_the_listing_missed_is_copied() -> None:
    source, destination = LedgerInMemory(6), FakeStore()
    listed = source.store.names

    async def names(prefix: str, after: str = "") -> list[str]:
        return [name for name in await listed(prefix, after) if name != chunk_name(5)]

    source.store.names = names  # type: ignore[method-assign]
    await copied(source, destination)
    await assert_equal_state(source, destination)


@pytest.mark.parametrize("chunks", [4, 9], ids=["the same length", "a longer destination"])
async def test_another_ledger_at_the_destination_is_refused_and_kept(chunks: int) -> None:
    source, other = LedgerInMemory(4), LedgerInMemory()
    for number in range(chunks):
        other.grow(e.TermStarted(leader_epoch=number + 1, instance="other"))
    before = dict(other.store.objects)

    with pytest.raises(
        LedgerError, match="is not a copy of this ledger, or was written to; choose an empty destination"
    ):
        await copied(source, other.store)
    assert before == other.store.objects


async def test_a_backup_that_a_daemon_has_written_to_is_refused_after_its_end_was_trimmed_from_the_source() -> None:
    source, destination = LedgerInMemory(8), LedgerInMemory(8)
    destination.grow(e.TermStarted(leader_epoch=7, instance="b", term_id=99))
    for _ in range(20):
        source.grow()
    await compact(source.ledger, 1, 24)
    await source.snapshot()
    source.trim(20)

    with pytest.raises(LedgerError, match=r"0000009\.parquet is of another term: the destination is not a copy"):
        await copied(source, destination.store)


async def test_an_interrupted_copy_is_an_older_prefix_and_the_next_run_completes_it() -> None:
    source = LedgerInMemory(20)
    await source.snapshot()
    await name_level(source.store, 7)

    def fail(path: str) -> None:
        if path == chunk_path(0, 17):
            raise StoreUnavailableError("the disk is full")

    destination = Watched(fail)
    with pytest.raises(StoreUnavailableError):
        await copied(source, destination)
    assert not any(path.startswith(snapshot_folder(0)) for path in destination.objects)
    assert await read_level(destination) == 7, "what only this level allows may be there"

    destination.on_create = lambda _: None
    await copied(source, destination)
    await assert_equal_state(source, destination)


async def test_the_manifests_of_a_copy_name_the_copy() -> None:
    """A copy has another history from its end on, and daemons and Spark refuse what names another ledger."""
    source, destination = await compacted(8, 4), FakeStore()
    source.store.objects[IDENTITY_PATH] = identity_object("a" * 32)
    source.store.objects.pop(manifest_path(0, ChunkRange(1, 4)))
    await create_manifest(source.store, await compacted_objects(source.ledger, 1, 4, run="b"))
    await copied(source, destination)

    manifest = await read_manifest(destination, 0, ChunkRange(1, 4))
    assert manifest.ledger_id == await read_ledger_id(destination, "")
    assert manifest.ledger_id not in ("", "a" * 32)


@pytest.mark.parametrize("folder", ["chunks/", "snapshots/", "compacted/"])
async def test_a_damaged_object_is_not_copied_and_a_later_run_copies_a_good_one(folder: str) -> None:
    source, destination = await compacted(6, 4), FakeStore()
    await take_snapshot(source.ledger, least_chunks=1, now_ms=0)
    path, good = next(each for each in source.store.objects.items() if each[0].startswith(folder))
    source.store.objects[path] = b"damaged" + good[7:]
    with pytest.raises(LedgerError, match=f"the source's {path} is damaged"):
        await copied(source, destination)
    assert path not in destination.objects

    source.store.objects[path] = good
    await copied(source, destination)
    assert destination.objects[path] == good
