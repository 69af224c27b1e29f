"""The state of one subscription, as a fold over its ledger entries. It survives a change of leader.

Only `apply` and `forget_segments` change it, and neither validates anything: an entry is a fact. They
replace values and positions, and change only acknowledged ranges in place, so that a `snapshot` is
cheap.

STREAM has one position per segment. QUEUE adds the ranges acknowledged above it. CHECKPOINT
acknowledges nothing. While consumers that share a segment have different positions, progress is
stored per key bucket; it is merged again once all buckets agree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headgate.model import entries as e
from headgate.model.bucket_ranges import BucketRange, SegmentSlice, buckets_of, segment_of, slice_of
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.identifiers import ANONYMOUS
from headgate.model.offset_ranges import OffsetRanges
from headgate.protocol.backlog import RecordCount, count_records
from shard.state.acknowledged import AcknowledgementProgress
from shard.state.redelivery import Redelivery

REMOVED_CONSUMER_RETENTION_MS = 600_000
"""How long a removed consumer is remembered: much longer than a broker can delay a message."""
MAX_REMOVED_CONSUMERS = 1000

ValueT = TypeVar("ValueT")
LOST = {
    "failed": "ended with an error",
    "evicted": "was lost",
    "replaced": "was lost, and started again",
    "timed_out": "did not give the segment back in time",
    "stalled": "made no progress for too long",
}
"""How a consumer was removed, or a segment released, whose begun deliveries fail → why. Others hand records back."""


@dataclass(frozen=True, slots=True)
class RegisteredConsumer:
    consumer: str
    incarnation: int
    client_id: str
    disconnected_at_ms: int | None = None
    """Start of its grace period; None while it is connected."""
    supports_bucket_ranges: bool = False
    """Whether it can read a bucket range of a segment. Clients of the first version cannot."""
    capacity: int = 100
    """Capacity in percent of a standard consumer. Used when balancing by load."""
    host: str = ""
    """Where it runs, as it says."""
    version: str = ""
    """Version of its library, as it says."""
    registered_at_ms: int | None = None
    """When this instance joined."""
    stalled_at_ms: int | None = None
    """When it lost a segment because it made no progress; None: it has made some since, or asked for records."""


@dataclass(frozen=True, slots=True)
class RemovedConsumer:
    """A consumer instance that left, was replaced or evicted by a command, or whose subscription was deleted."""

    consumer: str
    incarnation: int
    client_id: str
    at_ms: int
    evicted: bool = False
    """By a command."""


def find_removed(
    consumers: Iterable[RemovedConsumer], consumer: str, incarnation: int, client_id: str
) -> RemovedConsumer | None:
    """Return exactly this consumer instance, if ``consumers`` include it."""
    wanted = (consumer, incarnation, client_id)
    return next((each for each in consumers if (each.consumer, each.incarnation, each.client_id) == wanted), None)


@dataclass(frozen=True, slots=True)
class Holding:
    """The holder of a segment, or of a bucket range of one."""

    consumer: str
    generation: int
    revoked_at_ms: int | None = None
    """When the grant was revoked; None while it is valid."""
    progressed_at_ms: int = 0
    """When it was granted; with ``max_processing_ms``, when its holder last acknowledged or began a record."""


@dataclass(frozen=True, slots=True)
class LastSeek:
    """The newest seek. A repeated seek command gets the same response."""

    token: str
    moves: tuple[tuple[int, int, int], ...]
    """(segment, position before, position after), by segment."""


@dataclass(slots=True)
class Subscription:
    topic_id: int
    topic: str
    subscription_id: int
    name: str
    type: e.SubscriptionType | None
    order: e.Order
    positions: dict[int, int] = field(default_factory=dict)
    """Segment → offset below which everything is acknowledged in all buckets. Default: 0."""
    start_positions: dict[int, int] = field(default_factory=dict)
    """Segment → its position at the creation or the last seek. No record below it was ever due. Default: 0."""
    acknowledged_ranges: dict[int, OffsetRanges] = field(default_factory=dict)
    """QUEUE: segment → offsets acknowledged above the position in all buckets."""
    progress_by_bucket: dict[int, list[AcknowledgementProgress]] = field(default_factory=dict)
    """Segment whose buckets differ → progress of each bucket. Such a segment is not in ``acknowledged_ranges``."""
    checkpoints: dict[int, e.Checkpoint] = field(default_factory=dict)
    """External topics: segment → where its next holder continues."""
    seek_generation: int = 0
    last_seek: LastSeek | None = None
    drained: set[int] = field(default_factory=set)
    consumers: dict[str, RegisteredConsumer] = field(default_factory=dict)
    removed_consumers: list[RemovedConsumer] = field(default_factory=list)
    """The latest last. A delayed copy of a registration must not bring a removed consumer back."""
    holdings: dict[SegmentSlice, Holding] = field(default_factory=dict)
    """Segment or bucket range → its holder. No two of them overlap."""
    next_generation: int = 1
    balance: e.Balance = "count"
    weights: dict[int, int] = field(default_factory=dict)
    """Segment → its weight, once measured. Used when balancing by load."""
    unused_since_ms: int | None = None
    """Since when there has been no consumer; None while there is one."""
    started_at_ms: int = 0
    """Ledger time of the creation, or of the last seek."""
    gated_since_ms: int = 0
    """Ledger time of that, or of a later change of the order: no segment is blocked for longer."""
    user: str = ANONYMOUS
    """Who created it."""
    dropped_records: int = 0
    """Records that were pruned before it had acknowledged them; an estimate if key buckets had different progress."""
    redelivery: Redelivery = field(default_factory=Redelivery)
    """QUEUE: records that are being tried or have failed. STREAM: parked keys."""
    _slices_by_generation: dict[int, SegmentSlice] = field(init=False, repr=False, compare=False)
    """Generation → the segment or bucket range that is held at it."""
    _held_ranges: set[BucketRange] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._slices_by_generation = {
            holding.generation: segment_slice for segment_slice, holding in self.holdings.items()
        }
        self._held_ranges = {held for held in self.holdings if isinstance(held, BucketRange)}

    @property
    def ids(self) -> dict[str, Any]:
        """The fields by which entries name the subscription."""
        return {"topic_id": self.topic_id, "subscription_id": self.subscription_id}

    @classmethod
    def created(cls, entry: e.SubscriptionCreated, topic: str, at_ms: int = 0) -> Subscription:
        """Return the subscription that ``entry``, in a chunk of ledger time ``at_ms``, creates."""
        return cls(
            topic_id=entry.topic_id,
            topic=topic,
            subscription_id=entry.subscription_id,
            name=entry.subscription,
            type=entry.subscription_type,
            order=entry.order,
            balance=entry.balance,
            positions=dict(entry.positions),
            start_positions=dict(entry.positions),
            user=entry.user,
            unused_since_ms=at_ms,
            started_at_ms=at_ms,
            gated_since_ms=at_ms,
        )

    def snapshot(self) -> Subscription:
        """Return a copy to be read while this subscription changes.

        It follows acknowledgements up to the next seek, and forgets the positions in pruned segments. It follows
        failed deliveries.

        The cost is a copy of a few dicts, far below that of looking at each holding.
        """
        shot = copy(self)
        shot.holdings, shot.consumers = dict(self.holdings), dict(self.consumers)
        shot.drained, shot.weights = set(self.drained), dict(self.weights)
        return shot

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.positions.get(segment, 0)

    def checkpoint(self, segment: int) -> str | None:
        """Return where the next holder of an external ``segment`` continues; None: at its beginning."""
        known = self.checkpoints.get(segment)
        return None if known is None else known.text

    def removed(self, consumer: str, incarnation: int, client_id: str) -> RemovedConsumer | None:
        """Return exactly this consumer instance, if it left, was replaced or was evicted by a command recently."""
        return find_removed(self.removed_consumers, consumer, incarnation, client_id)

    def known_consumers(self, at_ms: int) -> list[RemovedConsumer]:
        """Return all removed and registered consumers: none may come back if this is deleted at ``at_ms``."""
        registered = [
            RemovedConsumer(known.consumer, known.incarnation, known.client_id, at_ms)
            for known in self.consumers.values()
        ]
        return self.removed_consumers + registered

    def acknowledged_in(self, segment: int, bucket: int) -> AcknowledgementProgress:
        """Return the progress of one bucket. Read-only for the caller."""
        if segment in self.progress_by_bucket:
            return self.progress_by_bucket[segment][bucket]
        return AcknowledgementProgress(self.position(segment), self.acknowledged_ranges.get(segment, OffsetRanges()))

    def unacknowledged_records(self, segment_slice: SegmentSlice, end_offset: int) -> RecordCount:
        segment, buckets = segment_of(segment_slice), buckets_of(segment_slice)
        progress = self.progress_by_bucket.get(segment)
        if progress is None and segment not in self.acknowledged_ranges:
            offsets = max(0, end_offset - self.position(segment)) * len(buckets)
            return count_records(offsets, exact=len(buckets) == KEY_BUCKETS)
        if progress is None:
            offsets = self.acknowledged_in(segment, 0).remaining(end_offset) * len(buckets)
            return count_records(offsets, exact=len(buckets) == KEY_BUCKETS)
        return count_records(sum(progress[bucket].remaining(end_offset) for bucket in buckets), exact=False)

    def held_by(self, consumer: str) -> list[SegmentSlice]:
        """Return the sorted slices that ``consumer`` holds, revoked ones included."""
        return sorted(segment_slice for segment_slice, holding in self.holdings.items() if holding.consumer == consumer)

    def held_in(self, segments: AbstractSet[int]) -> list[SegmentSlice]:
        whole: AbstractSet[SegmentSlice] = self.holdings.keys() & segments
        return [*whole, *(held for held in self._held_ranges if held.segment in segments)]

    def held_at(self, segment: int, generation: int) -> SegmentSlice | None:
        segment_slice = self._slices_by_generation.get(generation)
        return None if segment_slice is None or segment_of(segment_slice) != segment else segment_slice

    def apply(self, entry: e.SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry. ``at_ms`` is the time of its chunk."""
        if self.redelivery.policy.max_processing_ms or isinstance(entry, e.DeliveryPolicySet):
            self._note_progress(entry, at_ms)
        match entry:
            case e.RecordsAcknowledged():
                self._acknowledge(entry, at_ms)
            case e.SegmentGranted():
                segment_slice = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
                self.holdings[segment_slice] = Holding(entry.consumer, entry.generation, progressed_at_ms=at_ms)
                self._slices_by_generation[entry.generation] = segment_slice
                if isinstance(segment_slice, BucketRange):
                    self._held_ranges.add(segment_slice)
                self.next_generation = max(self.next_generation, entry.generation + 1)
            case e.SegmentRevoked():
                revoked = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
                holding = self.holdings[revoked]
                self.holdings[revoked] = Holding(holding.consumer, holding.generation, at_ms)
            case e.SegmentReleased():
                self._released(entry, at_ms)
            case e.SegmentsDrained():
                if entry.seek_generation == self.seek_generation:
                    self.drained.update(entry.segments)
            case e.ConsumerRegistered():
                self._register(entry, at_ms)
            case e.ConsumerDisconnected():
                self._set_disconnected(entry.consumer, at_ms)
            case e.ConsumerReconnected():
                self._set_disconnected(entry.consumer, None)
            case e.ConsumerRemoved():
                self._record_removal(self.consumers.pop(entry.consumer), entry, at_ms)
                self.unused_since_ms = None if self.consumers else at_ms
                lost = LOST.get(entry.reason, "") and f"its consumer {entry.consumer} {LOST[entry.reason]}"
                for segment_slice in self.held_by(entry.consumer):
                    self._release(segment_slice, at_ms, lost)
            case e.SubscriptionConfigured():
                if (self.type, self.order) != (entry.subscription_type, entry.order):
                    self.gated_since_ms = at_ms
                self.type, self.order, self.balance = entry.subscription_type, entry.order, entry.balance
            case e.SegmentWeightsSet():
                self.weights.update(entry.weights)
            case e.SubscriptionSeek():
                moves = tuple((s, self.position(s), to) for s, to in sorted(entry.positions.items()))
                self.seek_generation, self.last_seek = entry.seek_generation, LastSeek(entry.token, moves)
                self.started_at_ms = self.gated_since_ms = at_ms
                self.unused_since_ms = None if self.unused_since_ms is None else at_ms
                self._forget_progress(entry.positions)
                self.positions = self.positions | entry.positions
                self.start_positions = self.start_positions | entry.positions
                # "Drained" holds for the old positions only.
                self.drained.difference_update(entry.positions)
            case _:
                self.redelivery.apply(entry, at_ms)

    def _released(self, entry: e.SegmentReleased, at_ms: int) -> None:
        released = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        if entry.reason == "stalled":
            self._set_stalled(self.holdings[released].consumer, at_ms)
        self._release(released, at_ms, LOST.get(entry.reason, "") and f"its consumer {LOST[entry.reason]}")

    def _note_progress(self, entry: e.SubscriptionEntry, at_ms: int) -> None:
        """Let the time limits of the holders that make progress begin again."""
        slices: Iterable[SegmentSlice] = ()
        match entry:
            case e.DeliveryPolicySet():
                slices = list(self.holdings)
            case e.RecordsAcknowledged():
                slices = [slice_of(each.segment, each.first_bucket, each.end_bucket) for each in entry.ranges]
            case e.DeliveriesBegun() | e.DeliveriesFailed():
                slices = [
                    held
                    for segment, bucket in {(segment, bucket) for segment, _, bucket, *_ in entry.records}
                    for held in self.held_in({segment})
                    if bucket in buckets_of(held)
                ]
        for held in slices:
            if (holding := self.holdings.get(held)) is not None and holding.progressed_at_ms != at_ms:
                self.holdings[held] = replace(holding, progressed_at_ms=at_ms)
                self._set_stalled(holding.consumer, None)

    def _set_stalled(self, consumer: str, at_ms: int | None) -> None:
        if self.consumers[consumer].stalled_at_ms != at_ms:
            self.consumers[consumer] = replace(self.consumers[consumer], stalled_at_ms=at_ms)

    def unread_in(self, ends: Mapping[int, int]) -> int:
        """Return how many records it has not acknowledged in segments that end where ``ends`` says."""
        if self.type == e.SubscriptionType.CHECKPOINT:
            return 0  # It acknowledges nothing.
        return sum([self.unacknowledged_records(n, ends[n]).records for n in ends.keys() - self.drained])

    def forget_segments(self, ends: Mapping[int, int]) -> None:
        """Drop the state of pruned segments. ``ends``: segment → offset after its last record."""
        forgotten, kept = set(ends), self.redelivery.attempts.keys() & ends.keys()
        parked = kept if self.type == e.SubscriptionType.STREAM else ()
        self.dropped_records += self.unread_in(ends) + sum(map(self.redelivery.records, parked))
        for held in self.held_in(forgotten):
            self._release(held)
        self.redelivery.forget(kept)
        self.drained -= forgotten
        by_segment: tuple[dict[int, Any], ...] = (
            self.positions,
            self.start_positions,
            self.weights,
            self.acknowledged_ranges,
            self.checkpoints,
            self.progress_by_bucket,
        )
        for each in filter(None, by_segment):
            for segment in ends:
                each.pop(segment, None)

    def _forget_progress(self, segments: Collection[int]) -> None:
        """Forget the ranges in ``segments``, but not in the snapshots that were taken before."""
        self.acknowledged_ranges = _without(self.acknowledged_ranges, segments)
        self.checkpoints = _without(self.checkpoints, segments)
        self.progress_by_bucket = _without(self.progress_by_bucket, segments)
        if (
            self.type == e.SubscriptionType.QUEUE
        ):  # What a STREAM has parked goes to the dead-letter topic all the same.
            self.redelivery.forget(segments)

    def _set_disconnected(self, consumer: str, at_ms: int | None) -> None:
        self.consumers[consumer] = replace(self.consumers[consumer], disconnected_at_ms=at_ms, stalled_at_ms=None)

    def _register(self, entry: e.ConsumerRegistered, at_ms: int) -> None:
        known = self.consumers.get(entry.consumer)
        same = known is not None and (known.incarnation, known.client_id) == (entry.incarnation, entry.client_id)
        self.consumers[entry.consumer] = RegisteredConsumer(
            entry.consumer,
            entry.incarnation,
            entry.client_id,
            supports_bucket_ranges=entry.supports_bucket_ranges,
            capacity=entry.capacity,
            host=entry.host,
            version=entry.version,
            registered_at_ms=known.registered_at_ms if known is not None and same else at_ms,
        )
        self.unused_since_ms = None

    def _record_removal(self, removed: RegisteredConsumer, entry: e.ConsumerRemoved, at_ms: int) -> None:
        recent = [known for known in self.removed_consumers if at_ms - known.at_ms < REMOVED_CONSUMER_RETENTION_MS]
        by_command = bool(entry.token)
        if by_command or entry.reason in ("left", "failed", "replaced"):
            recent.append(
                RemovedConsumer(removed.consumer, removed.incarnation, removed.client_id, at_ms, evicted=by_command)
            )
        self.removed_consumers = recent[-MAX_REMOVED_CONSUMERS:]

    def _release(self, segment_slice: SegmentSlice, at_ms: int = 0, lost: str = "") -> None:
        generation = self.holdings.pop(segment_slice).generation
        del self._slices_by_generation[generation]
        self.redelivery.release(segment_of(segment_slice), generation, lost=lost, at_ms=at_ms)
        if isinstance(segment_slice, BucketRange):
            self._held_ranges.remove(segment_slice)

    def _acknowledge(self, entry: e.RecordsAcknowledged, at_ms: int) -> None:
        if entry.seek_generation != self.seek_generation:
            return
        self.checkpoints.update(entry.checkpoints)
        for segment, offset, parked in entry.parked:
            self.redelivery.park(segment, offset, parked, at_ms)
        for resumed, number in entry.resumed:
            self.redelivery.parked.processed(resumed, number)
        self.redelivery.settle(
            (each.segment, each.first_offset, each.end_offset, range(each.first_bucket, each.end_bucket or KEY_BUCKETS))
            for each in (entry.ranges if self.redelivery.attempts and self.type == e.SubscriptionType.QUEUE else ())
        )
        for acknowledged in entry.ranges:
            segment, end_offset = acknowledged.segment, acknowledged.end_offset
            if acknowledged.end_bucket or segment in self.progress_by_bucket:
                self._acknowledge_buckets(acknowledged)
            elif self.type == e.SubscriptionType.QUEUE:
                progress = AcknowledgementProgress(
                    self.position(segment), self.acknowledged_ranges.pop(segment, OffsetRanges())
                )
                progress.add_range(acknowledged.first_offset, end_offset)
                self._record_common_progress(segment, progress)
            else:
                self.positions[segment] = max(self.position(segment), end_offset)

    def _acknowledge_buckets(self, acknowledged: e.AcknowledgedRange) -> None:
        segment = acknowledged.segment
        buckets = self.progress_by_bucket.get(segment)
        if buckets is None:
            ranges = self.acknowledged_ranges.pop(segment, OffsetRanges())
            buckets = [
                AcknowledgementProgress(self.position(segment), OffsetRanges(ranges)) for _ in range(KEY_BUCKETS)
            ]
        for progress in buckets[acknowledged.first_bucket : acknowledged.end_bucket or KEY_BUCKETS]:
            if self.type == e.SubscriptionType.QUEUE:
                progress.add_range(acknowledged.first_offset, acknowledged.end_offset)
            else:
                progress.advance(acknowledged.end_offset)
        if all(progress == buckets[0] for progress in buckets):
            self.progress_by_bucket.pop(segment, None)
            self._record_common_progress(segment, buckets[0])
        else:
            self.progress_by_bucket[segment] = buckets
            self.positions[segment] = min(progress.position for progress in buckets)

    def _record_common_progress(self, segment: int, progress: AcknowledgementProgress) -> None:
        """Record progress that is the same in all buckets of ``segment``."""
        self.positions[segment] = progress.position
        if progress.acknowledged_ranges:
            self.acknowledged_ranges[segment] = progress.acknowledged_ranges


def _without(values: Mapping[int, ValueT], segments: Collection[int]) -> dict[int, ValueT]:
    kept = dict(values)
    for segment in segments:
        kept.pop(segment, None)
    return kept
