"""The building blocks of instruments: metrics with bounded labels, and states as gauges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

OTHER: Final = "other"
"""Stands for every label value that is not listed."""

WAIT_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds: what consumers wait for; the shortest drain poll is 2 s, the longest 900 s."""

Family = TypeVar("Family", Counter, Gauge, Histogram)


class LabeledMetric(Generic[Family]):
    """The label children of one metric, each looked up once."""

    def __init__(self, family: Family, *allowed: Sequence[str] | None) -> None:
        """Take, label by label, the values that may occur; None: any (the shard)."""
        self._family: Family = family
        self._allowed = allowed
        self._children: dict[tuple[str | int, ...], Family] = {}
        if len(allowed) == 1 and allowed[0] is not None:
            for value in allowed[0]:
                self.child(value)

    def child(self, *labels: str | int) -> Family:
        """Return the child for ``labels``; values that are not listed share one, so that their number is bounded."""
        if (child := self._children.get(labels)) is not None:
            return child
        bounded = tuple(
            value if allowed is None or value in allowed else OTHER
            for value, allowed in zip(labels, self._allowed, strict=True)
        )
        return self._children.setdefault(bounded, self._family.labels(*bounded))


class StateGauge:
    """A state as one gauge a value, of which exactly one is 1."""

    def __init__(self, family: Gauge, states: Sequence[str]) -> None:
        self._children = LabeledMetric(family, states)
        self._now = self._children.child(states[0])
        self._now.set(1)

    def set_state(self, state: str) -> None:
        self._now.set(0)
        self._now = self._children.child(state)
        self._now.set(1)


class MetricFactory:
    """Makes metrics in one registry, under the names of this program."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headgate_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"headgate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"headgate_{name}", text, labels, buckets=buckets, registry=self._registry)
