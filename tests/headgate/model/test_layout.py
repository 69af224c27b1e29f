"""The layout's rules, in the order of its docstring; hashes, buckets and shards."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LayoutError
from headgate.model.layout import (
    KEY_BUCKETS,
    SEGMENT_HASHES,
    BucketRange,
    Layout,
    Segment,
    SegmentState,
    ShardMap,
    bucket_bounds,
    buckets_of,
    key_bucket,
    key_hash,
    overlaps,
    segment_hash,
    segment_of,
    shard_of,
    slice_of,
)
from headgate.model.positions import OffsetRange, OffsetRanges


def changed(layout: Layout, choices: list[tuple[str, int]]) -> Layout:
    """Apply splits, merges and prunes to segments chosen by number; skip impossible changes."""
    for verb, choice in choices:
        active = sorted(layout.active(), key=lambda segment: segment.first_hash)
        segment = active[choice % len(active)]
        if verb == "split" and segment.first_hash < segment.last_hash:
            layout = layout.split(segment.segment_id, 10, 5)
        elif verb == "merge" and len(active) > 1:
            low, high = active[choice % (len(active) - 1)], active[choice % (len(active) - 1) + 1]
            layout = layout.merge(low.segment_id, high.segment_id, {low.segment_id: 1, high.segment_id: 2}, 5)
        elif verb == "prune":
            roots = [s for s in layout.segments.values() if s.state is SegmentState.SEALED and not s.parents]
            if roots:
                layout = layout.prune([roots[choice % len(roots)].segment_id])
    return layout


changes = st.lists(st.tuples(st.sampled_from(["split", "split", "merge", "prune"]), st.integers(0, 50)), max_size=25)


@given(st.integers(1, 40), changes)
def test_active_segments_tile_the_ring_after_any_change(count: int, choices: list[tuple[str, int]]) -> None:
    """Rule 1: every hash has exactly one active segment."""
    layout = changed(Layout.initial(count, 0), choices)
    active = sorted(layout.active(), key=lambda segment: segment.first_hash)

    assert active[0].first_hash == 0
    assert active[-1].last_hash == SEGMENT_HASHES - 1
    assert all(low.last_hash + 1 == high.first_hash for low, high in pairwise(active))
    for segment in active:
        assert [segment.segment_id] * 2 == layout.route([segment.first_hash << 16, segment.last_hash << 16])


@given(st.integers(1, 8), changes)
def test_the_layout_epoch_and_ids_only_rise(count: int, choices: list[tuple[str, int]]) -> None:
    """Each change raises the epoch by one, and no id is used twice."""
    layout, seen = Layout.initial(count, 0), set(range(count))
    for choice in choices:
        after = changed(layout, [choice])
        if after is layout:
            continue
        assert layout.layout_epoch + 1 == after.layout_epoch
        created = set(after.segments) - set(layout.segments)
        assert not created & seen
        seen |= created
        layout = after


def test_a_split_halves_the_range_and_seals_the_parent() -> None:
    """Rule 2."""
    layout = Layout.initial(1, 0).split(0, 42, 7)

    old = layout.segments[0]
    assert (SegmentState.SEALED, 42, 7, (1, 2)) == (old.state, old.end_offset, old.sealed_at_ms, old.children)
    assert ["0000-7fff", "8000-ffff"] == [layout.segments[n].hash_range for n in (1, 2)]
    assert [(0,), (0,)] == [layout.segments[n].parents for n in (1, 2)]


def test_neighbors_that_are_not_siblings_merge() -> None:
    """Rule 3, in any order of the arguments."""
    layout = Layout.initial(3, 0)

    merged = layout.merge(2, 1, {1: 5, 2: 6}, 7)

    assert (1, 2) == merged.segments[3].parents
    assert (5, 6) == (merged.segments[1].end_offset, merged.segments[2].end_offset)


def test_segments_that_do_not_touch_cannot_merge_and_the_error_names_the_neighbors() -> None:
    """Rule 3."""
    with pytest.raises(LayoutError, match=r"segment 0 can merge with: 1$"):
        Layout.initial(4, 0).merge(0, 2, {0: 0, 2: 0}, 0)
    with pytest.raises(LayoutError, match=r"segment 2 can merge with: 1, 3$"):
        Layout.initial(4, 0).merge(2, 0, {0: 0, 2: 0}, 0)


def test_a_segment_cannot_merge_with_itself() -> None:
    """Rule 3."""
    with pytest.raises(LayoutError, match="not neighbors"):
        Layout.initial(2, 0).merge(1, 1, {1: 0}, 0)


def test_a_segment_of_one_hash_cannot_be_split() -> None:
    """Rule 4: a segment has one hash after sixteen splits."""
    layout = Layout.initial(1, 0)
    for _ in range(16):
        layout = layout.split(layout.route([0])[0], 0, 0)

    with pytest.raises(LayoutError, match="single hash 0000-0000"):
        layout.split(layout.route([0])[0], 0, 0)


@pytest.mark.parametrize(("segment", "problem"), [(0, "already sealed"), (99, "unknown")])
def test_only_active_segments_can_be_split(segment: int, problem: str) -> None:
    """The error names the valid choices."""
    with pytest.raises(LayoutError, match=f"segment {segment}: it is {problem}; active segments are 1, 2"):
        Layout.initial(1, 0).split(0, 0, 0).split(segment, 0, 0)


def test_ancestors_are_pruned_first() -> None:
    """Rule 5."""
    layout = Layout.initial(1, 0).split(0, 1, 0).split(1, 1, 0)

    with pytest.raises(LayoutError, match=r"segment 1 still has ancestors \[0\]: prune those first"):
        layout.prune([1])
    with pytest.raises(LayoutError, match="not a sealed segment"):
        layout.prune([3])
    pruned = layout.prune([0])
    assert frozenset() == pruned.ancestors(1)
    assert frozenset({1}) == pruned.ancestors(3)


def test_a_segment_without_its_pruned_parent_still_has_its_other_ancestors() -> None:
    layout = Layout.initial(2, 0).merge(0, 1, {0: 1, 1: 1}, 0)

    assert frozenset({1}) == layout.prune([0]).ancestors(2)


def test_ancestors_are_found_at_any_depth() -> None:
    """A grandchild of a merge has both sides' parents as ancestors."""
    layout = Layout.initial(2, 0).split(0, 1, 0).merge(3, 1, {3: 1, 1: 1}, 0).split(4, 1, 0)

    assert frozenset({0, 1, 3, 4}) == layout.ancestors(5)


