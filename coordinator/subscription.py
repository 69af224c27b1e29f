"""What a shard knows of one subscription: a fold over its ledger entries.

A `Subscription` is changed by `apply` alone, and `apply` never judges: an entry in the ledger is a fact. Everything
here survives a change of leader. What does not survive (who answered a moment ago, which poll sleeps) belongs to
coordinator.subscription_coordinator.

Positions: for STREAM one number per segment, below which everything is acknowledged. For QUEUE also the ranges
acknowledged above it. CHECKPOINT acknowledges nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import assert_never

from headgate import entries as e

SubscriptionEntry = (
    e.SubscriptionTyped
    | e.Sought
    | e.RecordsAcknowledged
    | e.ConsumerRegistered
    | e.ConsumerDisconnected
    | e.ConsumerReconnected
    | e.ConsumerGone
    | e.SegmentGranted
    | e.SegmentRevoked
    | e.SegmentReleased
    | e.SegmentsDrained
)


@dataclass(slots=True)
class RegisteredConsumer:
    """A consumer on record."""

    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Since when its grace period runs; None while it is connected."""


@dataclass(slots=True)
class Holding:
    """Who holds a segment."""

    consumer: str
    generation: int
    revoked_at_ms: int | None = None
    """Since when the holder has been asked to finish; None while the grant stands."""


@dataclass(slots=True)
class Subscription:
    """One subscription of one topic."""

    topic_id: int
    topic: str
    subscription_id: int
    name: str
    type: e.SubscriptionType | None
    order: e.Order
    positions: dict[int, int] = field(default_factory=dict)
    """Segment → offset below which everything is acknowledged; a segment that is missing begins at 0."""
    above: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """QUEUE: segment → sorted, disjoint ranges (first, end) acknowledged above the position."""
    seek_generation: int = 0
    drained: set[int] = field(default_factory=set)
    consumers: dict[str, RegisteredConsumer] = field(default_factory=dict)
    holdings: dict[int, Holding] = field(default_factory=dict)
    next_generation: int = 1

    @classmethod
    def created(cls, entry: e.SubscriptionCreated, topic: str) -> Subscription:
        """Return the subscription that ``entry`` brings into being."""
        return cls(
            topic_id=entry.topic_id,
            topic=topic,
            subscription_id=entry.subscription_id,
            name=entry.subscription,
            type=entry.subscription_type,
            order=entry.order,
            positions=dict(entry.positions),
        )

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.positions.get(segment, 0)

    def held_by(self, consumer: str) -> list[int]:
        """Return the segments that ``consumer`` holds, revoked ones included, in order."""
        return sorted(segment for segment, holding in self.holdings.items() if holding.consumer == consumer)

    def apply(self, entry: SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry; ``at_ms`` is its chunk's time."""
        match entry:
            case e.RecordsAcknowledged():
                self._acknowledge(entry)
            case e.SegmentGranted():
                self.holdings[entry.segment] = Holding(entry.consumer, entry.generation)
                self.next_generation = max(self.next_generation, entry.generation + 1)
            case e.SegmentRevoked():
                self.holdings[entry.segment].revoked_at_ms = at_ms
            case e.SegmentReleased():
                del self.holdings[entry.segment]
            case e.SegmentsDrained():
                if entry.seek_generation == self.seek_generation:
                    self.drained.update(entry.segments)
            case e.ConsumerRegistered():
                self.consumers[entry.consumer] = RegisteredConsumer(entry.consumer, entry.incarnation, entry.client_id)
            case e.ConsumerDisconnected():
                self.consumers[entry.consumer].disconnected_at_ms = at_ms
            case e.ConsumerReconnected():
                self.consumers[entry.consumer].disconnected_at_ms = None
            case e.ConsumerGone():
                del self.consumers[entry.consumer]
                for segment in self.held_by(entry.consumer):
                    del self.holdings[segment]
            case e.SubscriptionTyped():
                self.type, self.order = entry.subscription_type, entry.order
            case e.Sought():
                self.seek_generation = entry.seek_generation
                self.positions.update(entry.positions)
                for segment in entry.positions:
                    self.above.pop(segment, None)
                # A fact drained under the old positions proves nothing under the new ones.
                self.drained.difference_update(entry.positions)
            case _:
                assert_never(entry)

    def forget_segments(self, segments: list[int]) -> None:
        """Drop what is known of pruned segments."""
        for segment in segments:
            self.positions.pop(segment, None)
            self.above.pop(segment, None)
            self.holdings.pop(segment, None)
            self.drained.discard(segment)

    def _acknowledge(self, entry: e.RecordsAcknowledged) -> None:
        if entry.seek_generation != self.seek_generation:
            return
        for part in entry.ranges:
            if self.type == "QUEUE":
                self._acknowledge_range(part.segment, part.first_offset, part.end_offset)
            else:
                self.positions[part.segment] = max(self.position(part.segment), part.end_offset)

    def _acknowledge_range(self, segment: int, first: int, end: int) -> None:
        ranges = self.above.setdefault(segment, [])
        index = bisect_left(ranges, (first, first))
        if index > 0 and ranges[index - 1][1] >= first:
            index -= 1
        while index < len(ranges) and ranges[index][0] <= end:
            first, end = min(first, ranges[index][0]), max(end, ranges[index][1])
            del ranges[index]
        ranges.insert(index, (first, end))
        if ranges[0][0] <= self.position(segment):
            self.positions[segment] = max(self.position(segment), ranges.pop(0)[1])
        if not ranges:
            del self.above[segment]
