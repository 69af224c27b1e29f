"""The holders of one subscription that make no progress: reports them, and says whose segments go to others.

shard.subscriptions.stalled decides. A consumer that lost a segment so keeps the others, and gets no further one until
it makes progress, or its program asks for a record.
"""

import math
from collections.abc import Callable, Mapping

import structlog

from coordinator.ports import SubscriptionContext
from headgate.model import entries as e
from headgate.model.hashing import SegmentSlice
from metrics import events
from shard.subscriptions import stalled
from shard.subscriptions.sessions import MISSED_HEARTBEATS

CHECK_INTERVAL_SECONDS = 1.0
"""A check looks at every holding of the subscription."""

log = structlog.get_logger(__name__)


class ProgressMonitor:
    """The progress of one subscription's holders during one leader term."""

    def __init__(self, context: SubscriptionContext) -> None:
        self.unfinished: dict[SegmentSlice, stalled.Unfinished] = {}
        """Holders that have made no progress for more than half the limit."""
        self._context = context
        self._seen_at: dict[tuple[SegmentSlice, int], float] = {}
        """(slice, since when its holder has made no progress) → loop time at which this leader saw it first."""
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
        if now < self._due_at or not (limit_ms or self._excluded):
            return None
        self._due_at = now + CHECK_INTERVAL_SECONDS
        now_ms, window = context.ledger.now_ms(), MISSED_HEARTBEATS * context.settings.heartbeat_interval_seconds
        self._watches_since_ms = min(self._watches_since_ms, now_ms) if limit_ms else math.inf
        found = list(stalled.unfinished(subscription, context.topic, now_ms, unhandled())) if limit_ms else []
        keys = [(each.segment_slice, each.since_ms) for each in found]
        self._seen_at = {key: self._seen_at.get(key, now) for key in keys}
        late = [
            each
            for each, key in zip(found, keys, strict=True)
            if stalled.is_stalled(
                each.since_ms,
                now_ms,
                now - self._seen_at[key],
                limit_ms,
                window if each.since_ms < self._watches_since_ms else math.inf,
            )
        ]
        self.unfinished = {each.segment_slice: each for each in found if 2 * (now_ms - each.since_ms) >= limit_ms}
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
