"""The deliveries of one subscription: begins them, parks keys, and chooses the consumer that sends dead letters.

shard.subscriptions.deliveries and shard.subscriptions.parking decide. What must survive a leader is in the ledger. The
sender of dead letters, and the problem that it reports, are known to this term only.

The first connected consumer sends all dead letters of the subscription, in order, so one named producer is enough.
Each reply that has dead letters gives it a later incarnation, by the ledger's time: it opens a producer for each.
"""

from collections import Counter
from typing import Any

import structlog

from coordinator.ports import SubscriptionContext
from coordinator.progress_monitor import ProgressMonitor
from headgate.model import entries as e
from headgate.protocol.replies import DeliveriesBegun, Done, Redelivery
from headgate.protocol.requests import (
    AcknowledgeBatch,
    BeginDeliveries,
    ConfirmDeadLetters,
    Heartbeat,
    ParkKey,
    UnparkKey,
)
from metrics import events
from shard.subscriptions import deliveries, parking
from shard.subscriptions.refusal import Refusal

log = structlog.get_logger(__name__)


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
        full = sum(records >= limit for records in kept)
        unsent = dead if self.problem else 0
        return Counter(kept_deliveries=sum(kept), dead_records=dead, unsent_dead_letters=unsent, full_segments=full)

    def begin(self, request: BeginDeliveries) -> DeliveriesBegun:
        limit = deliveries.record_limit(self._topic)
        begun, reply = deliveries.judge_begun(self._subscription, self._topic, request, limit)
        if begun:
            self._ledger.propose(e.DeliveriesBegun(**self._ids, records=begun))
        if reply.delayed:
            self._context.observer.observe(events.DeliveriesJudged(count=len(reply.delayed), outcome="delayed"))
        return reply

    def fail(self, batch: AcknowledgeBatch) -> tuple[list[tuple[int, str]], list[tuple[int, Redelivery]]]:
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

    def dead_letters_stored(self, request: ConfirmDeadLetters) -> list[int]:
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

    def park(self, request: ParkKey | UnparkKey) -> Done | Refusal:
        """Park a key, or end its parking; or say why not."""
        judged = (
            parking.judge_park(self._subscription, self._topic, request)
            if isinstance(request, ParkKey)
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

    def duty(self, request: Heartbeat) -> dict[str, Any]:
        """Return the fields of a heartbeat reply that say what a consumer does with failed deliveries."""
        fields: dict[str, Any] = {
            "policy": self._subscription.redelivery.policy,
            "resuming": parking.resuming_keys(self._subscription, self._topic, request.consumer),
        }
        if deliveries.sender_of(self._subscription) != request.consumer:
            return fields
        self.problem = request.dead_letter_problem
        self._sender_at_ms = max(self._ledger.now_ms(), self._sender_at_ms + 1)
        letters = deliveries.next_dead_letters(self._subscription, self._topic)
        secret = self._subscription.redelivery.secret
        return fields | {"dead_letters": letters, "sender_since_ms": self._sender_at_ms, "sender_secret": secret}
