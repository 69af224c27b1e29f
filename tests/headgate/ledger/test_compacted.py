"""Manifests: which ranges are read, which are rejected, and deletion of the records of removed segments."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LedgerError, ObjectExistsError
from headgate.ledger.checksum import seal_json
from headgate.ledger.compacted import (
    CompactedObject,
    Manifest,
    create_manifest,
    delete_compacted_segments,
    manifest_path,
    manifest_ranges,
    read_manifest,
)
from headgate.ledger.identity import identity_object
from headgate.ledger.objects import IDENTITY_PATH, ChunkRange, compacted_through, ranges_to_read
from tests.support.fakes.object_store import FakeStore
from tests.support.samples import manifests
from tests.support.samples.manifests import compacted_object


def manifest(first: int, last: int, *objects: CompactedObject) -> Manifest:
    return manifests.manifest(first, last, *objects, shard=3)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(1, 4), (5, 8)], [(1, 4), (5, 8)]),
        ([(5, 8)], []),
        ([(1, 4), (9, 12)], [(1, 4)]),
        ([(1, 4), (1, 8), (5, 8), (9, 12)], [(1, 8), (9, 12)]),
        ([(1, 4), (5, 6), (5, 8)], [(1, 4), (5, 8)]),
    ],
    ids=["none", "adjacent", "no chunk 1", "a gap", "replaced by a wider one", "two ends"],
)
def test_the_ranges_to_read_begin_at_chunk_1_without_gaps_and_are_the_widest(
    ranges: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    selected = ranges_to_read(ChunkRange(*each) for each in ranges)

    assert expected == selected
    assert (expected[-1][1] if expected else 0) == compacted_through(selected)


async def test_the_first_manifest_of_a_range_is_kept_and_read_as_it_was_written() -> None:
    store = FakeStore()
    first = manifest(1, 4, compacted_object(7, 0, "compacted/x"))
    await create_manifest(store, first)
    with pytest.raises(ObjectExistsError):
        await create_manifest(store, manifest(1, 4))
    store.objects["manifests/shard=0003/readme.txt"] = b""

    assert [ChunkRange(1, 4)] == await manifest_ranges(store, 3)
    assert first == await read_manifest(store, 3, ChunkRange(1, 4))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "is not a manifest, or is damaged"),
        (msgspec.json.encode(manifest(1, 4)), "is damaged: its .* bytes have another checksum"),
        (seal_json(msgspec.json.encode(manifest(1, 5))), "states that it describes"),
        (seal_json(msgspec.json.encode(msgspec.structs.replace(manifest(1, 4), shard=1))), "of shard 1"),
    ],
    ids=["truncated", "without a checksum", "another range", "another shard"],
)
async def test_an_object_that_is_not_this_manifest_is_rejected_with_its_name(data: bytes, complaint: str) -> None:
    store = FakeStore(objects={manifest_path(3, ChunkRange(1, 4)): data})

    with pytest.raises(LedgerError, match=f"000000000001-000000000004.json .*{complaint}"):
        await read_manifest(store, 3, ChunkRange(1, 4))


async def test_the_records_of_removed_segments_are_deleted_from_every_range() -> None:
    paths = ["a", "b", "c", "d", "e"]
    store = FakeStore(objects=dict.fromkeys(paths, b""))
    await create_manifest(
        store, manifest(1, 4, compacted_object(7, 0, "a"), compacted_object(7, 1, "b"), compacted_object(8, 0, "c"))
    )
    await create_manifest(store, manifest(5, 8, compacted_object(7, 0, "d"), compacted_object(8, 0, "e")))

    assert 2 == await delete_compacted_segments(store, 3, 7, {0})
    assert {"b", "c", "e"} == {path for path in paths if path in store.objects}
    assert 2 == await delete_compacted_segments(store, 3, 7, {0}), "repeated without effect"
    assert 2 == await delete_compacted_segments(store, 3, 8)
    assert {"b"} == {path for path in paths if path in store.objects}


async def test_the_manifest_of_another_ledger_is_refused_with_both_ids() -> None:
    """A folder that was copied by hand, or restored beside another one, describes other records."""
    store = FakeStore(objects={IDENTITY_PATH: identity_object("a" * 32)})
    await create_manifest(store, msgspec.structs.replace(manifest(1, 4), ledger_id="b" * 32))

    with pytest.raises(LedgerError, match=f"the id {'b' * 32}, and this ledger has the id {'a' * 32}"):
        await read_manifest(store, 3, ChunkRange(1, 4))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8))
def test_the_ranges_to_read_reach_as_far_as_any_chain_and_have_each_chunk_once(ranges: list[tuple[int, int]]) -> None:
    """Whatever range a suspended run leaves behind, it hides nothing."""
    reached = {0}
    for _ in ranges:
        reached |= {last for first, last in ranges if first - 1 in reached and last >= first}

    selected = ranges_to_read(ChunkRange(*each) for each in ranges)
    assert list(range(1, max(reached) + 1)) == [n for first, last in selected for n in range(first, last + 1)]
