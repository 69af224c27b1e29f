"""The deliveries of one subscription: begins them, parks keys, chooses who sends dead letters, reports who is stalled.

shard.subscriptions.deliveries and shard.subscriptions.parking decide. What must survive a leader is in the ledger. The
sender of dead letters, and the problem that it reports, are known to this term only.

The first connected consumer sends all dead letters of the subscription, in order, so one named producer is enough.
Each reply that has dead letters gives it a later incarnation, by the ledger's time: it opens a producer for each.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from coordinator.context import SubscriptionContext
from headgate.model import entries as e
from headgate.model.layout import SegmentSlice
from headgate.protocol import requests
from headgate.protocol.replies import DeliveriesBegun, Done, Redelivery
from metrics import events
from shard.subscriptions import deliveries, parking, stalled
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.registration import MISSED_HEARTBEATS

CHECK_INTERVAL_SECONDS = 1.0
"""A check looks at every holding of the subscription."""
MAX_DOUBLED_MS = 60_000
"""By so much, a sender's incarnation is at most doubled: it is behind no clock for longer than twice that."""

log = structlog.get_logger(__name__)


class ProgressMonitor:
    """The holders of one subscription that make no progress: reports them, and says whose segments go to others.

    shard.subscriptions.stalled decides. A consumer that lost a segment so keeps the others, and gets no further one
    until it makes progress, or its program asks for a record.
    """

    def __init__(self, context: SubscriptionContext) -> None:
        self.unfinished: dict[SegmentSlice, stalled.Unfinished] = {}
        """Holders that have made no progress for more than half the limit."""
        self._context = context
        self._seen: dict[tuple[SegmentSlice, str, int, int], tuple[float, stalled.Unfinished]] = {}
        """(slice, holder, offset, progress) → loop time at which this leader saw it first, and what it saw then."""
        self._reported: set[tuple[SegmentSlice, int, bool]] = set()
        """(slice, since when, whether another consumer gets it) of what the last check found stalled."""
        self._excluded: set[str] = set()
        """Consumers that got no further segment at the last check."""
        self._due_at = 0.0
        self._watches_since_ms = math.inf
        """Ledger time since which this leader has checked. What began later has its whole limit by its own clock."""

    def check(self, now: float, unhandled: Callable[[], Mapping[int, int | None]]) -> Mapping[SegmentSlice, str] | None:
        """Return the slices that others get, and their holders. None: no consumer has stalled or resumed."""
        context, subscription = self._context, self._context.subscription
        limit_ms = subscription.redelivery.policy.max_processing_ms
        if now < self._due_at or not (limit_ms or self._excluded or self.unfinished):
            return None
        self._due_at = now + CHECK_INTERVAL_SECONDS
        now_ms, window = context.ledger.now_ms(), MISSED_HEARTBEATS * context.settings.heartbeat_interval_seconds
        self._watches_since_ms = min(self._watches_since_ms, now_ms) if limit_ms else math.inf
        found = list(stalled.unfinished(subscription, context.topic, now_ms, unhandled())) if limit_ms else []
        keys = [(each.segment_slice, each.consumer, each.offset, each.progressed_ms) for each in found]
        self._seen = {key: self._seen.get(key, (now, each)) for key, each in zip(keys, found, strict=True)}

        def is_late(since_ms: int, seen_at: float) -> bool:
            window_seconds = window if since_ms < self._watches_since_ms else math.inf
            return stalled.is_stalled(since_ms, now_ms, now - seen_at, limit_ms, window_seconds)

        late = [each for seen_at, each in self._seen.values() if is_late(each.since_ms, seen_at)]
        slow = [each for _, each in self._seen.values() if 2 * (now_ms - each.since_ms) >= limit_ms]
        self.unfinished = {each.segment_slice: each for each in slow}
        taken = stalled.takeable(subscription, late)
        self._report(late, moved=bool(taken), now_ms=now_ms)
        excluded = {name for name, each in subscription.consumers.items() if each.stalled_at_ms is not None}
        excluded |= {*taken.values()}  # One may resume before the next check.
        changed, self._excluded = excluded != self._excluded, excluded
        return taken if taken or changed else None

    def resumed(self, consumer: str) -> None:
        """Record that the program of a consumer asks for records again."""
        known = self._context.subscription.consumers[consumer]
        if known.stalled_at_ms is not None:
            ids = self._context.subscription.ids
            self._context.ledger.propose(e.ConsumerReconnected(**ids, consumer=consumer, incarnation=known.incarnation))

    def _report(self, late: list[stalled.Unfinished], *, moved: bool, now_ms: int) -> None:
        before, self._reported = self._reported, {(each.segment_slice, each.since_ms, moved) for each in late}
        for each in late:
            if (each.segment_slice, each.since_ms, moved) not in before:
                self._context.observer.observe(events.SegmentStalled(outcome="moved" if moved else "kept"))
                log.warning(
                    "consumer.stalled",
                    topic=self._context.topic.name,
                    subscription=self._context.subscription.name,
                    consumer=each.consumer,
                    segment=str(each.segment_slice),
                    offset=each.offset,
                    seconds=(now_ms - each.since_ms) / 1000,
                    moved=moved,
                )


