"""Every reader stops at an object of another version with one line that names it and says what to do."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from controller.chunk_writer.builder import ChunkBuilder
from controller.snapshots import format as snapshot_format
from controller.snapshots.job import take_snapshot
from controller.snapshots.restore import catch_up, load_newest_snapshot
from drain.backlog.counting import read_compacted_facts
from headgate.errors import LedgerFormatError
from headgate.ledger import chunk, compacted, objects
from headgate.ledger.checksum import seal_json
from headgate.ledger.compacted import create_manifest, manifest_path, read_manifest
from headgate.ledger.ledger import Ledger
from headgate.ledger.objects import ChunkRange, chunk_folder, chunk_name, snapshot_path
from headgate.model import entries as e
from headgate.protocol.replies import Grant
from headgate.reading.segment_reader import CompactedRecords, SegmentReader
from headgate.reading.tail import ChunkCache, Head
from headgate.reading.topic_files import first_chunk_at
from headgate.storage.object_store import LocalStore
from shard.state.shard_state import ShardState
from tests.support.samples.manifests import manifest
from tests.support.samples.object_formats import of_newer_format, of_older_format

pytestmark = pytest.mark.real_time

CHUNK_PATH = f"{chunk_folder(0)}/{chunk_name(1)}"
MANIFEST_PATH = manifest_path(0, ChunkRange(1, 1))


@pytest.fixture
async def store(tmp_path: Path) -> LocalStore:
    """A ledger of one chunk, which a snapshot and a manifest cover."""
    store = LocalStore(tmp_path)
    builder = ChunkBuilder()
    builder.add(e.TermStarted(leader_epoch=1, instance="a"))
    await store.create(CHUNK_PATH, builder.encode(shard=0, number=1, leader_epoch=1, at_ms=1))
    assert await take_snapshot(Ledger(store, 0), least_chunks=1, now_ms=0) == 1
    await create_manifest(store, manifest(1, 1))
    return store


async def rewrite(store: LocalStore, path: str, change: Callable[[bytes], bytes]) -> None:
    data = await store.read(path)
    await store.delete(path)
    await store.create(path, change(data))


def unusable(shard: int) -> None:
    raise AssertionError(f"a snapshot of shard {shard} was passed over")


async def restore(store: LocalStore) -> object:
    """Read the ledger as a daemon does when it starts."""
    return await catch_up(Ledger(store, 0), ShardState(0), unusable)


async def restore_without_snapshot(store: LocalStore) -> object:
    await store.delete(snapshot_path(0, 1))
    return await restore(store)


def segment_reader(store: LocalStore, start_chunk: int) -> SegmentReader:
    async def deliver(*_: object) -> None: ...

    head = Head()
    head.advance(1)
    return SegmentReader(
        Grant(segment=0, generation=1, first_hash=0, last_hash=65535, start_offset=0, start_chunk=start_chunk),
        cache=ChunkCache(Ledger(store, 0), 1),
        compacted=CompactedRecords(store, 0, 1),
        head=head,
        deliver=deliver,
    )


async def consume_chunks(store: LocalStore) -> object:
    await store.delete(MANIFEST_PATH)
    return await segment_reader(store, 1).run()


@pytest.mark.parametrize(
    ("read", "path", "supported"),
    [
        (restore, snapshot_path(0, 1), snapshot_format.FORMAT),
        (restore_without_snapshot, CHUNK_PATH, chunk.FORMAT),
        (consume_chunks, CHUNK_PATH, chunk.FORMAT),
        (lambda store: segment_reader(store, 1).run(), MANIFEST_PATH, compacted.FORMAT),
        (lambda store: first_chunk_at(Ledger(store, 0), [1], 5), CHUNK_PATH, chunk.FORMAT),
        (lambda store: read_compacted_facts(store, 0), MANIFEST_PATH, compacted.FORMAT),
    ],
)
async def test_an_older_object_stops_its_reader(
    store: LocalStore, read: Callable[[LocalStore], Awaitable[object]], path: str, supported: int
) -> None:
    await rewrite(store, path, of_older_format)

    with pytest.raises(LedgerFormatError) as raised:
        await read(store)

    assert (
        f"{path} has format 1, this version of headgate reads format {supported}; headgate does not convert ledgers: "
        "start a new cluster on an empty ledger URL, or run the older version"
    ) == str(raised.value)


async def test_an_older_object_is_refused_before_its_other_fields_are_read(store: LocalStore) -> None:
    """The names of fields differ between formats."""
    await rewrite(store, MANIFEST_PATH, lambda _: seal_json(b'{"format": 1, "term": 3}'))

    with pytest.raises(LedgerFormatError, match="has format 1"):
        await read_manifest(store, 0, ChunkRange(1, 1))


async def test_a_newer_object_asks_for_the_newer_version(store: LocalStore) -> None:
    await rewrite(store, MANIFEST_PATH, of_newer_format)

    with pytest.raises(LedgerFormatError, match=r"has format 9, .*; run the newer version of headgate that wrote it$"):
        await read_manifest(store, 0, ChunkRange(1, 1))


async def test_a_newer_snapshot_is_passed_over(store: LocalStore) -> None:
    """A daemon of the version before still starts while daemons are being replaced one by one."""
    await rewrite(store, snapshot_path(0, 1), of_newer_format)
    passed_over: list[int] = []

    state = await load_newest_snapshot(Ledger(store, 0), passed_over.append)

    assert ([0], 0) == (passed_over, state.chunk)


# Names of objects are recognized only as headgate writes them.


def test_numbers_are_read_back_from_names_which_sort_like_numbers() -> None:
    numbers = [1, 9, 10, 999, 10**11]
    names = [objects.chunk_name(number) for number in numbers]

    assert sorted(names) == names
    assert numbers == objects.chunk_numbers(names)
    assert numbers == [objects.snapshot_number(objects.snapshot_path(3, n).rsplit("/", 1)[1]) for n in numbers]
    assert (
        objects.chunk_path(3, 7)
        == f"{objects.chunk_folder(3)}/{objects.chunk_name(7)}"
        == "chunks/shard=0003/000000000007.parquet"
    )


@pytest.mark.parametrize(
    "name",
    ["README", "7.parquet", "000000000007.parquet.x", "0000000000007.parquet", "00000000000x.parquet", "000000000007"],
)
def test_other_names_are_foreign(name: str) -> None:
    assert objects.chunk_number(name) is None
    assert objects.snapshot_number(name) is None
    assert [1] == objects.chunk_numbers([name, objects.chunk_name(1)])


def test_digits_of_other_scripts_are_foreign() -> None:
    assert objects.chunk_number("\u0667" * 12 + ".parquet") is None
