"""Decorators that declare the metrics which one event updates alone. Pure.

The text of a metric is the event's docstring, unless the event has several metrics. Labels are fields of the event. The
values of a label are those of the field's `Literal`; an int, which is a shard, may have any.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeVar, get_args, get_type_hints

WAIT_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds that consumers wait. Drain polls are 2 s to 900 s apart."""
COMMIT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: from half a millisecond on a local disk to the time after which the outcome of a write is unknown."""
SIZE_BUCKETS: Final = (1e3, 4e3, 16e3, 64e3, 256e3, 1e6, 4e6, 16e6, 64e6)
"""Bytes of a chunk: from a term chunk to a full ingest queue."""
LAG_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Seconds by which the event loop was late. The leader misses deadlines above 0.25 s."""

Values = Sequence[str] | None
"""The values that a label may have; None for a shard, whose number is bounded by the cluster."""
EventType = TypeVar("EventType", bound=Any)
_types: Final = cache(get_type_hints)


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one type of events. ``field``: what is added, shown or measured; empty: each event counts as one."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: tuple[str, ...]
    field: str
    buckets: tuple[float, ...] = ()

    def label_values(self, event_type: type) -> dict[str, Values]:
        types = _types(event_type)
        return {label: get_args(types[label]) or None for label in self.labels}


def counted(name: str, *labels: str, by: str = "", text: str = "") -> Callable[[EventType], EventType]:
    return _declare(lambda default: Metric("counter", name, text or default, labels, by))


def shown(name: str, field: str, *labels: str, text: str = "") -> Callable[[EventType], EventType]:
    return _declare(lambda default: Metric("gauge", name, text or default, labels, field))


def measured(
    name: str, buckets: tuple[float, ...], *labels: str, field: str = "seconds", text: str = ""
) -> Callable[[EventType], EventType]:
    return _declare(lambda default: Metric("histogram", name, text or default, labels, field, buckets))


def _declare(metric: Callable[[str], Metric]) -> Callable[[EventType], EventType]:
    def declare(event_type: EventType) -> EventType:
        event_type.exported = (*event_type.exported, metric(" ".join((event_type.__doc__ or "").split())))
        return event_type

    return declare
