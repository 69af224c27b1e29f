"""The reference of metrics, from the registry that a daemon exports."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Metric

from metrics.declared import Values
from metrics.instruments import Instruments
from metrics.metric_factory import OTHER
from sitebuild.settings_reference import UndocumentedError


def metrics_reference() -> str:
    """Return every metric of a daemon as Markdown: type, labels with their values, and meaning."""
    registry = CollectorRegistry()
    instruments = Instruments(registry, backlog_topics=("example",))
    families = sorted(registry.collect(), key=lambda family: family.name)
    lines = []
    for family in families:
        lines += _entry(family, instruments.labels.get(family.name, {}))
    return "\n".join(lines)


def _entry(family: Metric, labels: Mapping[str, Values]) -> list[str]:
    if not family.documentation:
        raise UndocumentedError(f"the metric {family.name} has no text")
    name = f"{family.name}_total" if family.type == "counter" else family.name
    facts = [family.type, *(f"label `{label}`{_values(values)}" for label, values in labels.items())]
    return [f"## `{name}`", "", f"*{' · '.join(facts)}*", "", family.documentation, ""]


def _values(values: Values) -> str:
    if values is None:
        return ""
    return ": " + ", ".join(f"`{value}`" for value in (*values, OTHER))
