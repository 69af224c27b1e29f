"""What a shard knows of one subscription: a fold over its ledger entries.

A `Subscription` is changed by `apply` alone, and `apply` never judges: an entry in the ledger is a fact. Everything
here survives a change of leader. What does not survive (who answered a moment ago, which poll sleeps) belongs to
coordinator.subscription_coordinator.

Positions: for STREAM one number per segment, below which everything is acknowledged. For QUEUE also the ranges
acknowledged above it. CHECKPOINT acknowledges nothing. Once consumers that share a segment are at different places in
it, this is kept for each of its key buckets, until all buckets agree again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from coordinator.state.acknowledged import AcknowledgementProgress
from headgate.model import entries as e
from headgate.model.bucket_ranges import SegmentSlice, segment_of, slice_of
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.offset_ranges import OffsetRanges

REMOVED_CONSUMER_RETENTION_MS = 600_000
"""How long a program that left is remembered: far longer than a broker keeps a message on its way."""
MAX_REMOVED_CONSUMERS = 1000

SubscriptionEntry = (
    e.SubscriptionConfigured
    | e.SubscriptionSeek
    | e.RecordsAcknowledged
    | e.ConsumerRegistered
    | e.ConsumerDisconnected
    | e.ConsumerReconnected
    | e.ConsumerRemoved
    | e.SegmentGranted
    | e.SegmentRevoked
    | e.SegmentReleased
    | e.SegmentsDrained
    | e.SegmentWeightsSet
)


@dataclass(slots=True)
class RegisteredConsumer:
    """A consumer on record."""

    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Since when its grace period runs; None while it is connected."""
    supports_bucket_ranges: bool = False
    """Whether it can read a share of a segment; clients of the first version cannot."""
    capacity: int = 100
    """What it can do, in percent of an ordinary consumer; counts where the balance is by load."""


@dataclass(frozen=True, slots=True)
class RemovedConsumer:
    """A program that left, or was replaced, or whose subscription was deleted."""

    consumer: str
    incarnation: int
    client_id: str
    at_ms: int


def includes_consumer(consumers: Iterable[RemovedConsumer], consumer: str, incarnation: int, client_id: str) -> bool:
    """Tell whether this very program is one of ``consumers``."""
    wanted = (consumer, incarnation, client_id)
    return any((gone.consumer, gone.incarnation, gone.client_id) == wanted for gone in consumers)


@dataclass(slots=True)
class Holding:
    """Who holds a segment, or a share of one."""

    consumer: str
    generation: int
    revoked_at_ms: int | None = None
    """Since when the holder has been asked to finish; None while the grant stands."""


