"""The backlog that every report shows. Status and shared segments: tests/coordinator/test_coordinator_sharing.py."""

import pytest

from headgate.model import entries as e
from headgate.model.hashing import BucketRange, SegmentSlice
from headgate.protocol.backlog import RecordCount
from shard.reporting.progress import unacknowledged
from shard.state.progress import Progress
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from tests.support.worlds.imported_topic import imported_topic


def stored() -> Topic:
    """A topic with one segment of 20 000 records."""
    topic = imported_topic(e.ImportedSegment(segment=0, label="a", end_offset=20_000))
    topic.external = None
    return topic


def external(positions: e.Positions, end_offset: int | None = 500) -> Topic:
    return imported_topic(e.ImportedSegment(segment=0, label="a", end_offset=end_offset), positions=positions)


def subscription(kind: e.SubscriptionType | None, position: int = 0) -> Subscription:
    return Subscription(1, "t", 2, "s", kind, "strict", progress=Progress({0: position}))


STREAM, CHECKPOINT = e.SubscriptionType.STREAM, e.SubscriptionType.CHECKPOINT


@pytest.mark.parametrize(
    ("topic", "kind", "position", "expected"),
    [
        (stored(), STREAM, 15_589, RecordCount(4411)),
        (stored(), CHECKPOINT, 0, None),
        (stored(), None, 0, None),
        (external("offsets"), STREAM, 499, None),
        (external("offsets"), STREAM, 500, RecordCount(0)),
        (external("offsets", None), STREAM, 500, None),
        (external("opaque"), STREAM, 0, None),
        (external("opaque"), STREAM, 1, RecordCount(0)),
    ],
    ids=[
        "stored",
        "CHECKPOINT",
        "type unknown",
        "before the end of a source",
        "at the end of a source",
        "active segment of a source",
        "opaque and unread",
        "opaque and read",
    ],
)
def test_only_what_the_leader_can_count_is_a_number(
    topic: Topic, kind: e.SubscriptionType | None, position: int, expected: RecordCount | None
) -> None:
    assert unacknowledged(subscription(kind, position), topic, 0) == expected


@pytest.mark.parametrize("topic", [external("offsets"), external("opaque")], ids=["offsets", "opaque"])
def test_nothing_is_left_in_a_drained_segment(topic: Topic) -> None:
    """Its tables may show that it is drained while headgate knows no acknowledgement."""
    drained = subscription(STREAM)
    drained.drained.add(0)

    assert unacknowledged(drained, topic, 0) == RecordCount(0)


@pytest.mark.parametrize(("segment_slice", "expected"), [(0, (16, False)), (BucketRange(0, 4, 8), (4, True))])
def test_a_part_of_a_segment_is_estimated(segment_slice: SegmentSlice, expected: tuple[int, bool]) -> None:
    assert unacknowledged(subscription(STREAM, 19_984), stored(), segment_slice) == expected
