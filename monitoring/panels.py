"""What a panel of the dashboard is, and the panel that follows from a metric.

1. Each metric of a daemon is in a panel, or in a rule; a test compares them with the registry.
2. ``$job`` is the cluster. Panels of subscriptions also follow ``$topic`` and ``$subscription``.
3. A gauge of a shard is the highest of all daemons, because those that do not lead it export old values or 0. If it has
   another label, its shards are summed, and without a shard, its daemons.
4. A counter is summed over daemons and shards, and shown as its increase per step. A histogram is its median and its
   99th percentile.
5. The unit is the last word of the metric's name, and the text that of the metric.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from grafana_foundation_sdk.models import units
from prometheus_client import CollectorRegistry, Metric

from metrics.instruments import Instruments

CLUSTER: Final = 'job="$job"'
LEADS: Final = "on (job, instance) headgate_shard_is_leader == 1"
SUBSCRIPTION: Final = f'{CLUSTER}, topic=~"$topic", subscription=~"$subscription"'
UNITS: Final = {
    "_bytes_per_second": units.BytesPerSecondSI,
    "_seconds": units.Seconds,
    "_bytes": units.BytesIEC,
}
"""End of a metric's name → unit; another one is a count."""
PROPER_NAMES: Final = {"Http": "HTTP", "Zookeeper": "ZooKeeper"}


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""
    """Name of a series, with the values of labels: `shard {{shard}}`."""


@dataclass(frozen=True)
class Panel:
    """A graph over time, or one number (``stat``)."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str
    kind: Literal["graph", "stat"] = "graph"
    red_from: float | None = None
    """A ``stat`` is red from this value on; None: it is never red."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = True


@cache
def exported() -> Mapping[str, tuple[Metric, Sequence[str]]]:
    """Return the metrics of a daemon with their labels, by their names without prefix and ``_total``."""
    registry = CollectorRegistry()
    labels = Instruments(registry).labels
    return {each.name.removeprefix("headgate_"): (each, [*labels.get(each.name, ())]) for each in registry.collect()}


def of(metric: str) -> Panel:
    """Return the panel of a metric (rules 2 to 5)."""
    name = metric.removesuffix("_total")
    family, labels = exported()[name]
    first, *rest = name.split("_")
    title = " ".join([PROPER_NAMES.get(first.capitalize(), first.capitalize()), *rest])
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), units.Short)
    return Panel(title, unit, tuple(_queries(metric, family.type, labels)), family.documentation)


def _queries(metric: str, kind: str, labels: Sequence[str]) -> Iterator[Query]:
    others = [label for label in labels if label != "shard"]
    by = f" by ({', '.join(others)})" if others else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in others)
    if kind == "counter":
        yield Query(f"sum{by} (increase(headgate_{metric}{{{CLUSTER}}}[$__rate_interval]))", legend)
    elif kind == "histogram":
        rates = f"rate(headgate_{metric}_bucket{{{CLUSTER}}}[$__rate_interval])"
        for quantile, word in ((0.5, "p50"), (0.99, "p99")):
            summed = f"sum by ({', '.join(['le', *others])}) ({rates})"
            yield Query(f"histogram_quantile({quantile}, {summed})", f"{word} {legend}".strip())
    elif others == ["topic", "subscription"]:
        yield Query(f"max{by} (headgate_{metric}{{{SUBSCRIPTION}}})", legend)
    elif labels == ["shard"]:
        yield Query(f"max by (shard) (headgate_{metric}{{{CLUSTER}}})", "shard {{shard}}")
    elif "shard" in labels:
        yield Query(f"sum{by} (max by ({', '.join(labels)}) (headgate_{metric}{{{CLUSTER}}}))", legend)
    elif others:
        yield Query(f"sum{by} (headgate_{metric}{{{CLUSTER}}})", legend)
    else:
        yield Query(f"headgate_{metric}{{{CLUSTER}}}", "{{instance}}")


def behind(title: str, metric: str, text: str) -> Panel:
    """Return by how many chunks the newest one of this kind is behind the head of the ledger."""
    head = f"max by (shard) (headgate_ledger_head_chunk{{{CLUSTER}}})"
    query = Query(f"{head} - max by (shard) (headgate_{metric}{{{CLUSTER}}})", "shard {{shard}}")
    return Panel(title, units.Short, (query,), text)


def graph(title: str, unit: str, expression: str, legend: str, text: str) -> Panel:
    return Panel(title, unit, (Query(expression, legend),), text)


def stat(title: str, expression: str, red_from: float | None = None, *, text: str) -> Panel:
    return Panel(title, units.NoUnit, (Query(expression),), text, "stat", red_from)


def total(title: str, metric: str, red_from: float | None = None) -> Panel:
    """Return the sum of a gauge over all daemons and shards."""
    return stat(title, f"sum (headgate_{metric}{{{CLUSTER}}})", red_from, text=exported()[metric][0].documentation)
