"""The values of a trial, and its report as a table and as JSON. Pure.

A stage adds values as it measures them, so a trial that is stopped reports what it has.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rich.table import Table

from scale.sizes import Sizes

LARGE: Final = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured value. ``unit`` is the last word of what it is in JSON."""

    stage: str
    name: str
    value: float
    unit: str

    @property
    def shown(self) -> str:
        """The value with three significant digits, or all digits before the point of a large one."""
        whole = self.value >= LARGE or self.value == int(self.value)
        return f"{self.value:,.0f}" if whole else f"{self.value:.3g}"


@dataclass(slots=True)
class Report:
    sizes: Sizes
    machine: str
    command: str
    measured: list[Measured] = field(default_factory=list)
    unfinished: str = ""
    """Why the trial ended before its last stage; empty if it did not."""

    def document(self) -> dict[str, Any]:
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

    def table(self) -> Table:
        table = Table(title="Scale", title_justify="left", box=None)
        table.add_column("stage")
        table.add_column("what", max_width=48)
        table.add_column("value", justify="right")
        table.add_column("")
        before = ""
        for each in self.measured:
            table.add_row(each.stage if each.stage != before else "", each.name, each.shown, each.unit)
            before = each.stage
        return table
