"""Command line of the benchmarks.

``python -m bench --list``, ``python -m bench NAME [--quick] [--json] [--strict] [--seconds N]``,
``python -m bench --all --write FOLDER [--quick]``, ``python -m bench NAME --write FOLDER [--quick]``.

Results go to standard output: a table, and one JSON object on the last line. Progress goes to
standard error. Exit code 0: measured; 1: it could not be measured (one line says what is missing),
crashed, or missed the goal with ``--strict``; 2: unknown name.
"""

import json
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.harness.all_benchmarks import measure_all, results_to_keep, write_pages
from bench.harness.benchmark import Benchmark, Effort, Load, Measurement, catalogue
from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from headgate.errors import HeadgateError

Benchmarks = Mapping[str, Load]


def command(benchmarks: Benchmarks) -> click.Command:
    """Return the command line over ``benchmarks`` (name → function that loads it)."""

    @click.command(name="bench", help="Run one benchmark.")
    @click.argument("name", required=False)
    @click.option("--list", "listing", is_flag=True, help="List the benchmarks by subject and exit.")
    @click.option("--quick", is_flag=True, help="Do less work in fewer rounds: a smoke test, not a measurement.")
    @click.option("--json", "only_json", is_flag=True, help="Print only the JSON object.")
    @click.option("--strict", is_flag=True, help="Exit with 1 if the goal is missed.")
    @click.option("--all", "every", is_flag=True, help="Run every benchmark, each in a process of its own.")
    @click.option(
        "--write",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write results into FOLDER, the page FOLDER.md, and the part of README.md: of all benchmarks, "
        "or of one, beside the results of the others.",
    )
    @click.option("--seconds", type=click.IntRange(min=2), help="Measure for so long, if the benchmark can.")
    def main(
        name: str | None,
        listing: bool,
        quick: bool,
        only_json: bool,
        strict: bool,
        every: bool,
        folder: Path | None,
        seconds: int | None,
    ) -> None:
        if listing:
            _list(benchmarks, only_json)
            return
        _check_name(name, benchmarks, needed=not every)
        if every and (folder is None or name is not None):
            raise click.UsageError("use --all with --write FOLDER, and without a name")
        if folder is not None:
            if only_json or strict or seconds is not None:
                raise click.UsageError("with --write, a benchmark is measured as on the page: give no other option")
            _write(benchmarks, name, folder, quick=quick)
            return
        assert name is not None, "checked above"
        if seconds is not None and not benchmarks[name]().benchmark.takes_seconds:
            raise click.UsageError(f"{name} measures a fixed amount of work; omit --seconds")
        effort = Effort(quick, lambda line: click.echo(f"{name}: {line}", err=True), seconds)
        try:
            goal_met = _measure(name, benchmarks, effort, only_json)
        except HeadgateError as error:
            raise click.ClickException(f"{name}: {error}") from error
        if strict and not goal_met:
            raise click.exceptions.Exit(1)

    return main


def _check_name(name: str | None, benchmarks: Benchmarks, *, needed: bool) -> None:
    names = ", ".join(benchmarks)
    if name is None and needed:
        raise click.UsageError(f"missing benchmark name; choose one of: {names}")
    if name is not None and name not in benchmarks:
        raise click.UsageError(f"unknown benchmark {name!r}; choose one of: {names}")


def _write(benchmarks: Benchmarks, name: str | None, folder: Path, *, quick: bool) -> None:
    """Measure the benchmark, or all, and write the pages. Exits with 1 if one could not be measured."""
    loaded = {each: load() for each, load in benchmarks.items()}
    try:
        kept = {} if name is None else results_to_keep(folder, quick=quick)
    except HeadgateError as error:
        raise click.ClickException(str(error)) from error
    results = measure_all(
        {each: listed.doc for each, listed in loaded.items()},
        folder,
        quick=quick,
        kept={each: result for each, result in kept.items() if each != name},
        progress=lambda line: click.echo(f"bench: {line}", err=True),
    )
    write_pages(folder, Path("README.md"))
    failed = [result.name for result in results.benchmarks if result.error and name in (None, result.name)]
    click.echo(f"wrote {folder.with_suffix('.md')}")
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}")


def _measure(name: str, benchmarks: Benchmarks, effort: Effort, only_json: bool) -> bool:
    """Measure and print one benchmark; return whether it meets its goals."""
    listed = benchmarks[name]()
    benchmark = listed.benchmark
    measured = benchmark.run(effort)
    holds = benchmark.meets_all_goals(measured)
    if not only_json:
        click.echo(listed.doc.strip())
        Console().print(_table(name, benchmark, measured))
    goals = {**benchmark.part_goals, **benchmark.part_limits}
    result = {
        "name": name,
        "value": round(measured.value, 4),
        "unit": benchmark.unit,
        "goal": benchmark.goal,
        "better": benchmark.better,
        "goal_met": holds,
        "parts": {**measured.parts, **{f"{part}_goal": goal for part, goal in goals.items()}},
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
    signed = [(part, sign, goal) for part, goal in benchmark.part_goals.items()]
    signed += [(part, "≤", goal) for part, goal in benchmark.part_limits.items()]
    for part, sign, goal in signed:
        table.add_row(f"goal of {part}", f"{sign} {goal:g}: {_verdict(part not in missed)}")
    return table


def _verdict(holds: bool) -> str:
    return "met" if holds else "missed"


def _list(benchmarks: Benchmarks, only_json: bool) -> None:
    loaded = {name: load() for name, load in benchmarks.items()}
    if only_json:
        click.echo(json.dumps({name: _first_line(listed.doc) for name, listed in loaded.items()}))
        return
    width = max(len(name) for name in loaded)
    for subject, names in groupby(loaded, lambda name: loaded[name].subject):
        click.echo(subject)
        for name in names:
            click.echo(f"  {name:<{width}}  {_first_line(loaded[name].doc)}")


def _first_line(doc: str) -> str:
    return doc.strip().partition("\n")[0]


if __name__ == "__main__":
    configure_logging(LogSettings(level="warning"), sys.stderr)
    command(catalogue())(prog_name="python -m bench")
