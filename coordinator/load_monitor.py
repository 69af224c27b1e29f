"""Samples the load of one subscription's segments and records the resulting weights.

It takes no samples while the subscription balances by count.
"""

from collections.abc import Iterable

import structlog

from coordinator.context import SubscriptionContext
from headgate.model import entries as e
from metrics import events
from metrics.label_values import WeightChange
from shard.balancing.weights import LoadSample, WeightSmoother

log = structlog.get_logger(__name__)


class LoadMonitor:
    """The weights of one subscription during one leader term."""

    def __init__(self, context: SubscriptionContext) -> None:
        self._context = context
        self._subscription, self._topic = context.subscription, context.topic
        self._smoother: WeightSmoother[int] | None = None
        self._due_at = 0.0

    def is_due(self, now_seconds: float) -> bool:
        """Return whether a sample is due at this monotonic time; never when balancing by count."""
        if self._subscription.balance != "load":
            self._smoother = None
            return False
        return self._smoother is None or now_seconds >= self._due_at

    def add_sample(self, now_seconds: float, segments: Iterable[int]) -> bool:
        """Sample ``segments``; return whether a weight changed.

        ``segments`` are all that are not drained, including blocked ones: a child then has a weight
        when it is unblocked.
        """
        subscription = self._subscription
        if self._smoother is None:
            self._smoother = WeightSmoother(
                now_seconds, subscription.weights, self._context.settings.weight_change_interval_seconds
            )
        self._due_at = now_seconds + self._context.settings.load_sample_interval_seconds
        load_samples = {segment: self._load_sample(segment) for segment in segments}
        changed = self._smoother.add_sample(now_seconds, load_samples, subscription.weights)
        if not changed:
            return False
        for segment, weight in changed.items():
            before = subscription.weights.get(segment)
            change: WeightChange = "initial" if before is None else "increased" if weight > before else "decreased"
            self._context.observer.observe(events.SegmentWeightChanged(change=change))
        self._context.ledger.propose(e.SegmentWeightsSet(**self._subscription.ids, weights=changed))
        log.info(
            "segment.weights_changed", topic=self._topic.name, subscription=subscription.name, changed=len(changed)
        )
        return True

    def _load_sample(self, segment: int) -> LoadSample:
        tail, subscription = self._topic.tails[segment], self._subscription
        backlog = 0
        if subscription.type != e.SubscriptionType.CHECKPOINT:
            backlog = subscription.progress.unacknowledged_records(segment, tail.next_offset).records
        return LoadSample(tail.next_offset, tail.size_bytes, backlog)
