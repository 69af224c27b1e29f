"""Subscriptions of external topics, rule by rule."""

import pytest

from headgate.model import entries as e
from headgate.protocol.replies import ExternalGrant
from headgate.protocol.requests import RegisterConsumer
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.subscriptions.external_topics import (
    acknowledgeable_end,
    external_grant,
    registration_error,
    remaining_at_source,
    seekable_ends,
)
from tests.support.worlds.imported_topic import imported_topic


def topic(positions: e.Positions) -> Topic:
    """Segment 0 is sealed at 10 (or at "read to its end"), segment 1 is active."""
    end_offset = 10 if positions == "offsets" else 1
    sealed = e.ImportedSegment(segment=0, label="a", end_offset=end_offset)
    return imported_topic(sealed, e.ImportedSegment(segment=1, label="b", parents=[0]), positions=positions)


def stored() -> Topic:
    state = ShardState(0)
    state.apply_all([e.TopicCreated(topic_id=1, topic="t", segments=1, token="x")], chunk=1, at_ms=0)
    return state.topics["t"]


def registration(**fields) -> RegisterConsumer:
    given = {"topic": "t", "subscription": "s", "consumer": "c", "incarnation": 1, "subscription_type": "STREAM"}
    return RegisterConsumer(**(given | fields))


@pytest.mark.parametrize(
    ("kind", "request_fields", "creates", "expected"),
    [
        (stored, {}, True, None),
        (stored, {"external": True}, True, "read it with Consumer"),
        (lambda: topic("opaque"), {}, True, "read its source with ExternalConsumer"),
        (lambda: topic("opaque"), {"external": True}, True, "start at 'earliest'"),
        (lambda: topic("opaque"), {"external": True}, False, None),
        (lambda: topic("opaque"), {"external": True, "start": "earliest"}, True, None),
    ],
    ids=[
        "stored",
        "stored, registered as external",
        "external, not registered as such",
        "latest",
        "existing subscription",
        "earliest",
    ],
)
def test_rules_1_and_2_which_registrations_are_allowed(kind, request_fields, creates, expected) -> None:
    reason = registration_error(kind(), registration(**request_fields), creates=creates)

    assert (expected is None) == (reason is None)
    assert expected is None or expected in reason


def test_rule_5_a_seek_goes_at_most_to_the_highest_position_known() -> None:
    """The source may have more, but nothing here knows where a position beyond it leads."""
    imported = topic("offsets")
    subscription = Subscription(imported.topic_id, "t", 3, "s", e.SubscriptionType.STREAM, "strict")
    before = seekable_ends(subscription, imported)
    subscription.progress.positions[1] = 7

    assert before[1] == imported.tails[1].next_offset == 0
    assert seekable_ends(subscription, imported) == {**before, 1: 7}


def test_rules_3_and_4_the_highest_acknowledgeable_offset() -> None:
    assert [10, None] == [acknowledgeable_end(topic("offsets"), segment) for segment in (0, 1)]
    assert [1, 1] == [acknowledgeable_end(topic("opaque"), segment) for segment in (0, 1)]
    assert 0 == acknowledgeable_end(stored(), 0)


@pytest.mark.parametrize(
    ("topic", "segment", "position", "expected"),
    [
        (topic("opaque"), 0, 0, "not read to its end"),
        (topic("offsets"), 0, 4, "acknowledged to 4 of 10 (only its source counts records)"),
        (topic("offsets"), 1, 4, "acknowledged to 4 (only its source counts records)"),
    ],
    ids=["opaque", "sealed", "active"],
)
def test_a_backlog_is_described_where_it_cannot_be_counted(topic: Topic, segment: int, position: int, expected: str):
    assert expected == remaining_at_source(topic, segment, position)


def test_a_grant_names_the_segment_as_its_source_does_and_has_its_checkpoint() -> None:
    given = topic("opaque")
    subscription = Subscription(given.topic_id, "t", 2, "s", e.SubscriptionType.CHECKPOINT, "strict")
    subscription.progress.checkpoints[0] = e.Checkpoint("at 7", 1, 1)

    assert ExternalGrant(label="a", positions="opaque", checkpoint="at 7") == external_grant(subscription, given, 0)
    assert ExternalGrant(label="b", positions="opaque") == external_grant(subscription, given, 1)
    assert external_grant(subscription, stored(), 0) is None