def test_descendants_are_at_any_depth() -> None:
    layout = Layout.initial(2, 0).split(0, 1, 0).merge(3, 1, {3: 1, 1: 1}, 0)

    assert {2, 3, 4} == layout.descendants({0})
    assert {4} == layout.descendants({1, 3})
    assert set() == layout.descendants({4})


@given(st.integers(4, 40), st.integers(0, 4), st.integers(0, 4))
def test_many_changes_at_once_are_the_same_as_one_after_the_other(segments: int, splits: int, merges: int) -> None:
    layout = Layout.initial(segments + splits + 2 * merges, 0)
    split = list(range(splits))
    merge = [(splits + 2 * n, splits + 2 * n + 1) for n in range(merges)]
    single = layout
    for segment in split:
        single = single.split(segment, 10 + segment, 5)
    for low, high in merge:
        single = single.merge(low, high, {low: 10 + low, high: 10 + high}, 5)

    assert layout.changed(split, merge, lambda segment: 10 + segment, 5) == single


def test_a_change_may_concern_a_segment_that_an_earlier_one_creates() -> None:
    layout = Layout.initial(1, 0).changed([0, 1], [(4, 2)], lambda _: 0, 0)

    assert sorted(segment.segment_id for segment in layout.active()) == [3, 5]
    assert layout.segments[5].parents == (4, 2)


def test_a_parent_that_is_missing_from_the_layout_is_no_ancestor() -> None:
    """A layout may name parents that it does not contain."""
    assert frozenset() == Layout(1, 2, {1: Segment(1, 0, 0xFFFF, 0, parents=(0,))}).ancestors(1)


def test_the_first_segment_of_an_external_topic_without_any_is_0() -> None:
    assert 0 == Layout.imported([]).next_segment_id


