"""Creates metrics with bounded labels, and registers the events that update them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final, Generic, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.errors import HeadgateError
from metrics.events import Event

OTHER: Final = "other"
"""Replaces every label value that is not listed."""

WAIT_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds that consumers wait. Drain polls are 2 s to 900 s apart."""

Family = TypeVar("Family", Counter, Gauge, Histogram)
E = TypeVar("E", bound=Event)
Values = Sequence[str] | None
"""The values that a label may have; None for a shard, whose number is bounded by the cluster."""


class UnhandledEventsError(HeadgateError):
    """Some types of events have no handler. A programming error, raised at start-up."""


class LabeledMetric(Generic[Family]):
    """The label children of one metric. Each is looked up once, because the lookup takes a lock."""

    def __init__(self, family: Family, *allowed: Values) -> None:
        self._family: Family = family
        self._allowed = allowed
        self._children: dict[tuple[str | int, ...], Family] = {}
        if len(allowed) == 1 and allowed[0] is not None:
            for value in allowed[0]:
                self.child(value)

    def child(self, *labels: str | int) -> Family:
        """Return the child for ``labels``. Values that are not listed share one child, which bounds their number."""
        if (child := self._children.get(labels)) is not None:
            return child
        if not labels:
            return self._family
        bounded = tuple(
            value if allowed is None or value in allowed else OTHER
            for value, allowed in zip(labels, self._allowed, strict=True)
        )
        return self._children.setdefault(bounded, self._family.labels(*bounded))

    def of(self, *fields: str) -> Callable[[Event], Family]:
        """Return a function that returns the child for an event, whose ``fields`` are the labels."""
        if not fields:
            return lambda _: self._family
        children = self._children
        if len(fields) == 1:
            (field,) = fields
            return lambda event: children.get(key := (getattr(event, field),)) or self.child(*key)
        get = attrgetter(*fields)
        return lambda event: children.get(key := get(event)) or self.child(*key)


class StateGauge:
    """A state, as one gauge per possible value. Exactly one of them is 1."""

    def __init__(self, metric: LabeledMetric[Gauge], initial: str) -> None:
        self._metric = metric
        self._current = metric.child(initial)
        self._current.set(1)

    def set_state(self, state: str) -> None:
        self._current.set(0)
        self._current = self._metric.child(state)
        self._current.set(1)


class MetricFactory:
    """Creates metrics in one registry, with the program's prefix, and collects the handlers of events.

    `count`, `gauge_of` and `time` cover the usual case: one event updates one metric, and the
    labels are fields of the event. ``labels`` maps each label to its values. `counter`, `gauge`,
    `histogram` and `on` serve the other cases.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.handlers: dict[type[Event], tuple[Callable[[Event], None], ...]] = {}
        self.labels: dict[str, Mapping[str, Values]] = {}
        """Metric → label → its values."""

    def on(self, event_type: type[E], handler: Callable[[E], None]) -> None:
        """Call ``handler`` for each event of this type, after the handlers that were registered before."""
        # The cast is safe: `Instruments.observe` passes a handler only events of the type that it
        # was registered for.
        self.handlers[event_type] = (*self.handlers.get(event_type, ()), cast("Callable[[Event], None]", handler))

    def require_handlers(self, event_types: Iterable[type[Event]]) -> None:
        """Raise UnhandledEventsError unless each of ``event_types`` has a handler."""
        if unhandled := sorted(each.__name__ for each in set(event_types) - self.handlers.keys()):
            raise UnhandledEventsError(f"no metric observes {', '.join(unhandled)}: register a handler for each")

    def counter(self, name: str, text: str, **labels: Values) -> LabeledMetric[Counter]:
        family = Counter(self._named(name, labels), text, tuple(labels), registry=self._registry)
        return LabeledMetric(family, *labels.values())

    def gauge(self, name: str, text: str, **labels: Values) -> LabeledMetric[Gauge]:
        family = Gauge(self._named(name, labels), text, tuple(labels), registry=self._registry)
        return LabeledMetric(family, *labels.values())

    def removable_gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Create a gauge whose children are removed again, which `LabeledMetric` cannot do."""
        full_name = self._named(name, dict.fromkeys(labels))
        return Gauge(full_name, text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Values) -> LabeledMetric[Histogram]:
        full_name = self._named(name, labels)
        family = Histogram(full_name, text, tuple(labels), buckets=buckets, registry=self._registry)
        return LabeledMetric(family, *labels.values())

    def _named(self, name: str, labels: Mapping[str, Values]) -> str:
        """Return the exported name of a metric, and remember its labels."""
        full_name = f"headgate_{name}"
        self.labels[full_name] = labels
        return full_name

    def count(self, event_type: type[Event], name: str, text: str, *, by: str = "", **labels: Values) -> None:
        """Create a counter of the events of this type, or of their field ``by``."""
        child = self.counter(name, text, **labels).of(*labels)
        if by:
            amount = attrgetter(by)
            self.on(event_type, lambda event: child(event).inc(amount(event)))
        else:
            self.on(event_type, lambda event: child(event).inc())

    def gauge_of(
        self, event_type: type[Event], field: str, name: str, text: str, **labels: Values
    ) -> LabeledMetric[Gauge]:
        """Create a gauge that shows ``field`` of the newest event of this type."""
        metric = self.gauge(name, text, **labels)
        child, value = metric.of(*labels), attrgetter(field)
        self.on(event_type, lambda event: child(event).set(value(event)))
        return metric

    def time(
        self,
        event_type: type[Event],
        name: str,
        text: str,
        buckets: Sequence[float],
        *,
        field: str = "seconds",
        **labels: Values,
    ) -> None:
        """Create a histogram of ``field`` of the events of this type."""
        child, value = self.histogram(name, text, buckets, **labels).of(*labels), attrgetter(field)
        self.on(event_type, lambda event: child(event).observe(value(event)))
