"""The gate, rule by rule, then over random layouts."""

from collections import UserDict

import pytest
from hypothesis import given

from headgate.model.layout import Layout, Segment, SegmentState
from shard.subscriptions.gate import (
    MAX_NAMED_BLOCKERS,
    Gate,
    blocked_since_ms,
    compute_gate,
    drained_without_count,
    is_gated,
    undrained_sealed,
)
from tests.support.samples.layouts import layouts_and_drained

UNGATED = [("QUEUE", "none"), ("STREAM", "none"), ("CHECKPOINT", "none"), (None, "strict")]


def split_twice() -> Layout:
    """0 → 1, 2 and then 1 → 3, 4: three generations."""
    return Layout.initial(1, 0).split(0, 5, 0).split(1, 0, 0)


def test_rule_1_a_drained_sealed_segment_is_retired_and_neither_granted_nor_blocked() -> None:
    gate = compute_gate(split_twice(), {0}, "STREAM", "strict")

    assert Gate(grantable=(1, 2), blocked={3: (1,), 4: (1,)}, retired=frozenset({0})) == gate


@pytest.mark.parametrize("subscription_type", ["STREAM", "QUEUE"])
def test_rule_1_types_that_acknowledge_retire_segments(subscription_type: str) -> None:
    assert frozenset({0, 1}) == compute_gate(split_twice(), {0, 1}, subscription_type, "none").retired


@pytest.mark.parametrize("subscription_type", ["CHECKPOINT", None])
def test_rule_1_types_that_acknowledge_nothing_retire_nothing(subscription_type: str | None) -> None:
    gate = compute_gate(split_twice(), {0, 1}, subscription_type, "none")

    assert frozenset() == gate.retired
    assert (0, 1, 2, 3, 4) == gate.grantable


def test_rule_1_an_active_segment_is_never_retired() -> None:
    assert (0,) == compute_gate(Layout.initial(1, 0), {0}, "STREAM", "strict").grantable


def test_rule_3_a_pruned_ancestor_counts_as_drained() -> None:
    layout = split_twice().prune([0])

    assert (1, 2) == compute_gate(layout, set(), "STREAM", "strict").grantable


def test_rule_3_a_parent_missing_from_the_layout_counts_as_drained() -> None:
    """A layout may name parents that it does not contain."""
    layout = Layout(1, 2, {1: Segment(1, 0, 0xFFFF, 0, parents=(0,))})

    assert (1,) == compute_gate(layout, set(), "STREAM", "strict").grantable


@pytest.mark.parametrize(("subscription_type", "order"), UNGATED)
def test_rule_4_without_a_gate_no_segment_waits(subscription_type: str | None, order: str) -> None:
    gate = compute_gate(split_twice(), set(), subscription_type, order)

    assert (0, 1, 2, 3, 4) == gate.grantable
    assert {} == gate.blocked


def test_rule_4_only_a_stream_in_strict_order_is_gated() -> None:
    assert is_gated("STREAM", "strict")
    assert not any(is_gated(*kind) for kind in [*UNGATED, ("QUEUE", "strict"), ("CHECKPOINT", "strict")])


def test_rule_5_a_long_chain_names_only_the_nearest_blockers() -> None:
    chain = {n: Segment(n, 0, 0xFFFF, 0, parents=(n - 1,) if n else ()) for n in range(30)}
    blocked = compute_gate(Layout(1, 30, chain), {28}, "STREAM", "strict").blocked

    assert (*range(27, 22, -1),) == blocked[29], "five of them"
    assert 29 == len(blocked)
    assert 0 not in blocked


class _CountedSegments(UserDict[int, Segment]):
    looks = 0

    def __getitem__(self, segment: int) -> Segment:
        self.looks += 1
        return super().__getitem__(segment)