@pytest.mark.parametrize(("count", "possible"), [(0, False), (1, True), (65_536, True), (65_537, False)])
def test_a_topic_begins_with_1_to_65536_segments(count: int, possible: bool) -> None:
    if possible:
        layout = Layout.initial(count, 0)
        assert (0, count, count) == (layout.layout_epoch, layout.next_segment_id, layout.active_count)
    else:
        with pytest.raises(LayoutError, match=f"{count} segments: give a number from 1 to 65536"):
            Layout.initial(count, 0)


def test_a_layout_does_not_change_with_the_segments_it_was_made_from() -> None:
    segments = {0: Segment(0, 0, 65_535, 0)}
    layout = Layout(0, 1, segments)
    del segments[0]

    assert {0} == set(layout.segments)
    with pytest.raises(TypeError):
        layout.segments[1] = layout.segments[0]  # type: ignore[index]


COUNTS = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("counts", "places"),
    [([4], (1,)), ([4, 16], (9, 1)), ([4, 5], (4, 1)), ([1, 4, 8], (1, 0)), ([2, 3, 5], (4, 0, 1))],
)
def test_places_are_distinct_and_the_newest_is_first(counts: list[int], places: tuple[int, ...]) -> None:
    """The hash of "orders" is 0x75184c89."""
    assert ShardMap(tuple(counts)).candidates("orders") == places


@given(COUNTS, st.text(min_size=1))
def test_a_longer_list_keeps_the_places_of_a_shorter_one(counts: list[int], topic: str) -> None:
    for length in range(1, len(counts)):
        earlier, later = ShardMap(tuple(counts[:length])), ShardMap(tuple(counts))
        assert later.extends(earlier.counts)
        assert not earlier.extends(later.counts)
        assert set(earlier.candidates(topic)) <= set(later.candidates(topic))
    assert later.candidates(topic)[0] == shard_of(topic, counts[-1]) if len(counts) > 1 else True


def test_the_hash_equals_published_murmur3_vectors() -> None:
    """MurmurHash3 x86 32-bit with seed 0."""
    assert [0, 0x248BFA47, 0x149BBB7F] == [key_hash(b""), key_hash(b"hello"), key_hash(b"hello, world")]


@given(st.binary(), st.integers(1, 64))
def test_segment_and_bucket_use_different_bits(key: bytes, buckets: int) -> None:
    """The high half chooses the segment, the low half the bucket."""
    whole = key_hash(key)

    assert whole >> 16 == segment_hash(key)
    assert (whole & 0xFFFF) * buckets // 65536 == key_bucket(key, buckets)
    assert 0 <= key_bucket(key, buckets) < buckets


def test_the_shard_depends_only_on_the_name() -> None:
    """A change would move every topic."""
    assert [shard_of(name, 4) for name in ("orders", "telemetry", "a", "b")] == [
        key_hash(name.encode()) % 4 for name in ("orders", "telemetry", "a", "b")
    ]
    assert shard_of("orders", 1) == 0


def test_a_segment_has_sixteen_key_buckets() -> None:
    assert KEY_BUCKETS == 16


def test_a_bucket_depends_on_all_low_sixteen_bits() -> None:
    assert (0x0AAB, 1) == (key_hash(b"94") & 0xFFFF, key_bucket(b"94", 24)), "the last bit decides"


def test_a_slice_of_all_buckets_is_the_whole_segment() -> None:
    assert 3 == slice_of(3, 0, 0) == slice_of(3, 0, 16)
    assert BucketRange(3, 0, 8) == slice_of(3, 0, 8)


def test_a_slice_survives_its_written_form() -> None:
    for segment_slice in (3, BucketRange(3, 0, 8), BucketRange(3, 8, 16)):
        assert segment_slice == slice_of(segment_of(segment_slice), *bucket_bounds(segment_slice))


def test_slices_sort_by_segment_then_bucket() -> None:
    ordered = [0, 1, BucketRange(1, 0, 4), BucketRange(1, 4, 8), 2, BucketRange(3, 0, 16)]

    assert ordered == sorted(ordered[2:] + ordered[:2])
    assert ordered == sorted(ordered[::2] + ordered[1::2])


def test_slices_with_a_common_bucket_overlap() -> None:
    assert overlaps(1, BucketRange(1, 4, 8))
    assert overlaps(BucketRange(1, 4, 8), 1)
    assert overlaps(BucketRange(1, 0, 8), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(1, 4, 8))
    assert not overlaps(BucketRange(1, 0, 4), BucketRange(2, 0, 4))


