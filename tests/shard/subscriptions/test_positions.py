"""Positions after a seek, rule by rule, then over random layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.layout import Layout, SegmentState
from headgate.protocol.replies import ExternalGrant
from headgate.protocol.request_fields import Behind
from headgate.protocol.requests import RegisterConsumer
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import MAX_PRUNED_ENDS, SegmentTail, Topic
from shard.subscriptions.gate import compute_gate, drained_without_count
from shard.subscriptions.positions import (
    SeekTarget,
    external_grant,
    own_positions_error,
    registration_error,
    remaining_at_source,
    seek_positions,
    seekable_ends,
)
from tests.support.samples.layouts import END_OFFSET, layouts
from tests.support.worlds.command_shard import imported_topic

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


def test_rule_4_a_segment_without_a_position_is_not_read_unless_it_is_empty() -> None:
    found = [
        seek_positions({1: 2}, layout=split, ends={0: end, 1: 5, 2: 5}, positions={}, gated=True)
        for end, split in ((end, Layout.initial(1, 0).split(0, end, 0)) for end in (0, 1))
    ]
    assert {1: 2} == found[0]
    assert "unread records of segment 0 (0 of 1)" in str(found[1])


def test_rule_4_the_first_record_alone_is_no_position_after_unread_records() -> None:
    assert "segment 3 at 1 comes after unread records of segment 1 (4 of 7)" in seek({3: 1}, {0: 5, 1: 4})


PRUNED = "segment 0 of topic 'orders' was pruned before it was read:"
REMEDY = (
    'and the first kept ones begin at offset 0 of segment 1, 2; continue there with behind="continue", and raise '
    "retention.checkpoint_retention_seconds"
)
CAUSE = "the ledger was restored from an older backup, or the topic was created again"
BEYOND = f"segment 1 of topic 'orders' ends at 5, before position 6: {CAUSE}; start without this position"


def registration(
    positions: list[tuple[int, int]], positions_topic_id: int | None = 1, behind: Behind = "error"
) -> RegisterConsumer:
    own = {"positions": positions, "positions_topic_id": positions_topic_id, "behind": behind}
    kind = e.SubscriptionType.CHECKPOINT
    return RegisterConsumer(
        topic="orders", subscription="s", consumer="c", incarnation=1, subscription_type=kind, **own
    )


def topic() -> Topic:
    """Segments 1 and 2 replaced segment 0, which is pruned and ended at 60; segment 1 ends at 5, segment 2 at 0."""
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="orders", segments=1, token="x")], chunk=1, at_ms=0)
    found = state.topics["orders"]
    found.tails[0].next_offset = 60
    entries = [
        e.SegmentSplit(topic_id=1, segment=0, end_offset=60, token=""),
        e.SegmentsPruned(topic_id=1, segments=[0]),
    ]
    state.apply_all(entries, chunk=2, at_ms=0)
    found.tails[1].next_offset = 5
    return found


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        pytest.param([], None, id="none"),
        pytest.param([(1, 5)], None, id="end"),
        pytest.param([(1, 6)], BEYOND, id="beyond"),
        pytest.param([(2, 9), (1, 6)], BEYOND, id="the first of two"),
        pytest.param(
            [(2, 1)],
            f"segment 2 of topic 'orders' ends at 0, before position 1: {CAUSE}; start without this position",
            id="empty segment",
        ),
        pytest.param([(0, 60)], None, id="pruned and read"),
        pytest.param([(0, 10)], f"{PRUNED} its records 10 to 59 are gone, {REMEDY}", id="pruned before"),
        pytest.param([(0, 900)], f"{PRUNED} its records from 900 on are gone, {REMEDY}", id="beyond the pruned end"),
        pytest.param(
            [(3, 0)],
            f"topic 'orders' never had segment 3, of position 0: {CAUSE}; start without this position",
            id="never existed",
        ),
    ],
)
def test_a_position_exists_or_is_refused_with_the_end(positions, expected):
    found = topic()
    assert expected == own_positions_error(found, found.pruned_ends, registration(positions))


@pytest.mark.parametrize(("positions", "refused"), [([(0, 10)], False), ([(0, 900)], True), ([(3, 0)], True)])
def test_a_consumer_that_continues_passes_over_pruned_segments_only(positions: list[tuple[int, int]], refused: bool):
    found = topic()
    assert refused == bool(own_positions_error(found, found.pruned_ends, registration(positions, behind="continue")))


@pytest.mark.parametrize(("ends", "refused"), [({1: 5}, True), ({1: 0}, False), ({}, True)])
def test_a_segment_that_was_created_and_pruned_since_is_unread_unless_it_was_empty(ends: dict[int, int], refused: bool):
    found = topic()
    del found.tails[1]
    error = own_positions_error(found, {0: 60, **ends}, registration([(0, 60)]))
    assert refused == ("segment 1 of topic 'orders' was created and pruned since" in str(error))
    assert own_positions_error(found, {0: 60, **ends}, registration([(0, 60)]), alone=False) is None


def test_positions_of_an_external_topic_are_not_judged():
    external = imported_topic(e.ImportedSegment(segment=0, label="a"), positions="offsets")
    assert own_positions_error(external, {}, registration([(0, 9), (7, 1)])) is None


def test_positions_of_a_deleted_topic_name_both_topics():
    request = registration([(1, 0)], positions_topic_id=7)
    assert (
        "these positions are of topic 'orders' with id 7, which was deleted: the present topic has id 1, and other "
        "records; start without positions"
    ) == own_positions_error(topic(), {}, request)


def test_the_ends_of_the_latest_pruned_segments_are_kept_and_others_count_as_unread():
    assert "its records from 60 on are gone" in str(own_positions_error(topic(), {}, registration([(0, 60)])))
    found = topic()
    for segment in range(2, MAX_PRUNED_ENDS + 5):
        found.tails[segment] = SegmentTail(next_offset=segment)
        found.drop_tails([segment])

    assert MAX_PRUNED_ENDS == len(found.pruned_ends)
    assert (MAX_PRUNED_ENDS + 4, 0 in found.pruned_ends) == (found.pruned_ends[MAX_PRUNED_ENDS + 4], False)


def external_topic(positions: e.Positions) -> Topic:
    """Segment 0 is sealed at 10 (or at "read to its end"), segment 1 is active."""
    end_offset = 10 if positions == "offsets" else 1
    sealed = e.ImportedSegment(segment=0, label="a", end_offset=end_offset)
    return imported_topic(sealed, e.ImportedSegment(segment=1, label="b", parents=[0]), positions=positions)


def stored() -> Topic:
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="t", segments=1, token="x")], chunk=1, at_ms=0)
    return state.topics["t"]


@pytest.mark.parametrize(
    ("kind", "request_fields", "creates", "expected"),
    [
        (stored, {}, True, None),
        (stored, {"external": True}, True, "read it with Consumer"),
        (lambda: external_topic("opaque"), {}, True, "read its source with ExternalConsumer"),
        (lambda: external_topic("opaque"), {"external": True}, True, "start at 'earliest'"),
        (lambda: external_topic("opaque"), {"external": True}, False, None),
        (lambda: external_topic("opaque"), {"external": True, "start": "earliest"}, True, None),
    ],
)
def test_rules_1_and_2_which_registrations_are_allowed(kind, request_fields, creates, expected) -> None:
    given = {"topic": "t", "subscription": "s", "consumer": "c", "incarnation": 1, "subscription_type": "STREAM"}
    reason = registration_error(kind(), RegisterConsumer(**(given | request_fields)), creates=creates)

    assert (expected is None) == (reason is None)
    assert expected is None or expected in reason


def test_rule_3_a_seek_goes_at_most_to_the_highest_position_known() -> None:
    """The source may have more, but nothing here knows where a position beyond it leads."""
    imported = external_topic("offsets")
    subscription = Subscription(imported.topic_id, "t", 3, "s", e.SubscriptionType.STREAM, "strict")
    before = seekable_ends(subscription, imported)
    subscription.progress.positions[1] = 7

    assert before[1] == imported.tails[1].next_offset == 0
    assert seekable_ends(subscription, imported) == {**before, 1: 7}


@pytest.mark.parametrize(
    ("topic", "segment", "position", "expected"),
    [
        (external_topic("opaque"), 0, 0, "not read to its end"),
        (external_topic("offsets"), 0, 4, "acknowledged to 4 of 10 (only its source counts records)"),
        (external_topic("offsets"), 1, 4, "acknowledged to 4 (only its source counts records)"),
    ],
)
def test_a_backlog_is_described_where_it_cannot_be_counted(topic: Topic, segment: int, position: int, expected: str):
    assert expected == remaining_at_source(topic, segment, position)


def test_a_grant_names_the_segment_as_its_source_does_and_has_its_checkpoint() -> None:
    given = external_topic("opaque")
    subscription = Subscription(given.topic_id, "t", 2, "s", e.SubscriptionType.CHECKPOINT, "strict")
    subscription.progress.checkpoints[0] = e.Checkpoint("at 7", 1, 1)

    assert ExternalGrant(label="a", positions="opaque", checkpoint="at 7") == external_grant(subscription, given, 0)
    assert ExternalGrant(label="b", positions="opaque") == external_grant(subscription, given, 1)
    assert external_grant(subscription, stored(), 0) is None
