"""Positions that CHECKPOINT consumers store themselves, rule by rule."""

import pytest

from headgate.model import entries as e
from headgate.protocol.request_fields import Behind
from headgate.protocol.requests import RegisterConsumer
from shard.state.shard_state import ShardState
from shard.state.topic import MAX_PRUNED_ENDS, SegmentTail, Topic
from shard.subscriptions.own_positions import own_positions_error
from tests.support.worlds.imported_topic import imported_topic

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
    return RegisterConsumer(
        topic="orders",
        subscription="s",
        consumer="c",
        incarnation=1,
        subscription_type=e.SubscriptionType.CHECKPOINT,
        positions=positions,
        positions_topic_id=positions_topic_id,
        behind=behind,
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
        ([], None),
        ([(1, 5)], None),
        ([(1, 6)], BEYOND),
        ([(2, 9), (1, 6)], BEYOND),
        ([(2, 1)], f"segment 2 of topic 'orders' ends at 0, before position 1: {CAUSE}; start without this position"),
        ([(0, 60)], None),
        ([(0, 10)], f"{PRUNED} its records 10 to 59 are gone, {REMEDY}"),
        ([(0, 900)], f"{PRUNED} its records from 900 on are gone, {REMEDY}"),
        ([(3, 0)], f"topic 'orders' never had segment 3, of position 0: {CAUSE}; start without this position"),
    ],
    ids=[
        "none",
        "end",
        "beyond",
        "the first of two",
        "empty segment",
        "pruned and read",
        "pruned before",
        "beyond the pruned end",
        "never existed",
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


def test_a_segment_that_was_pruned_too_long_ago_counts_as_unread():
    assert "its records from 60 on are gone" in str(own_positions_error(topic(), {}, registration([(0, 60)])))


def test_the_ends_of_the_latest_pruned_segments_are_kept():
    found = topic()
    for segment in range(2, MAX_PRUNED_ENDS + 5):
        found.tails[segment] = SegmentTail(next_offset=segment)
        found.drop_tails([segment])

    assert MAX_PRUNED_ENDS == len(found.pruned_ends)
    assert (MAX_PRUNED_ENDS + 4, 0 in found.pruned_ends) == (found.pruned_ends[MAX_PRUNED_ENDS + 4], False)