def test_the_displayed_range_includes_the_last_bucket() -> None:
    assert "3[0-7]" == str(BucketRange(3, 0, 8))
    assert list(range(8)) == list(buckets_of(BucketRange(3, 0, 8)))


def test_no_bucket_range_is_before_or_after_itself() -> None:
    bucket_range = BucketRange(0, 0, 8)

    assert not bucket_range < BucketRange(0, 0, 8)
    assert not bucket_range > BucketRange(0, 0, 8)


# `OffsetRanges` compared with a plain set of integers.


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=15)


def offsets(ranges: list[OffsetRange]) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


def assert_holds(ranges: OffsetRanges, expected: set[int]) -> None:
    edges = [edge for offset_range in ranges for edge in offset_range]
    assert all(before < after for before, after in pairwise(edges)), "sorted, disjoint, not touching, not empty"
    assert expected == offsets(list(ranges))
    assert len(expected) == ranges.count()


@given(RANGES)
def test_adding_ranges_one_by_one_or_at_once_is_their_union(drawn: list[OffsetRange]) -> None:
    one_by_one = OffsetRanges()
    for first, end in drawn:
        one_by_one.add(first, end)

    assert_holds(one_by_one, offsets(drawn))
    assert OffsetRanges(drawn) == one_by_one
    assert OffsetRanges(one_by_one) == one_by_one


@given(RANGES, RANGES)
def test_union_and_intersection_leave_their_operands_alone(left: list[OffsetRange], right: list[OffsetRange]) -> None:
    one, other = OffsetRanges(left), OffsetRanges(right)

    assert_holds(one | other, offsets(left) | offsets(right))
    assert_holds(one & other, offsets(left) & offsets(right))
    assert (OffsetRanges(left), OffsetRanges(right)) == (one, other)


@given(RANGES, st.integers(0, 35))
def test_membership_and_counts_are_those_of_the_set(drawn: list[OffsetRange], offset: int) -> None:
    ranges, expected = OffsetRanges(drawn), offsets(drawn)

    assert (offset in expected) == ranges.contains(offset)
    assert len({other for other in expected if other < offset}) == ranges.count(below=offset)
    assert bool(expected) == bool(ranges)


@given(RANGES, st.integers(0, 35))
def test_the_prefix_ends_at_the_first_missing_offset(drawn: list[OffsetRange], position: int) -> None:
    ranges, expected = OffsetRanges(drawn), offsets(drawn)
    end = next(offset for offset in range(position, 99) if offset not in expected)

    assert end == ranges.pop_prefix(position)
    assert_holds(ranges, {offset for offset in expected if offset >= end})


def test_ranges_are_removed_from_the_lowest_on() -> None:
    ranges = OffsetRanges([(6, 9), (1, 2), (2, 4)])

    assert [(1, 4), (6, 9)] == [ranges.pop_first(), ranges.pop_first()]
    with pytest.raises(IndexError):
        ranges.pop_first()


def test_a_range_touches_those_that_it_overlaps_or_continues() -> None:
    ranges = OffsetRanges([(4, 6)])

    assert [(n, n + 2) for n in range(9) if ranges.touches(n, n + 2)] == [(2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]


def test_a_range_contains_its_first_offset_and_not_its_end() -> None:
    ranges = OffsetRanges([(2, 5)])

    assert [False, True, True, False] == [ranges.contains(offset) for offset in (1, 2, 4, 5)]


def test_one_range_has_several_ranges_in_common_with_another_set() -> None:
    wide, narrow = OffsetRanges([(0, 10)]), OffsetRanges([(1, 3), (5, 7)])

    assert narrow == wide & narrow == narrow & wide


def test_a_prefix_begins_at_the_first_offset_unless_another_position_is_given() -> None:
    assert [3, 0] == [OffsetRanges([part]).pop_prefix() for part in ((0, 3), (1, 3))]


def test_a_set_is_shown_as_its_ranges() -> None:
    assert "OffsetRanges([(1, 3), (5, 7)])" == repr(OffsetRanges([(5, 7), (1, 3)]))
