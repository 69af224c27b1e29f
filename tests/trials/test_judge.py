"""When children waited, by the ledger. The rules of a topic are tested with those of a run: tests/chaos/test_judge.py."""

import pytest

from headgate.model import entries as e
from tests.support.samples.chunks import ledger
from trials import judge

GRANT = {"topic_id": 1, "subscription_id": 2, "consumer": "c"}


STORED: list[list[e.AnyEntry]] = [
    [e.TopicCreated(topic_id=1, topic="t", segments=1, token="x")],
    [
        e.SubscriptionCreated(
            topic_id=1, subscription_id=2, subscription="s", subscription_type="STREAM", order="strict", positions={}
        ),
        e.SegmentGranted(segment=0, generation=1, **GRANT),
        e.RecordsStored(topic_id=1, count=1, placements=[e.Placement(0, 0, 65535, 0, 1)], size_bytes=1),
    ],
    [e.SegmentSplit(topic_id=1, segment=0, end_offset=1, token="y")],
]
ACKNOWLEDGED = e.RecordsAcknowledged(
    topic_id=1, subscription_id=2, seek_generation=0, ranges=[e.AcknowledgedRange(0, 0, 1)]
)


@pytest.mark.parametrize(("early", "violations"), [(False, 0), (True, 1)])
def test_a_child_granted_before_its_parent_is_drained_is_found(early: bool, violations: int) -> None:
    """The time that it was blocked follows from the ledger's timestamps."""
    granted = e.SegmentGranted(segment=1, generation=2, **GRANT)
    steps: list[list[e.AnyEntry]] = [[granted], [ACKNOWLEDGED]] if early else [[ACKNOWLEDGED], [granted]]
    chunks = ledger(*STORED, *steps)

    assert violations == len(judge.children_before_parents(chunks, 0, "t", "s"))
    if not early:
        assert [judge.BlockedSegment(1, (0,), 2.0, 1.0)] == judge.blocked_segments(chunks, 0, "t", "s")


def test_the_release_of_a_child_of_an_idle_segment_counts_from_its_split() -> None:
    """Its grandparent was read long before, and its parent never had a record."""
    chunks = ledger(
        *STORED,
        [ACKNOWLEDGED],
        [e.SegmentGranted(segment=1, generation=2, **GRANT)],
        *([] for _ in range(20)),
        [e.SegmentSplit(topic_id=1, segment=1, end_offset=0, token="z")],
        [e.SegmentGranted(segment=3, generation=3, **GRANT)],
    )

    assert judge.BlockedSegment(3, (1,), 1.0, 1.0) == judge.blocked_segments(chunks, 0, "t", "s")[-1]
