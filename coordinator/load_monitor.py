"""Samples the load of one subscription's segments and records the resulting weights.

It takes no samples while the subscription balances by count.
"""

from collections.abc import Iterable

import structlog

from coordinator.ports import CoordinatorSettings, LedgerPort
from headgate.model import entries as e
from metrics import events
from metrics.label_values import WeightChange
from shard.balancing.weights import LoadSample, WeightSmoother
from shard.state.subscription import Subscription
from shard.state.topic_view import TopicView

log = structlog.get_logger(__name__)


class LoadMonitor:
    """The weights of one subscription during one leader term."""

    def __init__(
        self,
        *,
        subscription: Subscription,
        topic: TopicView,
        ledger: LedgerPort,
        settings: CoordinatorSettings,
        observer: events.Observer,
    ) -> None:
        self._subscription = subscription
        self._topic = topic
        self._ledger = ledger
        self._settings = settings
        self._observer = observer
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
                now_seconds, subscription.weights, self._settings.weight_change_interval_seconds
            )
        self._due_at = now_seconds + self._settings.load_sample_interval_seconds
        load_samples = {segment: self._load_sample(segment) for segment in segments}
        changed = self._smoother.add_sample(now_seconds, load_samples, subscription.weights)
        if not changed:
            return False
        for segment, weight in changed.items():
            before = subscription.weights.get(segment)
            change: WeightChange = "initial" if before is None else "increased" if weight > before else "decreased"
            self._observer.observe(events.SegmentWeightChanged(change=change))
        self._ledger.propose(
            e.SegmentWeightsSet(
                topic_id=self._topic.topic_id, subscription_id=subscription.subscription_id, weights=changed
            )
        )
        log.info(
            "segment.weights_changed", topic=self._topic.name, subscription=subscription.name, changed=len(changed)
        )
        return True

    def _load_sample(self, segment: int) -> LoadSample:
        tail, subscription = self._topic.tails[segment], self._subscription
        backlog = 0
        if subscription.type != e.SubscriptionType.CHECKPOINT:
            backlog = subscription.unacknowledged_records(segment, tail.next_offset).records
        return LoadSample(tail.next_offset, tail.size_bytes, backlog)
