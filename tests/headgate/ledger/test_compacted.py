"""Manifests: which ranges are read, what is rejected, and deleting the records of segments that are gone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import ChunkError, ObjectExistsError
from headgate.ledger.chunk_ranges import ChunkRange, compacted_through, cover
from headgate.ledger.compacted import (
    CompactedObject,
    Manifest,
    create_manifest,
    delete_compacted_segments,
    manifest_path,
    manifest_ranges,
    read_manifest,
)
from tests.support.object_store import FakeStore


def rolled(topic_id: int, segment: int, path: str, first: int = 0, end: int = 5) -> CompactedObject:
    return CompactedObject(
        path=path,
        topic_id=topic_id,
        segment=segment,
        first_offset=first,
        end_offset=end,
        size_bytes=10,
        first_at_ms=1,
        last_at_ms=2,
    )


def manifest(first: int, last: int, *objects: CompactedObject, level: int = 0) -> Manifest:
    return Manifest(
        shard=3,
        first=first,
        last=last,
        level=level,
        written_at_ms=9,
        last_at_ms=8,
        facts=f"rolled/{first}",
        objects=list(objects),
    )


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
    ids=["none", "side by side", "no beginning", "a gap", "replaced by a wider one", "two ends"],
)
def test_what_is_read_begins_at_chunk_1_has_no_gap_and_is_as_wide_as_can_be(
    ranges: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    covering = cover(ChunkRange(*each) for each in ranges)

    assert expected == covering
    assert (expected[-1][1] if expected else 0) == compacted_through(covering)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)).map(sorted).map(tuple), max_size=30))
def test_whatever_manifests_there_are_no_chunk_is_spoken_for_twice(ranges: list[tuple[int, int]]) -> None:
    numbers = [n for first, last in cover(ChunkRange(*each) for each in ranges) for n in range(first, last + 1)]

    assert list(range(1, len(numbers) + 1)) == numbers


async def test_a_manifest_is_read_as_it_was_written_and_the_first_one_stays() -> None:
    store = FakeStore()
    first = manifest(1, 4, rolled(7, 0, "compacted/x"))
    await create_manifest(store, first)
    with pytest.raises(ObjectExistsError):
        await create_manifest(store, manifest(1, 4))
    store.objects["manifests/shard=0003/readme.txt"] = b""

    assert [ChunkRange(1, 4)] == await manifest_ranges(store, 3)
    assert first == await read_manifest(store, 3, ChunkRange(1, 4))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "is not a manifest, or damaged"),
        (msgspec.json.encode(manifest(1, 5)), "says that it is of chunks"),
        (msgspec.json.encode(msgspec.structs.replace(manifest(1, 4), shard=1)), "of shard 1"),
    ],
    ids=["cut short", "another range", "another shard"],
)
async def test_what_is_no_manifest_of_this_place_is_refused_with_its_name(data: bytes, complaint: str) -> None:
    store = FakeStore(objects={manifest_path(3, ChunkRange(1, 4)): data})

    with pytest.raises(ChunkError, match=f"000000000001-000000000004.json .*{complaint}"):
        await read_manifest(store, 3, ChunkRange(1, 4))


async def test_the_records_of_segments_that_are_gone_are_deleted_from_every_range() -> None:
    paths = ["a", "b", "c", "d", "e"]
    store = FakeStore(objects=dict.fromkeys(paths, b""))
    await create_manifest(store, manifest(1, 4, rolled(7, 0, "a"), rolled(7, 1, "b"), rolled(8, 0, "c")))
    await create_manifest(store, manifest(5, 8, rolled(7, 0, "d", 5, 9), rolled(8, 0, "e", 5, 9)))

    assert 2 == await delete_compacted_segments(store, 3, 7, {0})
    assert {"b", "c", "e"} == {path for path in paths if path in store.objects}
    assert 2 == await delete_compacted_segments(store, 3, 7, {0}), "again: nothing happens"
    assert 2 == await delete_compacted_segments(store, 3, 8)
    assert {"b"} == {path for path in paths if path in store.objects}
