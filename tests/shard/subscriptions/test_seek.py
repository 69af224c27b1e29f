"""Positions after a seek, rule by rule, then over random layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.layout import Layout, SegmentState
from shard.subscriptions.gate import compute_gate, drained_without_count
from shard.subscriptions.seek import SeekTarget, seek_positions
from tests.support.samples.layouts import END_OFFSET, layouts

ENDS = {0: 5, 1: 7, 2: 3, 3: 4, 4: 6}


def layout() -> Layout:
    """0 → 1, 2 and then 1 → 3, 4: 2, 3 and 4 are active."""
    return Layout.initial(1, 0).split(0, 5, 0).split(1, 7, 0)


def seek(wanted: SeekTarget, positions: dict[int, int] | None = None, *, gated: bool = True) -> dict[int, int] | str:
    return seek_positions(wanted, layout=layout(), ends=ENDS, positions=positions or {}, gated=gated)


@pytest.mark.parametrize(
    ("wanted", "positions", "gated", "expected"),
    [
        pytest.param("earliest", ENDS, True, dict.fromkeys(range(5), 0), id="1: earliest is each first record"),
        pytest.param("latest", {}, True, ENDS, id="1: latest is each current end"),
        pytest.param({2: 3}, ENDS, True, {2: 3}, id="2: the end is a valid position"),
        pytest.param({0: 2}, ENDS, True, {0: 2, 1: 0, 2: 0, 3: 0, 4: 0}, id="3: descendants at any depth restart"),
        pytest.param({1: 6}, ENDS, True, {1: 6, 3: 0, 4: 0}, id="3: only descendants restart"),
        pytest.param({1: 7}, ENDS, True, {1: 7}, id="3: a position at the end moves no descendant"),
        pytest.param({0: 2}, ENDS, False, {0: 2}, id="3: without a gate only named segments move"),
        pytest.param({3: 2, 0: 5, 1: 7}, {0: 1}, True, {0: 5, 1: 7, 3: 2}, id="4: named ancestors may be skipped"),
        pytest.param({3: 0}, {}, True, {3: 0}, id="4: position zero is always valid"),
        pytest.param({3: 2}, {}, False, {3: 2}, id="4: without a gate any position is valid"),
        pytest.param({2: 1}, {0: 5, 1: 4, 2: 3}, True, {2: 1}, id="5: other segments keep their positions"),
    ],
)
def test_rules_1_to_5_the_new_positions(
    wanted: SeekTarget, positions: dict[int, int], gated: bool, expected: dict[int, int]
) -> None:
    assert expected == seek(wanted, positions, gated=gated)


def test_rule_1_earliest_covers_the_segments_that_still_exist() -> None:
    pruned = layout().prune([0])

    assert dict.fromkeys(range(1, 5), 0) == seek_positions(
        "earliest", layout=pruned, ends=ENDS, positions={}, gated=True
    )


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({}, "no position is given"),
        ({9: 0}, "there is no segment 9; the segments are 0, 1, 2, 3, 4"),
        ({2: 4}, "segment 2 ends at 3; 4 is beyond it: choose 0 to 3"),
        ({0: 0, 2: 4}, "segment 2 ends at 3; 4 is beyond it: choose 0 to 3"),
    ],
    ids=["nothing", "unknown segment", "beyond the end", "one of two beyond the end"],
)
@pytest.mark.parametrize("gated", [True, False])
def test_rule_2_an_impossible_position_is_rejected_with_the_choices(wanted: dict[int, int], reason: str, gated: bool):
    assert reason in seek(wanted, ENDS, gated=gated)


def test_rule_4_unread_records_are_not_skipped_implicitly() -> None:
    reason = seek({3: 2}, {0: 5, 1: 4})

    assert "segment 3 at 2 comes after unread records of segment 1 (4 of 7)" in reason
    assert "choose 3=0, or add 1=7 to skip 3 records" in reason


def test_rule_4_every_unread_ancestor_is_named() -> None:
    reason = seek({3: 2}, {0: 1})

    assert "comes after unread records of segment 0 (1 of 5), 1 (0 of 7)" in reason
    assert "add 0=5 1=7 to skip 11 records" in reason


def test_rule_4_an_ancestor_moved_back_by_the_same_seek_counts() -> None:
    """Whether it is named or a descendant of a named segment."""
    assert "of segment 1 (6 of 7)" in seek({3: 2, 1: 6}, ENDS)
    assert "of segment 0 (4 of 5), 1 (0 of 7)" in seek({3: 2, 0: 4}, ENDS)


@st.composite
def seeks(draw: st.DrawFn) -> tuple[Layout, dict[int, int], dict[int, int], SeekTarget]:
    """Draw a layout, its ends, the current positions, and a seek target within the ends."""
    graph = draw(layouts())
    ends = {
        s: END_OFFSET if segment.state is SegmentState.SEALED else draw(st.integers(0, END_OFFSET))
        for s, segment in graph.segments.items()
    }
    choices = {s: st.sampled_from([0, end // 2, end]) for s, end in ends.items()}
    positions = {s: draw(choice) for s, choice in choices.items()}
    named = draw(st.sets(st.sampled_from(sorted(ends)), min_size=1))
    to = draw(st.sampled_from(["earliest", "latest", None, None, None]))
    return graph, ends, positions, to or {s: draw(choices[s]) for s in sorted(named)}


@given(seeks())
def test_an_accepted_seek_leaves_no_position_after_unread_records(drawn) -> None:
    """Positions are within the ends, named ones are as requested, and no segment precedes its ancestors."""
    graph, ends, before, wanted = drawn
    moved = seek_positions(wanted, layout=graph, ends=ends, positions=before, gated=True)
    if isinstance(moved, str):
        assert not isinstance(wanted, str), "a named target is always accepted"
        return

    assert moved.keys() <= graph.segments.keys()
    assert all(0 <= offset <= ends[segment] for segment, offset in moved.items())
    if not isinstance(wanted, str):
        assert wanted.items() <= moved.items()
    after = {**before, **moved}
    unread = {s for s in graph.segments if after[s] < ends[s]}
    for segment in moved:
        assert after[segment] == 0 or not graph.ancestors(segment) & unread
    # Segments that did not move may have been read already. They wait like all others.
    drained = {s for s in graph.segments if s not in unread and graph.segments[s].state is SegmentState.SEALED}
    assert set(drained_without_count(graph, set(), "STREAM", moved)) <= drained
    gate = compute_gate(graph, drained, "STREAM", "strict")
    assert all(not graph.ancestors(segment) & unread for segment in gate.grantable)


@given(seeks())
def test_only_named_segments_skip_records(drawn) -> None:
    graph, ends, before, wanted = drawn
    moved = seek_positions(wanted, layout=graph, ends=ends, positions=before, gated=True)
    if isinstance(moved, str) or isinstance(wanted, str):
        return

    assert all(segment in wanted for segment, offset in moved.items() if offset > before[segment])


def test_rule_4_a_segment_without_a_position_is_not_read() -> None:
    split = Layout.initial(1, 0).split(0, 1, 0)
    reason = seek_positions({1: 2}, layout=split, ends={0: 1, 1: 5, 2: 5}, positions={}, gated=True)

    assert "unread records of segment 0 (0 of 1)" in reason


def test_rule_4_the_first_record_alone_is_no_position_after_unread_records() -> None:
    assert "segment 3 at 1 comes after unread records of segment 1 (4 of 7)" in seek({3: 1}, {0: 5, 1: 4})


def test_rule_4_an_empty_ancestor_without_a_position_has_no_unread_records() -> None:
    split = Layout.initial(1, 0).split(0, 0, 0)

    assert {1: 2} == seek_positions({1: 2}, layout=split, ends={0: 0, 1: 5, 2: 5}, positions={}, gated=True)
