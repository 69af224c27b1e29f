"""Decides which acknowledgements of a batch count, and returns one entry for all that do. Pure.

For each acknowledgement, the first matching rule applies:

1. CHECKPOINT subscriptions keep their own positions and acknowledge nothing.
2. The consumer must be registered, with this incarnation.
3. The consumer must hold the segment at this generation. A revoked holder holds it until it is
   released. The holder of a bucket range acknowledges for its buckets only.
4. The end offset must not lie beyond the last record: the segment would count as drained before the
   rest is written. The source of an external topic writes, so there an active segment may be acknowledged to any
   offset, a sealed one to its end. With opaque positions, position 1 means "read to its end". It may come before the
   seal is imported: a reader sees the final end first.
5. QUEUE acknowledges ranges of at least one record. STREAM is cumulative: the first offset is
   ignored, and an end below the position changes nothing.
6. QUEUE acknowledges the present delivery of a record. An earlier one has ended: the record is delivered again.
7. QUEUE acknowledges a limited number of ranges (`RangeLimit`).
8. STREAM: the parked records that it covers can be kept (shard.subscriptions.parking).

The checkpoint of an external segment counts if an acknowledgement of it in the same batch does, and
unless a later batch of the same grant has brought another: a broker may deliver a batch late, or twice.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, SegmentSlice, bucket_bounds, buckets_of, segment_of, slice_of
from headgate.protocol.requests import AcknowledgeBatch, Acknowledgement
from shard.state.redelivery import OffsetSearch
from shard.state.subscription import Subscription
from shard.state.topic import TopicView
from shard.subscriptions.deliveries import record_limit
from shard.subscriptions.parking import ParkedInBatch
from shard.subscriptions.registration import Claims, consumer_error

MAX_RANGES: Final = 400_000
MAX_RANGES_PER_SEGMENT: Final = 10_000


def acknowledgeable_end(topic: TopicView, segment: int) -> int | None:
    """Return the highest end offset that may be acknowledged in ``segment`` (rule 4); None: no limit."""
    if topic.external is None:
        return topic.tails[segment].next_offset
    return topic.external.max_end_offset(topic.layout.segments[segment])


class RangeLimit:
    """The ranges that one batch may add. Neighboring new ranges count as two, so a full segment may look fuller.

    Each gap between two ranges costs memory in the leader and in every snapshot, and a grant names all ranges of its
    segment. So a subscription has at most `MAX_RANGES` of them, which its segments divide equally, and one segment at
    most `MAX_RANGES_PER_SEGMENT`. The key buckets of a shared segment divide those of the segment.

    At the limit an acknowledgement counts only if it does not open another gap: progress always counts.
    A record of which the acknowledgement does not count is delivered again, as in Pulsar, which stores
    10 000 ranges (``managedLedgerMaxUnackedRangesToPersist``).
    """

    def __init__(self, subscription: Subscription, segments: int) -> None:
        """``segments``: how many divide `MAX_RANGES`."""
        self._subscription = subscription
        self._limit = min(MAX_RANGES_PER_SEGMENT, MAX_RANGES // max(1, segments))
        self._opened: Counter[SegmentSlice] = Counter()
        """Slice → gaps that this batch opens."""

    def admit(self, held: SegmentSlice, first_offset: int, end_offset: int) -> int | None:
        """Return the limit if this acknowledgement of a holder would exceed it; None: it may count."""
        segment = segment_of(held)
        if first_offset <= self._subscription.position(segment):
            return None
        buckets, limit = [self._subscription.progress.acknowledged_in(segment, 0)], self._limit
        if segment in self._subscription.progress.progress_by_bucket or segment != held:
            buckets = [self._subscription.progress.acknowledged_in(segment, bucket) for bucket in buckets_of(held)]
            limit //= KEY_BUCKETS
        fullest = max(len(bucket.acknowledged_ranges) for bucket in buckets)
        if fullest + self._opened[held] < limit:
            self._opened[held] += 1
            return None
        if all(
            first_offset <= bucket.position or bucket.acknowledged_ranges.touches(first_offset, end_offset)
            for bucket in buckets
        ):
            return None
        return limit


@dataclass(frozen=True, slots=True)
class AcknowledgementJudgement:
    entry: e.RecordsAcknowledged | None
    """None: nothing counts."""
    rejected: list[tuple[int, str]]
    """(index in the batch, reason) of the acknowledgements that do not count."""
    over_limit: int
    """Those of them that rule 7 rejects."""
    parked_again: list[e.AnyEntry]
    """What comes before the entry."""


def judge(subscription: Subscription, topic: TopicView, batch: AcknowledgeBatch) -> AcknowledgementJudgement:
    consumer_error = _consumer_error(subscription, batch)
    rules = _Judge(subscription, topic, batch.consumer, RangeLimit(subscription, len(topic.tails)))
    parking = ParkedInBatch(subscription, topic, batch, record_limit(topic))
    ranges: list[e.AcknowledgedRange] = []
    generations: dict[int, int] = {}
    rejected: list[tuple[int, str]] = []
    for index, acknowledgement in enumerate(batch.acknowledgements):
        accepted = consumer_error or rules.accept(acknowledgement)
        if subscription.type == e.SubscriptionType.STREAM and isinstance(accepted, e.AcknowledgedRange):
            held = slice_of(accepted.segment, accepted.first_bucket, accepted.end_bucket)
            accepted = parking.accept(acknowledgement, held) or accepted
        if isinstance(accepted, str):
            rejected.append((index, accepted))
        else:
            ranges.append(accepted)
            generations[accepted.segment] = acknowledgement.generation
    entry = e.RecordsAcknowledged(
        **subscription.ids,
        seek_generation=subscription.seek_generation,
        ranges=ranges,
        checkpoints=_newer_checkpoints(subscription, batch, generations),
        parked=parking.parked,
        resumed=parking.resumed,
    )
    return AcknowledgementJudgement(entry if ranges else None, rejected, rules.over_limit, parking.parked_again)


def _newer_checkpoints(
    subscription: Subscription, batch: AcknowledgeBatch, generations: dict[int, int]
) -> dict[int, e.Checkpoint]:
    """Return the checkpoints of ``batch`` that count. ``generations``: segment → the grant it is acknowledged under."""
    newer: dict[int, e.Checkpoint] = {}
    for segment in sorted(batch.checkpoints.keys() & generations.keys()):
        given = e.Checkpoint(batch.checkpoints[segment], generations[segment], batch.number)
        known = subscription.progress.checkpoints.get(segment)
        if known is None or (given.generation, given.number) > (known.generation, known.number):
            newer[segment] = given
    return newer


def _consumer_error(subscription: Subscription, batch: AcknowledgeBatch) -> str | None:
    """Return why nothing in ``batch`` counts (rules 1 and 2), if that is so."""
    if subscription.type == e.SubscriptionType.CHECKPOINT:
        return f"subscription {subscription.name!r} is of type CHECKPOINT: its consumers keep their own positions"
    return consumer_error(subscription, batch.consumer, batch.incarnation)


class _Judge:
    def __init__(self, subscription: Subscription, topic: TopicView, consumer: str, range_limit: RangeLimit) -> None:
        self._subscription = subscription
        self._topic = topic
        self._range_limit = range_limit
        self._claims = Claims(subscription, consumer)
        self._attempts = OffsetSearch(subscription.redelivery.attempts)
        self.over_limit = 0
        """Acknowledgements that rule 7 rejected."""

    def accept(self, acknowledgement: Acknowledgement) -> e.AcknowledgedRange | str:
        """Return the range that ``acknowledgement`` adds, or why it does not count (rules 3 to 7)."""
        subscription, segment = self._subscription, acknowledgement.segment
        first_offset, end_offset = acknowledgement.first_offset, acknowledgement.end_offset
        held = self._claims.held(segment, acknowledgement.generation)
        if isinstance(held, str):
            return held
        limit = acknowledgeable_end(self._topic, segment)
        if limit is not None and end_offset > limit:
            return f"segment {segment} ends at {limit}; offset {end_offset} is beyond it"
        if subscription.type != e.SubscriptionType.QUEUE:
            first_offset = 0
        elif first_offset >= end_offset:
            return f"range {first_offset} to {end_offset} of segment {segment} is empty"
        elif (ended := self._ended_delivery(held, acknowledgement)) is not None:
            return f"delivery {acknowledgement.delivery} of offset {ended} of segment {segment} has ended"
        elif (ranges := self._range_limit.admit(held, first_offset, end_offset)) is not None:
            self.over_limit += 1
            return (
                f"segment {segment} has {ranges} acknowledged ranges with gaps between them, the most that are kept: "
                "acknowledge the records in the gaps first; this one is delivered again"
            )
        return e.AcknowledgedRange(segment, first_offset, end_offset, *bucket_bounds(held))

    def _ended_delivery(self, held: SegmentSlice, acknowledgement: Acknowledgement) -> int | None:
        """Return the first offset of which another delivery is the present one (rule 6)."""
        first_offset, end_offset = acknowledgement.first_offset, acknowledgement.end_offset
        for offset in self._attempts.within(acknowledgement.segment, first_offset, end_offset):
            known = self._subscription.redelivery.of(acknowledgement.segment, offset)
            present = known is None or (known.failures + 1 == acknowledgement.delivery and not known.dead_letter)
            if known is not None and known.bucket in buckets_of(held) and not present:
                return offset
        return None