@dataclass(frozen=True, slots=True)
class LastSeek:
    """What the newest seek did, so that the same command asked again gets the same answer."""

    token: str
    moves: tuple[tuple[int, int, int], ...]
    """(segment, position before, position after), by segment."""


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
    """Segment → offset below which everything is acknowledged, in every bucket; one that is missing begins at 0."""
    acknowledged_ranges: dict[int, OffsetRanges] = field(default_factory=dict)
    """QUEUE: segment → sorted, disjoint ranges (first, end) acknowledged above the position, in every bucket."""
    progress_by_bucket: dict[int, list[AcknowledgementProgress]] = field(default_factory=dict)
    """Segment whose buckets differ → what is acknowledged in each of them; it has nothing in ``acknowledged_ranges``
    then.
    """
    checkpoints: dict[int, str] = field(default_factory=dict)
    """External topics: segment → where its next holder goes on, in the words of its source."""
    seek_generation: int = 0
    last_seek: LastSeek | None = None
    drained: set[int] = field(default_factory=set)
    consumers: dict[str, RegisteredConsumer] = field(default_factory=dict)
    removed_consumers: list[RemovedConsumer] = field(default_factory=list)
    """The latest last, so that a late copy of a registration brings nobody back."""
    holdings: dict[SegmentSlice, Holding] = field(default_factory=dict)
    """Whole segment or share → who holds it; no two of them overlaps."""
    next_generation: int = 1
    balance: e.Balance = "count"
    weights: dict[int, int] = field(default_factory=dict)
    """Segment → how heavy it is; where the balance is by load, and once it was measured."""
    unused_since_ms: int | None = None
    """Since when it has had no consumer; None while it has one."""
    _slices_by_generation: dict[int, SegmentSlice] = field(init=False, repr=False, compare=False)
    """Generation → what is held at it."""

    def __post_init__(self) -> None:
        """Index what is held."""
        self._slices_by_generation = {
            holding.generation: segment_slice for segment_slice, holding in self.holdings.items()
        }

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
            balance=entry.balance,
            positions=dict(entry.positions),
        )

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.positions.get(segment, 0)

    def was_removed(self, consumer: str, incarnation: int, client_id: str) -> bool:
        """Tell whether this very program left, or was replaced, not long ago."""
        return includes_consumer(self.removed_consumers, consumer, incarnation, client_id)

    def known_consumers(self, at_ms: int) -> list[RemovedConsumer]:
        """Return who must not come back should this be deleted at ``at_ms``: who has departed, and who is here."""
        here = [
            RemovedConsumer(known.consumer, known.incarnation, known.client_id, at_ms)
            for known in self.consumers.values()
        ]
        return self.removed_consumers + here

    def acknowledged_in(self, segment: int, bucket: int) -> AcknowledgementProgress:
        """Return what is acknowledged in one bucket; to be looked at, not changed."""
        if segment in self.progress_by_bucket:
            return self.progress_by_bucket[segment][bucket]
        return AcknowledgementProgress(self.position(segment), self.acknowledged_ranges.get(segment, OffsetRanges()))

    def held_by(self, consumer: str) -> list[SegmentSlice]:
        """Return what ``consumer`` holds, revoked or not, in order."""
        return sorted(segment_slice for segment_slice, holding in self.holdings.items() if holding.consumer == consumer)

    def held_at(self, segment: int, generation: int) -> SegmentSlice | None:
        """Return what of ``segment`` is held at ``generation``: it, a share of it, or nothing."""
        segment_slice = self._slices_by_generation.get(generation)
        return None if segment_slice is None or segment_of(segment_slice) != segment else segment_slice

    def apply(self, entry: SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry; ``at_ms`` is its chunk's time."""
        match entry:
            case e.RecordsAcknowledged():
                self._acknowledge(entry)
            case e.SegmentGranted():
                segment_slice = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
                self.holdings[segment_slice] = Holding(entry.consumer, entry.generation)
                self._slices_by_generation[entry.generation] = segment_slice
                self.next_generation = max(self.next_generation, entry.generation + 1)
            case e.SegmentRevoked():
                self.holdings[slice_of(entry.segment, entry.first_bucket, entry.end_bucket)].revoked_at_ms = at_ms
            case e.SegmentReleased():
                self._release(slice_of(entry.segment, entry.first_bucket, entry.end_bucket))
            case e.SegmentsDrained():
                if entry.seek_generation == self.seek_generation:
                    self.drained.update(entry.segments)
            case e.ConsumerRegistered():
                self.consumers[entry.consumer] = RegisteredConsumer(
                    entry.consumer,
                    entry.incarnation,
                    entry.client_id,
                    supports_bucket_ranges=entry.supports_bucket_ranges,
                    capacity=entry.capacity,
                )
                self.unused_since_ms = None
            case e.ConsumerDisconnected():
                self.consumers[entry.consumer].disconnected_at_ms = at_ms
            case e.ConsumerReconnected():
                self.consumers[entry.consumer].disconnected_at_ms = None
            case e.ConsumerRemoved():
                self._record_removal(self.consumers.pop(entry.consumer), entry.reason, at_ms)
                self.unused_since_ms = None if self.consumers else at_ms
                for segment_slice in self.held_by(entry.consumer):
                    self._release(segment_slice)
            case e.SubscriptionConfigured():
                self.type, self.order, self.balance = entry.subscription_type, entry.order, entry.balance
            case e.SegmentWeightsSet():
                self.weights.update(entry.weights)
            case e.SubscriptionSeek():
                moves = tuple((s, self.position(s), to) for s, to in sorted(entry.positions.items()))
                self.seek_generation, self.last_seek = entry.seek_generation, LastSeek(entry.token, moves)
                self.positions.update(entry.positions)
                for segment in entry.positions:
                    self.acknowledged_ranges.pop(segment, None)
                    self.checkpoints.pop(segment, None)
                    self.progress_by_bucket.pop(segment, None)
                # A fact drained under the old positions proves nothing under the new ones.
                self.drained.difference_update(entry.positions)
            case _:
                assert_never(entry)

    def forget_segments(self, segments: list[int]) -> None:
        """Drop what is known of pruned segments."""
        for segment_slice in [
            segment_slice for segment_slice in self.holdings if segment_of(segment_slice) in segments
        ]:
            self._release(segment_slice)
        for segment in segments:
            self.positions.pop(segment, None)
            self.acknowledged_ranges.pop(segment, None)
            self.checkpoints.pop(segment, None)
            self.progress_by_bucket.pop(segment, None)
            self.drained.discard(segment)
            self.weights.pop(segment, None)

    def _record_removal(self, gone: RegisteredConsumer, reason: e.LeaveReason, at_ms: int) -> None:
        kept = [known for known in self.removed_consumers if at_ms - known.at_ms < REMOVED_CONSUMER_RETENTION_MS]
        if reason in ("left", "replaced"):
            kept.append(RemovedConsumer(gone.consumer, gone.incarnation, gone.client_id, at_ms))
        self.removed_consumers = kept[-MAX_REMOVED_CONSUMERS:]

    def _release(self, segment_slice: SegmentSlice) -> None:
        del self._slices_by_generation[self.holdings.pop(segment_slice).generation]

    def _acknowledge(self, entry: e.RecordsAcknowledged) -> None:
        if entry.seek_generation != self.seek_generation:
            return
        self.checkpoints.update(entry.checkpoints)
        for part in entry.ranges:
            if part.end_bucket or part.segment in self.progress_by_bucket:
                self._acknowledge_buckets(part)
            elif self.type == e.SubscriptionType.QUEUE:
                known = AcknowledgementProgress(
                    self.position(part.segment), self.acknowledged_ranges.pop(part.segment, OffsetRanges())
                )
                known.add_range(part.first_offset, part.end_offset)
                self._record_common_progress(part.segment, known)
            else:
                self.positions[part.segment] = max(self.position(part.segment), part.end_offset)

    def _acknowledge_buckets(self, part: e.AcknowledgedRange) -> None:
        segment = part.segment
        known = self.progress_by_bucket.get(segment)
        if known is None:
            ranges = self.acknowledged_ranges.pop(segment, OffsetRanges())
            known = [AcknowledgementProgress(self.position(segment), OffsetRanges(ranges)) for _ in range(KEY_BUCKETS)]
        for progress in known[part.first_bucket : part.end_bucket or KEY_BUCKETS]:
            if self.type == e.SubscriptionType.QUEUE:
                progress.add_range(part.first_offset, part.end_offset)
            else:
                progress.advance(part.end_offset)
        if all(progress == known[0] for progress in known):
            self.progress_by_bucket.pop(segment, None)
            self._record_common_progress(segment, known[0])
        else:
            self.progress_by_bucket[segment] = known
            self.positions[segment] = min(progress.position for progress in known)

    def _record_common_progress(self, segment: int, progress: AcknowledgementProgress) -> None:
        """Note what is acknowledged in every bucket of ``segment``."""
        self.positions[segment] = progress.position
        if progress.acknowledged_ranges:
            self.acknowledged_ranges[segment] = progress.acknowledged_ranges
