"""The values of a trial, and its report as a table and as JSON. Pure.

A stage adds values as it measures them, so a trial that is stopped reports what it has.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from scale.sizes import Sizes

LARGE: Final = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured value. ``unit`` is the last word of what it is in JSON."""

    stage: str
    name: str
    value: float
    unit: str


@dataclass(slots=True)
class Report:
    """What a trial found."""

    sizes: Sizes
    machine: str
    command: str
    measured: list[Measured] = field(default_factory=list)
    unfinished: str = ""
    """Why the trial ended before its last stage; empty if it did not."""

    def document(self) -> dict[str, Any]:
        """Return the report for programs."""
        stages: dict[str, dict[str, float]] = {}
        for each in self.measured:
            key = "_".join([*each.name.replace(",", "").replace("/", "_").split(), each.unit.replace("/", "_per_")])
            stages.setdefault(each.stage, {})[key.strip("_")] = each.value
        return {
            "sizes": asdict(self.sizes),
            "machine": self.machine,
            "command": self.command,
            "unfinished": self.unfinished,
            "stages": stages,
        }


def shown(value: float) -> str:
    """Return a value with three significant digits, or all digits before the point of a large one."""
    return f"{value:,.0f}" if value >= LARGE or value == int(value) else f"{value:.3g}"


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the smallest of ``values`` that at least ``fraction`` (0 to 1) of them do not exceed; 0 of none."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(fraction * len(ranked)))] if ranked else 0.0


def metric_lines(page: str) -> tuple[int, int]:
    """Return how many families and how many series a page of metrics has."""
    lines = page.splitlines()
    return sum(line.startswith("# TYPE ") for line in lines), sum(bool(line) and line[0] != "#" for line in lines)
