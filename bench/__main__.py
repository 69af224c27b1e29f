"""Command line of the benchmarks.

``python -m bench --list``, ``python -m bench NAME [--quick] [--json] [--strict] [--plot FILE] [--seconds N]``,
``python -m bench --all --write FOLDER [--quick]``.

Results go to standard output: a table, and one JSON object on the last line. Progress goes to
standard error. Exit code 0: measured; 1: it could not be measured (one line says what is missing),
crashed, or missed the goal with ``--strict``; 2: unknown name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.harness.all_benchmarks import measure_all, write_pages
from bench.harness.benchmark import Benchmark, Effort, Measurement, catalogue
from bench.harness.logs import log_to_standard_error
from headgate.errors import HeadgateError

Benchmarks = Mapping[str, Callable[[], tuple[Benchmark, str]]]


def command(benchmarks: Benchmarks) -> click.Command:
    """Return the command line over ``benchmarks`` (name → loader of the benchmark and its docstring)."""

    @click.command(name="bench", help="Run one benchmark.")
    @click.argument("name", required=False)
    @click.option("--list", "listing", is_flag=True, help="List the benchmarks and exit.")
    @click.option("--quick", is_flag=True, help="Do less work in fewer rounds: a smoke test, not a measurement.")
    @click.option("--json", "only_json", is_flag=True, help="Print only the JSON object.")
    @click.option("--strict", is_flag=True, help="Exit with 1 if the goal is missed.")
    @click.option(
        "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG chart, if the benchmark has one."
    )
    @click.option("--all", "every", is_flag=True, help="Run every benchmark, each in a process of its own.")
    @click.option(
        "--write",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="With --all: write results and charts into FOLDER, the page FOLDER.md, and the part of README.md.",
    )
    @click.option("--seconds", type=click.IntRange(min=2), help="Measure for so long, if the benchmark can.")
    def main(
        name: str | None,
        listing: bool,
        quick: bool,
        only_json: bool,
        strict: bool,
        plot: Path | None,
        every: bool,
        folder: Path | None,
        seconds: int | None,
    ) -> None:
        if listing:
            _list(benchmarks, only_json)
            return
        if every or folder is not None:
            _measure_all(benchmarks, name, folder, every=every, quick=quick)
            return
        names = ", ".join(benchmarks)
        if name is None:
            raise click.UsageError(f"missing benchmark name; choose one of: {names}")
        if name not in benchmarks:
            raise click.UsageError(f"unknown benchmark {name!r}; choose one of: {names}")
        if plot is not None and not benchmarks[name]()[0].can_plot:
            raise click.UsageError(f"{name} has no chart; omit --plot")
        if seconds is not None and not benchmarks[name]()[0].takes_seconds:
            raise click.UsageError(f"{name} measures a fixed amount of work; omit --seconds")
        effort = Effort(quick, lambda line: click.echo(f"{name}: {line}", err=True), plot, seconds)
        try:
            goal_met = _measure(name, benchmarks, effort, only_json)
        except HeadgateError as error:
            raise click.ClickException(f"{name}: {error}") from error
        if strict and not goal_met:
            raise click.exceptions.Exit(1)

    return main


def _measure_all(benchmarks: Benchmarks, name: str | None, folder: Path | None, *, every: bool, quick: bool) -> None:
    """Measure all benchmarks and write their pages. Exits with 1 if one could not be measured."""
    if not every or folder is None or name is not None:
        raise click.UsageError("use --all and --write FOLDER together, and without a name")
    loaded = {each: load() for each, load in benchmarks.items()}
    results = measure_all(
        {each: doc for each, (_, doc) in loaded.items()},
        frozenset(each for each, (benchmark, _) in loaded.items() if benchmark.can_plot),
        folder,
        quick=quick,
        progress=lambda line: click.echo(f"bench: {line}", err=True),
    )
    write_pages(folder, Path("README.md"))
    failed = [result.name for result in results.benchmarks if result.error]
    click.echo(f"wrote {folder.with_suffix('.md')}")
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}")


def _measure(name: str, benchmarks: Benchmarks, effort: Effort, only_json: bool) -> bool:
    """Measure and print one benchmark; return whether it meets its goals."""
    benchmark, doc = benchmarks[name]()
    measured = benchmark.measure(effort)
    holds = benchmark.meets_all_goals(measured)
    if not only_json:
        click.echo(doc.strip())
        Console().print(_table(name, benchmark, measured))
    result = {
        "name": name,
        "value": round(measured.value, 4),
        "unit": benchmark.unit,
        "goal": benchmark.goal,
        "better": benchmark.better,
        "goal_met": holds,
        "parts": {**measured.parts, **{f"{part}_goal": goal for part, goal in benchmark.part_goals.items()}},
    }
    click.echo(json.dumps(result))
    return holds


def _table(name: str, benchmark: Benchmark, measured: Measurement) -> Table:
    table = Table(title=name, show_header=False)
    for part, number in measured.parts.items():
        table.add_row(part, f"{number:g}" if isinstance(number, float) else str(number))
    sign = "≥" if benchmark.better == "higher" else "≤"
    table.add_section()
    table.add_row("value", f"{measured.value:.3f} {benchmark.unit}")
    table.add_row("goal", f"{sign} {benchmark.goal:g}: {_verdict(benchmark.meets_goal(measured.value))}")
    missed = benchmark.missed_parts(measured)
    for part, goal in benchmark.part_goals.items():
        table.add_row(f"goal of {part}", f"{sign} {goal:g}: {_verdict(part not in missed)}")
    return table


def _verdict(holds: bool) -> str:
    return "met" if holds else "missed"


def _list(benchmarks: Benchmarks, only_json: bool) -> None:
    loaded = {name: load() for name, load in benchmarks.items()}
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
