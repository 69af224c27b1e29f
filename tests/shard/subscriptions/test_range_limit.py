"""A QUEUE keeps a limited number of acknowledged ranges, and progress always counts."""

from itertools import count
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS
from headgate.protocol.request_fields import MAX_BATCH_RECORDS
from headgate.protocol.requests import AcknowledgeBatch, Acknowledgement
from shard.state.subscription import Subscription
from shard.subscriptions import acknowledgements
from shard.subscriptions.acknowledgements import MAX_RANGES, MAX_RANGES_PER_SEGMENT, RangeLimit, judge
from tests.support.worlds.command_shard import imported_topic

IDS = {"topic_id": 1, "subscription_id": 2}
RECORDS = 40
MAX_KEPT = 3
"""Ranges in one bucket."""


class Queue:
    """Consumer ada holds segment 0 of 40 records, or its bucket ranges that end at ``ends``."""

    def __init__(self, *ends: int) -> None:
        segments = [e.ImportedSegment(segment=n, label=f"s{n}", parents=[], end_offset=RECORDS) for n in range(2)]
        self.topic = imported_topic(*segments)
        created = e.SubscriptionCreated(**IDS, subscription="s", subscription_type="QUEUE", order="none", positions={})
        self.subscription = Subscription.created(created, "t")
        self._apply(e.ConsumerRegistered(**IDS, consumer="ada", incarnation=1, client_id="c"))
        for generation, (first, end) in enumerate(zip((0, *ends), (*ends, KEY_BUCKETS), strict=True), start=1):
            held = {"first_bucket": first, "end_bucket": end} if ends else {}
            self._apply(e.SegmentGranted(**IDS, segment=0, consumer="ada", generation=generation, **held))
        self.max_ranges = 2 * MAX_KEPT * (KEY_BUCKETS if ends else 1)

    def _apply(self, entry: e.AnyEntry) -> None:
        self.subscription.apply(entry, 0)

    def acknowledge(self, *ranges: tuple[int, int], generation: int = 1) -> list[tuple[int, str]]:
        parts = [Acknowledgement(0, generation, first, end) for first, end in ranges]
        batch = AcknowledgeBatch(topic="t", subscription="s", consumer="ada", incarnation=1, acknowledgements=parts)
        with patch.object(acknowledgements, "MAX_RANGES", self.max_ranges):
            judgement = judge(self.subscription, self.topic, batch)
        assert judgement.over_limit == len(judgement.rejected)
        if judgement.entry is not None:
            self._apply(judgement.entry)
        return judgement.rejected

    def kept(self) -> list[int]:
        """Return the number of ranges in each bucket."""
        return [
            len(self.subscription.progress.acknowledged_in(0, bucket).acknowledged_ranges)
            for bucket in range(KEY_BUCKETS)
        ]


@pytest.fixture
def full() -> Queue:
    queue = Queue()
    assert queue.acknowledge((2, 3), (4, 5), (6, 7)) == []
    return queue


def test_an_acknowledgement_that_opens_one_gap_too_many_is_rejected(full: Queue) -> None:
    ((index, reason),) = full.acknowledge((9, 10))

    assert (index, "3 acknowledged ranges" in reason) == (0, True)
    assert full.kept()[0] == MAX_KEPT


@pytest.mark.parametrize("ranges", [(7, 8), (3, 4), (5, 9), (0, 1), (0, 40)])
def test_at_the_limit_progress_counts(full: Queue, ranges: tuple[int, int]) -> None:
    assert full.acknowledge(ranges) == []
    assert full.kept()[0] <= MAX_KEPT


def test_the_gaps_of_one_batch_count_together_and_a_range_at_the_position_of_the_segment_opens_none() -> None:
    assert [3, 4] == [index for index, _ in Queue().acknowledge((2, 3), (4, 5), (6, 7), (8, 9), (10, 11))]
    queue = Queue()
    assert queue.acknowledge((0, 1), (2, 3), (4, 5), (6, 7)) == []
    assert queue.kept()[0] == MAX_KEPT


def test_at_the_limit_of_its_buckets_a_range_at_their_position_counts() -> None:
    """The position of the segment is lower, because that of other buckets is."""
    queue = Queue(8)
    assert queue.acknowledge((0, 2), (4, 5), (6, 7), (8, 9), generation=1) == []

    assert queue.acknowledge((2, 3), generation=1) == []


def test_the_key_buckets_of_a_shared_segment_divide_its_limit() -> None:
    queue = Queue(8)
    assert queue.acknowledge((2, 3), (4, 5), (6, 7), generation=1) == []
    assert len(queue.acknowledge((8, 9), generation=1)) == 1
    assert queue.acknowledge((8, 9), generation=2) == []

    assert queue.kept() == [MAX_KEPT] * 8 + [1] * 8


@pytest.mark.parametrize(("segments", "ranges"), [(0, 10_000), (40, 10_000), (41, 9756), (4096, 97)])
def test_a_subscription_keeps_400_000_ranges_and_a_segment_10_000(segments: int, ranges: int) -> None:
    limit = RangeLimit(Queue().subscription, segments)

    assert ranges == next(n for n in count() if limit.admit(0, 2 * n + 1, 2 * n + 2) is not None)
    assert MAX_RANGES == 400_000
    assert MAX_RANGES_PER_SEGMENT >= MAX_BATCH_RECORDS
    assert MAX_RANGES // 4096 >= 64


RANGE = st.tuples(st.integers(0, RECORDS - 1), st.integers(1, 5)).map(
    lambda drawn: (drawn[0], min(RECORDS, sum(drawn)))
)


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(RANGE, max_size=8)), max_size=12), st.booleans())
def test_no_batches_exceed_the_limit(batches: list[tuple[int, list[tuple[int, int]]]], shared: bool) -> None:
    queue = Queue(5, 9) if shared else Queue()
    for generation, ranges in batches:
        queue.acknowledge(*ranges, generation=generation if shared else 1)
        assert max(queue.kept()) <= MAX_KEPT
