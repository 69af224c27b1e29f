"""The state of one subscription, as a fold over its ledger entries. It survives a change of leader.

Only `apply` and `forget_segments` change it, and neither validates anything: an entry is a fact.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Self

from headgate.model import entries as e
from headgate.model.identifiers import ANONYMOUS
from headgate.model.layout import KEY_BUCKETS, SegmentSlice, buckets_of, segment_of, slice_of
from shard.state.consumers import Consumers, Holdings, RemovedConsumer
from shard.state.progress import Progress
from shard.state.redelivery import Redelivery

LOST = {
    "failed": "ended with an error",
    "evicted": "was lost",
    "replaced": "was lost, and started again",
    "timed_out": "did not give the segment back in time",
    "stalled": "made no progress for too long",
}
"""How a consumer was removed, or a segment released, whose begun deliveries fail → why. Others hand records back."""


@dataclass(slots=True)
class Subscription:
    topic_id: int
    topic: str
    subscription_id: int
    name: str
    type: e.SubscriptionType | None
    order: e.Order
    balance: e.Balance = "count"
    weights: dict[int, int] = field(default_factory=dict)
    """Segment → its weight, once measured. Used when balancing by load."""
    gated_since_ms: int = 0
    """Ledger time of the creation, the last seek or a later change of the order: no segment is blocked for longer."""
    user: str = ANONYMOUS
    """Who created it."""
    dropped_records: int = 0
    """Records that were pruned before it had acknowledged them; an estimate if key buckets had different progress."""
    redelivery: Redelivery = field(default_factory=Redelivery)
    """QUEUE: records that are being tried or have failed. STREAM: parked keys."""
    consumers: Consumers = field(default_factory=Consumers)
    holdings: Holdings = field(default_factory=Holdings)
    progress: Progress = field(default_factory=Progress)

    @property
    def ids(self) -> dict[str, Any]:
        """The fields by which entries name the subscription."""
        return {"topic_id": self.topic_id, "subscription_id": self.subscription_id}

    @property
    def drained(self) -> set[int]:
        """The segments of which everything is acknowledged, as Spark counted and the leader agreed."""
        return self.progress.drained

    @property
    def seek_generation(self) -> int:
        """Counts seeks: what was acknowledged or counted before the newest one is not true of the positions now."""
        return self.progress.seek_generation

    def position(self, segment: int) -> int:
        """Return the offset below which everything in ``segment`` is acknowledged."""
        return self.progress.position(segment)

    @classmethod
    def created(
        cls, entry: e.SubscriptionCreated, topic: str, at_ms: int = 0, removed: Iterable[RemovedConsumer] = ()
    ) -> Self:
        """Return the subscription that ``entry``, in a chunk of ledger time ``at_ms``, creates.

        ``removed``: the consumers of earlier ones of the same name.
        """
        return cls(
            topic_id=entry.topic_id,
            topic=topic,
            subscription_id=entry.subscription_id,
            name=entry.subscription,
            type=entry.subscription_type,
            order=entry.order,
            balance=entry.balance,
            gated_since_ms=at_ms,
            user=entry.user,
            consumers=Consumers(removed=removed, unused_since_ms=at_ms),
            progress=Progress(dict(entry.positions), dict(entry.positions), started_at_ms=at_ms),
        )

    def snapshot(self) -> Self:
        """Return a copy to be read while this subscription changes.

        It follows acknowledgements up to the next seek, and forgets the positions in pruned segments. It follows
        failed deliveries.

        The cost is a copy of a few dicts, far below that of looking at each holding.
        """
        shot = copy(self)
        shot.holdings, shot.consumers = self.holdings.snapshot(), self.consumers.snapshot()
        shot.progress, shot.weights = self.progress.snapshot(), dict(self.weights)
        return shot

    def apply(self, entry: e.SubscriptionEntry, at_ms: int) -> None:
        """Fold one entry. ``at_ms`` is the time of its chunk."""
        if self.redelivery.policy.max_processing_ms or isinstance(entry, e.DeliveryPolicySet):
            self._note_progress(entry, at_ms)
        match entry:
            case e.RecordsAcknowledged():
                self._acknowledge(entry, at_ms)
            case e.SegmentGranted():
                self.holdings.grant(entry, at_ms)
            case e.SegmentRevoked():
                self.holdings.revoke(entry, at_ms)
            case e.SegmentReleased():
                self._released(entry, at_ms)
            case e.SegmentsDrained():
                if entry.seek_generation == self.seek_generation:
                    self.drained.update(entry.segments)
            case e.ConsumerRegistered():
                self.consumers.register(entry, at_ms)
            case e.ConsumerDisconnected():
                self.consumers.set_disconnected(entry.consumer, at_ms)
            case e.ConsumerReconnected():
                self.consumers.set_disconnected(entry.consumer, None)
            case e.ConsumerRemoved():
                self.consumers.remove(entry, at_ms)
                lost = LOST.get(entry.reason, "") and f"its consumer {entry.consumer} {LOST[entry.reason]}"
                for segment_slice in self.holdings.held_by(entry.consumer):
                    self._release(segment_slice, at_ms, lost)
            case e.SubscriptionConfigured():
                if (self.type, self.order) != (entry.subscription_type, entry.order):
                    self.gated_since_ms = at_ms
                self.type, self.order, self.balance = entry.subscription_type, entry.order, entry.balance
            case e.SegmentWeightsSet():
                self.weights.update(entry.weights)
            case e.SubscriptionSeek():
                self._seek(entry, at_ms)
            case _:
                self.redelivery.apply(entry, at_ms)

    def _acknowledge(self, entry: e.RecordsAcknowledged, at_ms: int) -> None:
        if entry.seek_generation != self.seek_generation:
            return
        for segment, offset, parked in entry.parked:
            self.redelivery.park(segment, offset, parked, at_ms)
        for resumed, number in entry.resumed:
            self.redelivery.parked.processed(resumed, number)
        is_queue = self.type == e.SubscriptionType.QUEUE
        self.redelivery.settle(
            (each.segment, each.first_offset, each.end_offset, range(each.first_bucket, each.end_bucket or KEY_BUCKETS))
            for each in (entry.ranges if self.redelivery.attempts and is_queue else ())
        )
        self.progress.acknowledge(entry, with_ranges=is_queue)

    def _seek(self, entry: e.SubscriptionSeek, at_ms: int) -> None:
        """Move to other positions. All grants end: what their holders acknowledge is for the positions before."""
        self.progress.seek(entry, at_ms)
        for held, holding in self.holdings.items() if self.redelivery.attempts else ():
            self.redelivery.release(segment_of(held), holding.generation, lost="", at_ms=at_ms)
        self.holdings.clear()
        self.gated_since_ms = at_ms
        if self.consumers.unused_since_ms is not None:
            self.consumers.unused_since_ms = at_ms
        # What a STREAM has parked goes to the dead-letter topic all the same.
        if self.type == e.SubscriptionType.QUEUE:
            self.redelivery.forget(entry.positions)

    def _released(self, entry: e.SegmentReleased, at_ms: int) -> None:
        released = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        if entry.reason == "stalled":
            self.consumers.set_stalled(self.holdings[released].consumer, at_ms)
        self._release(released, at_ms, LOST.get(entry.reason, "") and f"its consumer {LOST[entry.reason]}")

    def _release(self, segment_slice: SegmentSlice, at_ms: int = 0, lost: str = "") -> None:
        generation = self.holdings.release(segment_slice)
        self.redelivery.release(segment_of(segment_slice), generation, lost=lost, at_ms=at_ms)

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
                    for held in self.holdings.held_in({segment})
                    if bucket in buckets_of(held)
                ]
        for held in slices:
            if (consumer := self.holdings.set_progressed(held, at_ms)) is not None:
                self.consumers.set_stalled(consumer, None)

    def unread_in(self, ends: Mapping[int, int]) -> int:
        """Return how many records it has not acknowledged in segments that end where ``ends`` says."""
        if self.type == e.SubscriptionType.CHECKPOINT:
            return 0  # It acknowledges nothing.
        count = self.progress.unacknowledged_records
        return sum([count(n, ends[n]).records for n in frozenset(ends) - self.drained])

    def forget_segments(self, ends: Mapping[int, int]) -> None:
        """Drop the state of pruned segments. ``ends``: segment → offset after its last record."""
        kept = self.redelivery.attempts.keys() & ends.keys()
        parked = kept if self.type == e.SubscriptionType.STREAM else ()
        self.dropped_records += self.unread_in(ends) + sum(map(self.redelivery.records, parked))
        for held in self.holdings.held_in(ends.keys()):
            self._release(held)
        self.redelivery.forget(kept)
        self.progress.forget(ends.keys())
        for segment in ends.keys() & self.weights.keys():
            del self.weights[segment]
