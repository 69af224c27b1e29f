"""The page docs/performance.md, and README's part, from stored results. Pure.

A result is what a benchmark prints as JSON, with ``doc`` and ``seconds`` added, or ``error`` if it could not
be measured.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

README_NAMES = ("drain_release", "security_cost")
MAX_PARTS = 48
"""Values of one benchmark on the page; a reader of more wants the file."""
README_PART = re.compile(r"(<!-- measured: .*? -->\n).*?(<!-- measured: end -->)", re.DOTALL)
QUICK = (
    "**Quick runs on a busy machine.** They show that every benchmark works. They are no measurement: "
    "`make performance` makes one."
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when the benchmarks ran."""

    processor: str
    cores: int
    memory_gb: int
    system: str
    python: str
    date: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark."""

    name: str
    doc: str
    error: str = ""
    """Why it has no value."""
    value: float = 0.0
    unit: str = ""
    goal: float = 1.0
    better: Literal["higher", "lower"] = "lower"
    goal_met: bool = False
    parts: Mapping[str, float | int | str] = {}
    seconds: int = 0
    """How long it took."""
    date: str = ""
    """When it was measured; empty: with the first of its run."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run of all benchmarks."""

    machine: Machine
    quick: bool
    benchmarks: list[Result]


def page(results: Results, folder: str) -> str:
    """Return docs/performance.md; ``folder`` is where the results are, relative to it."""
    rows = [
        f"| [{result.name}](#{result.name}) | {_value(result)} | {_goal(result)} | {_verdict(result)} |"
        for result in results.benchmarks
    ]
    sections = [line for result in results.benchmarks for line in _section(result, folder, quick=results.quick)]
    return "\n".join(
        [
            "# Performance",
            "",
            "`make performance` measures every benchmark, and writes this page from the results.",
            "`python -m bench NAME --write docs/performance` measures one again.",
            "A benchmark is a ratio between headgate and something comparable, measured in turns in one process, so",
            "that other load on the machine disturbs both. A missed goal stays, and is shown as missed.",
            "",
            *([QUICK, ""] if results.quick else []),
            *_measured_on(results),
            "",
            "| benchmark | value | goal | |",
            "|---|---|---|---|",
            *rows,
            "",
            *sections,
        ]
    )


def _measured_on(results: Results) -> list[str]:
    """Return where and when was measured, or that nothing was."""
    if all(result.error for result in results.benchmarks):
        return ["No run is stored yet."]
    machine, total = results.machine, sum(result.seconds for result in results.benchmarks)
    return [
        f"Measured on {machine.date}, in {total / 60:.0f} min: {machine.processor}, {machine.cores} cores,",
        f"{machine.memory_gb} GB of memory, {machine.system}, Python {machine.python}.",
    ]


def readme(text: str, results: Results) -> str:
    """Return README with the newest values between its marks."""
    found = {result.name: result for result in results.benchmarks if not result.error}
    chosen = [found[name] for name in README_NAMES if name in found]
    unmeasured = ["`make performance` measures all benchmarks, and writes [their page](docs/performance.md)."]
    lines = [
        *(f"* {_headline(result)}: **{_value(result)}**" for result in chosen),
        *([f"* {QUICK}"] if results.quick else []),
    ]
    return README_PART.sub(lambda part: f"{part[1]}{chr(10).join(lines if chosen else unmeasured)}\n{part[2]}", text)


def _section(result: Result, folder: str, *, quick: bool) -> list[str]:
    """Return the part about one benchmark: what it compares, its values and its command."""
    option = " --quick" if quick else ""
    command = ['```bash no-run="takes minutes"', f"python -m bench {result.name}{option}", "```", ""]
    head = [f"## {result.name}", "", *result.doc.strip().splitlines(), ""]
    if result.error:
        return [*head, f"Not measured: {result.error}", "", *command]
    parts = [f"{name} {_number(part)}" for name, part in result.parts.items() if not name.endswith("_goal")]
    if len(parts) > MAX_PARTS:
        parts[MAX_PARTS:] = [f"and {len(parts) - MAX_PARTS} more in `{folder}/results.json`"]
    values = ", ".join(parts)
    return [
        *head,
        f"**{_value(result)}**, goal {_goal(result)}: {_verdict(result)}.",
        "",
        f"Measured{_when(result)} in {_duration(result.seconds)}.",
        "",
        *([f"Parts: {values}.", ""] if values else []),
        *command,
    ]


def _headline(result: Result) -> str:
    return result.doc.strip().partition("\n")[0].rstrip(".")


def _when(result: Result) -> str:
    return f" on {result.date}" if result.date else ""


def _duration(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _value(result: Result) -> str:
    return "not measured" if result.error else f"{result.value:.3g} {result.unit}"


def _goal(result: Result) -> str:
    return "" if result.error else f"{'≤' if result.better == 'lower' else '≥'} {result.goal:g}"


def _verdict(result: Result) -> str:
    return "" if result.error else "met" if result.goal_met else "**missed**"


def _number(part: float | str) -> str:
    return f"{part:g}" if isinstance(part, float) else str(part)
