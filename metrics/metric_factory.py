"""Creates metrics with bounded labels, and registers the events that update them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from metrics.declared import Metric, Values
from metrics.events import Event

OTHER: Final = "other"
"""Replaces every label value that is not listed."""

Family = TypeVar("Family", Counter, Gauge, Histogram)
E = TypeVar("E", bound=Event)


class LabeledMetric(Generic[Family]):
    """The label children of one metric. Each is looked up once, because the lookup takes a lock."""

    def __init__(self, family: Family, *allowed: Values, from_zero: bool = True) -> None:
        """``from_zero``: series whose labels are known exist at once, so that a rate shows the first event."""
        self._family: Family = family
        self._allowed = allowed
        self._children: dict[tuple[str | int, ...], Family] = {}
        for values in product(*(each or () for each in allowed)) if from_zero else ():
            self.child(*values)

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

    def of_shard(self, shard: int) -> list[Family]:
        """Return the children that a shard has so far; the first label is the shard."""
        return [child for labels, child in self._children.items() if labels[0] == shard]

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

    `declare` covers the usual case: the metrics that one event updates. `counter`, `gauge`, `histogram` and `on` serve
    the others. ``labels`` maps each label to its values.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.handlers: dict[type[Event], tuple[Callable[[Event], None], ...]] = {}
        self.labels: dict[str, Mapping[str, Values]] = {}
        self._created: dict[str, LabeledMetric[Any]] = {}

    def on(self, event_type: type[E], handler: Callable[[E], object]) -> None:
        """Call ``handler`` for each event of this type, after the handlers that were registered before."""
        # The cast is safe: `Instruments.observe` passes a handler only events of the type that it was registered for.
        self.handlers[event_type] = (*self.handlers.get(event_type, ()), cast("Callable[[Event], None]", handler))

    def counter(self, name: str, text: str, **labels: Values) -> LabeledMetric[Counter]:
        return self._add(name, Counter, text, labels)

    def gauge(self, name: str, text: str, *, from_zero: bool = True, **labels: Values) -> LabeledMetric[Gauge]:
        return self._add(name, Gauge, text, labels, from_zero=from_zero)

    def created(self, name: str) -> LabeledMetric[Any]:
        """Return a metric that was created before, for another event that updates it."""
        return self._created[name]

    def removable_gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Create a gauge whose children are removed again, which `LabeledMetric` cannot do."""
        return Gauge(self._named(name, dict.fromkeys(labels)), text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], **labels: Values) -> LabeledMetric[Histogram]:
        return self._add(name, partial(Histogram, buckets=buckets), text, labels)

    def _add(
        self, name: str, kind: Callable[..., Family], text: str, labels: Mapping[str, Values], *, from_zero: bool = True
    ) -> LabeledMetric[Family]:
        family = kind(self._named(name, labels), text, tuple(labels), registry=self._registry)
        created = self._created[name] = LabeledMetric(family, *labels.values(), from_zero=from_zero)
        return created

    def _named(self, name: str, labels: Mapping[str, Values]) -> str:
        full_name = f"headgate_{name}"
        self.labels[full_name] = labels
        return full_name

    def declare(self, event_type: type[Event]) -> None:
        for declared in event_type.exported:
            value = attrgetter(declared.field) if declared.field else lambda _: 1
            self.on(event_type, self._update(declared, declared.label_values(event_type), value))

    def _update(
        self, declared: Metric, labels: Mapping[str, Values], value: Callable[[Event], float]
    ) -> Callable[[Event], None]:
        match declared.kind:
            case "counter":
                counter = self.counter(declared.name, declared.text, **labels).of(*labels)
                return lambda event: counter(event).inc(value(event))
            case "gauge":
                gauge = self.gauge(declared.name, declared.text, from_zero=False, **labels).of(*labels)
                return lambda event: gauge(event).set(value(event))
            case "histogram":
                histogram = self.histogram(declared.name, declared.text, declared.buckets, **labels).of(*labels)
                return lambda event: histogram(event).observe(value(event))
