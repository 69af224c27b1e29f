"""Read the load of one subscription's segments now and then, and put on record what coordinator.balancing.weights makes of it.

A shell: when to read, what a reading is, and the entry. It reads nothing while the subscription balances by count.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from coordinator.balancing.weights import SAMPLE_SECONDS, Damper, Reading
from coordinator.ports import CoordinatorObserver, LedgerPort
from coordinator.state.subscription import Subscription
from coordinator.state.topic_view import TopicView
from headgate.model import entries as e

log = structlog.get_logger(__name__)


class LoadWatch:
    """The weights of one subscription during one reign."""

    def __init__(
        self, *, subscription: Subscription, topic: TopicView, ledger: LedgerPort, observer: CoordinatorObserver
    ) -> None:
        """Watch nothing yet; `read` begins."""
        self._subscription = subscription
        self._topic = topic
        self._ledger = ledger
        self._observer = observer
        self._damper: Damper[int] | None = None
        self._due_at = 0.0

    def is_due(self, now_seconds: float) -> bool:
        """Tell whether it is time to `read`; never while the balance is by count. ``now_seconds`` is monotonic."""
        if self._subscription.balance != "load":
            self._damper = None
            return False
        return self._damper is None or now_seconds >= self._due_at

    def read(self, now_seconds: float, segments: Iterable[int]) -> bool:
        """Read ``segments``; tell whether a weight changed.

        ``segments``: all that is not read to its end yet, blocked ones included, so that a child has a weight when it
        is let through.
        """
        subscription = self._subscription
        if self._damper is None:
            self._damper = Damper(now_seconds, subscription.weights)
        self._due_at = now_seconds + SAMPLE_SECONDS
        readings = {segment: self._reading(segment) for segment in segments}
        changed = self._damper.read(now_seconds, readings, subscription.weights)
        if not changed:
            return False
        for segment, weight in changed.items():
            before = subscription.weights.get(segment)
            self._observer.segment_weighed("first" if before is None else "heavier" if weight > before else "lighter")
        self._ledger.propose(
            e.SegmentsWeighed(
                topic_id=self._topic.topic_id,
                subscription_id=subscription.subscription_id,
                weights=changed,
            ),
        )
        log.info("segments.weighed", topic=self._topic.name, subscription=subscription.name, changed=len(changed))
        return True

    def _reading(self, segment: int) -> Reading:
        tail, subscription = self._topic.tails[segment], self._subscription
        backlog = 0
        if subscription.type != "CHECKPOINT":
            parts = subscription.by_bucket.get(segment) or [subscription.acknowledged_in(segment, 0)]
            taken = (part.position + sum(end - first for first, end in part.above) for part in parts)
            backlog = sum(max(0, tail.next_offset - end) for end in taken) // len(parts)
        return Reading(tail.next_offset, tail.size_bytes, backlog)
