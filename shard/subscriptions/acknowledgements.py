"""Decides which acknowledgements of a batch count, and returns one entry for all that do. Pure.

For each acknowledgement, the first matching rule applies:

1. CHECKPOINT subscriptions keep their own positions and acknowledge nothing.
2. The consumer must be registered, with this incarnation.
3. The consumer must hold the segment at this generation. A revoked holder holds it until it is
   released. The holder of a bucket range acknowledges for its buckets only.
4. The end offset must not lie beyond the last record: the segment would count as drained before the
   rest is written. (External topics: shard.subscriptions.external_topics.)
5. QUEUE acknowledges ranges of at least one record. STREAM is cumulative: the first offset is
   ignored, and an end below the position changes nothing.
6. QUEUE acknowledges a limited number of ranges (shard.subscriptions.range_limit).

The checkpoint of an external segment counts if an acknowledgement of it in the same batch does, and
unless a later batch of the same grant has brought another: a broker may deliver a batch late, or twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model import entries as e
from headgate.model.bucket_ranges import bucket_bounds, segment_of
from headgate.protocol import messages as m
from shard.state.subscription import Subscription
from shard.state.topic_view import TopicView
from shard.subscriptions.external_topics import acknowledgeable_end
from shard.subscriptions.range_limit import MAX_RANGES, RangeLimit


@dataclass(frozen=True, slots=True)
class AcknowledgementJudgement:
    """The outcome of one batch."""

    entry: e.RecordsAcknowledged | None
    """None: nothing counts."""
    rejected: list[tuple[int, str]]
    """(index in the batch, reason) of the acknowledgements that do not count."""
    over_limit: int
    """Those of them that rule 6 rejects."""


def judge(
    subscription: Subscription, topic: TopicView, batch: m.AcknowledgeBatch, *, max_ranges: int = MAX_RANGES
) -> AcknowledgementJudgement:
    """Return the entry for ``batch``, and the acknowledgements that do not count."""
    consumer_error = _consumer_error(subscription, batch)
    rules = _Judge(subscription, topic, batch.consumer, RangeLimit(subscription, len(topic.tails), max_ranges))
    ranges: list[e.AcknowledgedRange] = []
    generations: dict[int, int] = {}
    rejected: list[tuple[int, str]] = []
    for index, acknowledgement in enumerate(batch.acknowledgements):
        accepted = consumer_error or rules.accept(acknowledgement)
        if isinstance(accepted, str):
            rejected.append((index, accepted))
        else:
            ranges.append(accepted)
            generations[accepted.segment] = acknowledgement.generation
    entry = e.RecordsAcknowledged(
        topic_id=subscription.topic_id,
        subscription_id=subscription.subscription_id,
        seek_generation=subscription.seek_generation,
        ranges=ranges,
        checkpoints=_newer_checkpoints(subscription, batch, generations),
    )
    return AcknowledgementJudgement(entry if ranges else None, rejected, rules.over_limit)


def _newer_checkpoints(
    subscription: Subscription, batch: m.AcknowledgeBatch, generations: dict[int, int]
) -> dict[int, e.Checkpoint]:
    """Return the checkpoints of ``batch`` that count. ``generations``: segment → the grant it is acknowledged under."""
    newer: dict[int, e.Checkpoint] = {}
    for segment in sorted(batch.checkpoints.keys() & generations.keys()):
        given = e.Checkpoint(batch.checkpoints[segment], generations[segment], batch.number)
        known = subscription.checkpoints.get(segment)
        if known is None or (given.generation, given.number) > (known.generation, known.number):
            newer[segment] = given
    return newer


def _consumer_error(subscription: Subscription, batch: m.AcknowledgeBatch) -> str | None:
    """Return why nothing in ``batch`` counts (rules 1 and 2), if that is so."""
    if subscription.type == e.SubscriptionType.CHECKPOINT:
        return f"subscription {subscription.name!r} is of type CHECKPOINT: its consumers keep their own positions"
    known = subscription.consumers.get(batch.consumer)
    if known is None:
        return f"consumer {batch.consumer!r} is not registered"
    if known.incarnation != batch.incarnation:
        return f"consumer {batch.consumer!r} is now incarnation {known.incarnation}, not {batch.incarnation}"
    return None


class _Holders:
    """Describes the holders of each segment, for rejections. They are sorted once for a whole batch."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._described: dict[int, str] | None = None

    def of(self, segment: int) -> str:
        """Return the holders of ``segment`` as text."""
        if self._described is None:
            found: dict[int, list[str]] = {}
            for held, holding in sorted(self._subscription.holdings.items()):
                text = f"{holding.consumer!r} at generation {holding.generation}"
                found.setdefault(segment_of(held), []).append(text)
            self._described = {each: " and ".join(texts) for each, texts in found.items()}
        return self._described.get(segment, "no consumer")


class _Judge:
    """Judges the acknowledgements of one batch, one after the other."""

    def __init__(self, subscription: Subscription, topic: TopicView, consumer: str, range_limit: RangeLimit) -> None:
        self._subscription = subscription
        self._topic = topic
        self._consumer = consumer
        self._range_limit = range_limit
        self._holders = _Holders(subscription)
        self.over_limit = 0
        """Acknowledgements that rule 6 rejected."""

    def accept(self, acknowledgement: m.Acknowledgement) -> e.AcknowledgedRange | str:
        """Return the range that ``acknowledgement`` adds, or why it does not count (rules 3 to 6)."""
        subscription, segment, generation = self._subscription, acknowledgement.segment, acknowledgement.generation
        first_offset, end_offset = acknowledgement.first_offset, acknowledgement.end_offset
        held = subscription.held_at(segment, generation)
        if held is None or subscription.holdings[held].consumer != self._consumer:
            held_by = self._holders.of(segment)
            return f"segment {segment} is held by {held_by}, not by {self._consumer!r} at generation {generation}"
        limit = acknowledgeable_end(self._topic, segment)
        if limit is not None and end_offset > limit:
            return f"segment {segment} ends at {limit}; offset {end_offset} is beyond it"
        if subscription.type != e.SubscriptionType.QUEUE:
            first_offset = 0
        elif first_offset >= end_offset:
            return f"range {first_offset} to {end_offset} of segment {segment} is empty"
        elif (ranges := self._range_limit.admit(held, first_offset, end_offset)) is not None:
            self.over_limit += 1
            return (
                f"segment {segment} has {ranges} acknowledged ranges with gaps between them, the most that are kept: "
                "acknowledge the records in the gaps first; this one is delivered again"
            )
        return e.AcknowledgedRange(segment, first_offset, end_offset, *bucket_bounds(held))