class DeliveryMonitor:
    """The deliveries of one subscription during one leader term."""

    def __init__(self, context: SubscriptionContext) -> None:
        self.problem = ""
        """Why dead letters are not sent; empty: nothing is known to be wrong."""
        self.progress = ProgressMonitor(context)
        self._context = context
        self._subscription, self._topic, self._ledger = context.subscription, context.topic, context.ledger
        self._ids = context.subscription.ids
        self._sender_at_ms = 0
        """The newest incarnation of the dead letters' producer."""

    def counts(self) -> Counter[str]:
        """Return what `ShardCounts` sums."""
        redelivery = self._subscription.redelivery
        if not (redelivery.attempts or redelivery.dead):
            return Counter()
        limit = deliveries.record_limit(self._topic)
        kept = [redelivery.records(segment) for segment in redelivery.attempts]
        dead = len(redelivery.dead)
        full, unsent = sum(records >= limit for records in kept), dead if self.problem else 0
        return Counter(kept_deliveries=sum(kept), dead_records=dead, unsent_dead_letters=unsent, full_segments=full)

    def begin(self, request: requests.BeginDeliveries) -> DeliveriesBegun:
        limit = deliveries.record_limit(self._topic)
        begun, reply = deliveries.judge_begun(self._subscription, self._topic, request, limit)
        if begun:
            self._ledger.propose(e.DeliveriesBegun(**self._ids, records=begun))
        if reply.delayed:
            self._context.observer.observe(events.DeliveriesJudged(count=len(reply.delayed), outcome="delayed"))
        return reply

    def fail(self, batch: requests.AcknowledgeBatch) -> tuple[list[tuple[int, str]], list[tuple[int, Redelivery]]]:
        """Record negative acknowledgements; return by index why some do not count, and when the others are due."""
        now_ms, limit = self._ledger.now_ms(), deliveries.record_limit(self._topic)
        failed, rejected = deliveries.judge_failed(self._subscription, self._topic, batch, limit, now_ms)
        if failed:
            self._ledger.propose(e.DeliveriesFailed(**self._ids, records=failed))
            self._context.observer.observe(events.DeliveriesJudged(count=len(failed), outcome="failed"))
        refused = dict(rejected)
        due = [
            (index, deliveries.redelivery_of(self._topic, each.segment, each.offset, attempts, now_ms))
            for index, each in enumerate(batch.negative)
            if index not in refused
            for attempts in [self._subscription.redelivery.of(each.segment, each.offset)]
        ]
        return rejected, due

    def dead_letters_stored(self, request: requests.ConfirmDeadLetters) -> list[int]:
        """Record that dead letters are in their topics, which acknowledges those of a QUEUE; return their segments."""
        stored = deliveries.stored_dead_letters(self._subscription, request)
        if stored and self._subscription.type == e.SubscriptionType.STREAM:
            self._ledger.propose(e.ParkedRecordsStored(**self._ids, numbers=sorted(stored)))
        elif stored:
            # In all buckets, as each is one record.
            ranges = [e.AcknowledgedRange(segment, offset, offset + 1) for segment, offset in stored.values()]
            generation = self._subscription.seek_generation
            self._ledger.propose(e.RecordsAcknowledged(**self._ids, seek_generation=generation, ranges=ranges))
        self._context.observer.observe(events.DeliveriesJudged(count=len(stored), outcome="dead_letter"))
        return [segment for segment, _ in stored.values()]

    def park(self, request: requests.ParkKey | requests.UnparkKey) -> Done | Refusal:
        """Park a key, or end its parking; or say why not."""
        judged = (
            parking.judge_park(self._subscription, self._topic, request)
            if isinstance(request, requests.ParkKey)
            else parking.judge_unpark(self._subscription, self._topic, request)
        )
        if isinstance(judged, str):
            return Refusal("invalid", judged, after_proposed=True)
        if judged is not None:
            self._ledger.propose(judged)
            names = {"topic": self._topic.name, "subscription": self._subscription.name, "key": repr(judged.key)}
            if isinstance(judged, e.KeyParked):
                log.warning("key.parked", **names, reason=judged.reason, consumer=request.consumer)
            else:
                log.warning("key.unparked", **names, consumer=request.consumer)
        return Done()

    def duty(self, request: requests.Heartbeat) -> dict[str, Any]:
        """Return the fields of a heartbeat reply that say what a consumer does with failed deliveries."""
        fields: dict[str, Any] = {
            "policy": self._subscription.redelivery.policy,
            "resuming": parking.resuming_keys(self._subscription, self._topic, request.consumer),
        }
        if (sender := deliveries.sender_of(self._subscription)) != request.consumer:
            self.problem = self.problem if sender else ""
            return fields
        self.problem = request.dead_letter_problem
        # While ledger time waits for a clock, a previous leader may have named later ones: doubling catches up.
        ahead_ms = max(0, self._sender_at_ms - (now_ms := self._ledger.now_ms()))
        doubles = self.problem and self._context.now_ms() < now_ms and ahead_ms < MAX_DOUBLED_MS
        self._sender_at_ms = max(now_ms, self._sender_at_ms + 1 + (ahead_ms if doubles else 0))
        letters = deliveries.next_dead_letters(self._subscription, self._topic, held_up=bool(self.problem))
        secret = self._subscription.redelivery.secret
        return fields | {"dead_letters": letters, "sender_since_ms": self._sender_at_ms, "sender_secret": secret}
