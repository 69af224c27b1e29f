"""The command line of the figures.

``python -m bench --list``, ``python -m bench NAME [--quick] [--json] [--strict] [--plot FILE]``.

Results go to standard output, a table for people first and always one JSON object on the last line; progress goes to
standard error. Exit code 0 when a figure was measured, 1 when it crashed, or with ``--strict`` when its goal does not
hold, 2 for a name that no figure has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench._harness import Effort, Figure, Measured, catalogue
from bench._logs import log_to_standard_error

Figures = Mapping[str, Callable[[], tuple[Figure, str]]]


def command(figures: Figures) -> click.Command:
    """Return the command line over ``figures`` (name → loader of the figure and its docstring)."""

    @click.command(name="bench", help="Measure one figure against what it is compared to.")
    @click.argument("name", required=False)
    @click.option("--list", "listing", is_flag=True, help="List the figures and stop.")
    @click.option("--quick", is_flag=True, help="Less work and fewer rounds: shows that it runs, proves little.")
    @click.option("--json", "only_json", is_flag=True, help="Print the JSON object alone.")
    @click.option("--strict", is_flag=True, help="Exit with 1 when the goal does not hold.")
    @click.option(
        "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw an SVG, where the figure has one."
    )
    def main(name: str | None, listing: bool, quick: bool, only_json: bool, strict: bool, plot: Path | None) -> None:
        if listing:
            _list(figures, only_json)
            return
        names = ", ".join(figures)
        if name is None:
            raise click.UsageError(f"name a figure, one of: {names}")
        if name not in figures:
            raise click.UsageError(f"there is no figure {name!r}; there are: {names}")
        if plot is not None and not figures[name]()[0].draws:
            raise click.UsageError(f"{name} has nothing to draw; leave --plot out")
        effort = Effort(quick, lambda line: click.echo(f"{name}: {line}", err=True), plot)
        if not _measure(name, figures, effort, only_json) and strict:
            raise click.exceptions.Exit(1)

    return main


def _measure(name: str, figures: Figures, effort: Effort, only_json: bool) -> bool:
    """Measure and print one figure; tell whether its goals hold."""
    figure, doc = figures[name]()
    measured = figure.measure(effort)
    holds = figure.holds_throughout(measured)
    if not only_json:
        click.echo(doc.strip())
        Console().print(_table(name, figure, measured))
    result = {
        "name": name,
        "value": round(measured.value, 4),
        "unit": figure.unit,
        "goal": figure.goal,
        "better": figure.better,
        "holds": holds,
        "parts": {**measured.parts, **{f"{part}_goal": goal for part, goal in figure.part_goals.items()}},
    }
    click.echo(json.dumps(result))
    return holds


def _table(name: str, figure: Figure, measured: Measured) -> Table:
    table = Table(title=name, show_header=False)
    for part, number in measured.parts.items():
        table.add_row(part, f"{number:g}" if isinstance(number, float) else str(number))
    sign = "≥" if figure.better == "higher" else "≤"
    table.add_section()
    table.add_row("value", f"{measured.value:.3f} {figure.unit}")
    table.add_row("goal", f"{sign} {figure.goal:g}: {_verdict(figure.holds(measured.value))}")
    missed = figure.missed_parts(measured)
    for part, goal in figure.part_goals.items():
        table.add_row(f"goal of {part}", f"{sign} {goal:g}: {_verdict(part not in missed)}")
    return table


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _list(figures: Figures, only_json: bool) -> None:
    loaded = {name: load() for name, load in figures.items()}
    if only_json:
        click.echo(json.dumps({name: _first_line(doc) for name, (_, doc) in loaded.items()}))
        return
    width = max(len(name) for name in loaded)
    for name, (_, doc) in loaded.items():
        click.echo(f"{name:<{width}}  {_first_line(doc)}")


def _first_line(doc: str) -> str:
    return doc.strip().partition("\n")[0]


if __name__ == "__main__":
    log_to_standard_error()
    command(catalogue())(prog_name="python -m bench")
