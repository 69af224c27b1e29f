"""The layout's rules, in the order of its docstring."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import LayoutError
from headgate.model.layout import SEGMENT_HASHES, Layout, Segment, SegmentState


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
        assert [segment.segment_id] * 2 == layout.route([segment.first_hash, segment.last_hash])


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

    assert (SegmentState.SEALED, 42, 7, (1, 2)) == (
        layout.segments[0].state,
        layout.segments[0].end_offset,
        layout.segments[0].sealed_at_ms,
        layout.segments[0].children,
    )
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