def test_the_blockers_of_a_whole_chain_cost_a_few_looks_at_each_segment() -> None:
    """A search that starts again for each segment would look at ten ancestors of each."""
    chain = {n: Segment(n, 0, 0xFFFF, 0, parents=(n - 1,) if n else ()) for n in range(1000)}
    layout = Layout(1, 1000, chain)
    counted = _CountedSegments(chain)
    object.__setattr__(layout, "segments", counted)
    blocked = compute_gate(layout, set(), "STREAM", "strict").blocked
    counted.looks = 0

    assert 999 == len([*blocked.values()])
    assert counted.looks <= 3000


@given(layouts_and_drained())
def test_rule_5_blockers_are_sorted_by_generation_and_id(drawn: tuple[Layout, set[int]]) -> None:
    """Compared with a search by generation."""
    layout, drained = drawn
    for segment, blockers in compute_gate(layout, drained, "STREAM", "strict").blocked.items():
        found: list[int] = []
        seen: set[int] = set()
        pending = {segment}
        while pending:
            pending = {p for s in pending for p in layout.segments[s].parents if p in layout.segments} - seen
            seen |= pending
            found += sorted(pending - drained)
        assert (*found[:MAX_NAMED_BLOCKERS],) == blockers


def test_rule_6_sealed_segments_that_end_at_the_start_position_need_no_count() -> None:
    layout = Layout.initial(2, 0).split(0, 5, 0).split(1, 7, 0).split(2, 0, 0)

    assert [0, 2] == drained_without_count(layout, frozenset(), "QUEUE", {0: 5, 1: 6, 3: 3})
    assert [2] == drained_without_count(layout, {0}, "STREAM", {0: 5})
    assert [] == drained_without_count(layout, {0}, "CHECKPOINT", {0: 5})
    assert [1] == drained_without_count(layout, {0, 2}, "QUEUE", {1: 7})
    assert [] == drained_without_count(Layout.initial(1, 0).split(0, 1, 0), frozenset(), "STREAM", {}), (
        "one record is due"
    )


def test_rule_7_a_segment_is_blocked_since_its_creation_or_the_last_change_of_the_subscription() -> None:
    layout = Layout.initial(1, 0).split(0, 5, 100).split(1, 0, 200)

    assert 200 == blocked_since_ms(layout, [3, 4], gated_since_ms=50)
    assert 100 == blocked_since_ms(layout, [2, 3], gated_since_ms=50)
    assert 150 == blocked_since_ms(layout, [2, 3], gated_since_ms=150)
    assert blocked_since_ms(layout, [], gated_since_ms=50) is None


@given(layouts_and_drained())
def test_every_segment_is_in_exactly_one_group(drawn: tuple[Layout, set[int]]) -> None:
    layout, drained = drawn
    gate = compute_gate(layout, drained, "STREAM", "strict")

    assert sorted(layout.segments) == sorted([*gate.grantable, *gate.blocked, *gate.retired])
    assert drained == set(gate.retired)


@given(layouts_and_drained())
def test_no_child_is_grantable_before_an_ancestor(drawn: tuple[Layout, set[int]]) -> None:
    """Compared with the definition: all ancestors in the layout are drained."""
    layout, drained = drawn
    gate = compute_gate(layout, drained, "STREAM", "strict")

    for segment in layout.segments:
        undrained = layout.ancestors(segment) - drained
        if segment not in drained:
            assert (segment in gate.grantable) == (not undrained)
            assert undrained == set(gate.blocked.get(segment, ()))


@given(layouts_and_drained())
def test_some_segment_is_always_grantable(drawn: tuple[Layout, set[int]]) -> None:
    """The blockers of all other segments can be polled, so no segment waits permanently."""
    layout, drained = drawn
    gate = compute_gate(layout, drained, "STREAM", "strict")

    assert gate.grantable
    assert {ancestor for blockers in gate.blocked.values() for ancestor in blockers} <= undrained_sealed(
        layout, drained
    )


@given(layouts_and_drained())
def test_a_poll_asks_about_sealed_undrained_segments(drawn: tuple[Layout, set[int]]) -> None:
    layout, drained = drawn
    sealed = {s for s, segment in layout.segments.items() if segment.state is SegmentState.SEALED}

    assert sealed - drained == undrained_sealed(layout, drained)
