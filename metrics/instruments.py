"""Exports the daemon's events as Prometheus metrics.

1. Names are ``headgate_<noun>_<unit>``, with ``_total`` for counters. Units are seconds, bytes, or
   a count.
2. Labels are bounded: the shard, or a listed value, else ``other``. Topics and subscriptions are
   labels for a limited number of subscriptions (`metrics.families.backlogs`).
3. Series with known labels start at 0, so that a rate shows the first failure.
4. What a daemon holds (consumers, batches in flight) is read from its status every few seconds, so
   that it cannot drift.
"""

from collections.abc import Collection

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from metrics import events
from metrics.families.backlogs import DEFAULT_MAX_SUBSCRIPTIONS, BacklogMetrics
from metrics.families.status import add_dependency_metrics, add_leadership_metrics, add_shard_metrics
from metrics.metric_factory import MetricFactory


class Instruments:
    def __init__(
        self,
        registry: CollectorRegistry,
        backlog_topics: Collection[str] = (),
        max_subscriptions: int = DEFAULT_MAX_SUBSCRIPTIONS,
    ) -> None:
        """Register every metric in ``registry``, which must not contain those of other `Instruments`.

        ``backlog_topics``: the topics whose subscriptions are exported by name however quiet they are.
        ``max_subscriptions``: how many other subscriptions are, the busiest.
        """
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry
        self.store_problems: dict[str, str] = {}
        """Kind of operation of the object store → why its last one failed. `/readyz` shows it."""
        metrics = MetricFactory(registry)
        for event_type in events.EVENT_TYPES:
            metrics.declare(event_type)
        add_shard_metrics(metrics)
        add_leadership_metrics(metrics)
        add_dependency_metrics(metrics)
        BacklogMetrics(metrics, backlog_topics, max_subscriptions)
        problems = self.store_problems
        metrics.on(events.StoreOperationSucceeded, lambda event: problems.pop(event.operation, None))
        metrics.on(events.StoreOperationFailed, lambda event: problems.update({event.operation: event.reason}))
        ProcessCollector(registry=registry)
        self._handlers = metrics.handlers
        self.labels = metrics.labels
        """Metric → label → its values; None where the cluster or the settings bound them."""

    def observe(self, event: events.Event) -> None:
        for handler in self._handlers[type(event)]:
            handler(event)

    def writes_fail(self) -> bool:
        """Return whether the last write to the object store has failed: this daemon cannot lead."""
        return "create" in self.store_problems
