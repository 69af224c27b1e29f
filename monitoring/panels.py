"""What the dashboard shows: rows of panels with their queries, as values. Pure.

1. Each metric of a daemon is in a panel here, or in a rule; a test compares them with the registry.
2. ``$job`` is the cluster. Panels of subscriptions also follow ``$topic`` and ``$subscription``.
3. A gauge of a shard is the highest of all daemons, because those that do not lead it export old
   values or 0. A counter is the sum.
4. A panel of one metric has the text of that metric.
"""

from dataclasses import dataclass
from typing import Final, Literal

from grafana_foundation_sdk.models import units

CLUSTER: Final = 'job="$job"'
LEADS: Final = "on (job, instance) headgate_shard_is_leader == 1"
SUBSCRIPTION: Final = f'{CLUSTER}, topic=~"$topic", subscription=~"$subscription"'


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""
    """Name of a series, with the values of labels: `shard {{shard}}`."""
    metric: str = ""
    """Its text describes the panel. Empty: several, or one that is not shown as it is."""


@dataclass(frozen=True)
class Panel:
    """A graph over time, or one number (``stat``)."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""
    """Empty: that of the metric."""
    kind: Literal["graph", "stat"] = "graph"
    red_from: float | None = None
    """A ``stat`` is red from this value on; None: it is never red."""


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = True


def _legend(by: str, prefix: str = "") -> str:
    name = " ".join(f"{label} {{{{{label}}}}}" if label == "shard" else f"{{{{{label}}}}}" for label in by.split(", "))
    return f"{prefix}{name}" if by else prefix.rstrip(": ")


def rate(metric: str, by: str = "", prefix: str = "") -> Query:
    """Return the increase of a counter per second."""
    of = f" by ({by})" if by else ""
    return Query(f"sum{of} (rate(headgate_{metric}{{{CLUSTER}}}[$__rate_interval]))", _legend(by, prefix), metric)


def increase(metric: str, by: str = "", prefix: str = "") -> Query:
    """Return the increase of a counter per step."""
    of = f" by ({by})" if by else ""
    return Query(f"sum{of} (increase(headgate_{metric}{{{CLUSTER}}}[$__rate_interval]))", _legend(by, prefix), metric)


def highest(metric: str, by: str = "shard", prefix: str = "") -> Query:
    return Query(f"max by ({by}) (headgate_{metric}{{{CLUSTER}}})", _legend(by, prefix), metric)


def summed(metric: str, by: str = "", prefix: str = "") -> Query:
    of = f" by ({by})" if by else ""
    return Query(f"sum{of} (headgate_{metric}{{{CLUSTER}}})", _legend(by, prefix), metric)


def quantiles(metric: str, *, by: str = "") -> tuple[Query, ...]:
    """Return median and 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by ({labels}) "
            f"(rate(headgate_{metric}_bucket{{{CLUSTER}}}[$__rate_interval])))",
            _legend(by, f"{name} "),
            metric,
        )
        for quantile, name in ((0.5, "p50"), (0.99, "p99"))
    )


def behind(metric: str) -> Query:
    """Return by how many chunks the newest one of this kind is behind the head of the ledger."""
    head = f"max by (shard) (headgate_ledger_head_chunk{{{CLUSTER}}})"
    return Query(f"{head} - max by (shard) (headgate_{metric}{{{CLUSTER}}})", "shard {{shard}}")


def subscription(metric: str) -> Query:
    name = f"subscription_{metric}"
    expression = f"max by (topic, subscription) (headgate_{name}{{{SUBSCRIPTION}}})"
    return Query(expression, "{{topic}} {{subscription}}", name)


def graph(title: str, unit: str, *queries: Query, text: str = "") -> Panel:
    return Panel(title, unit, queries, text)


def stat(title: str, query: Query, red_from: float | None = None, *, text: str = "") -> Panel:
    return Panel(title, units.NoUnit, (query,), text, "stat", red_from)
