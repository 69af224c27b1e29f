"""Command line of the benchmarks.

``python -m bench`` lists them by subject. ``python -m bench NAME [--quick] [--json] [--seconds N]`` measures one, and
``python -m bench [NAME] --write FOLDER`` writes results and pages: of all, or of one beside the results of
the others.

Results go to standard output: a table, and one JSON object on the last line. Progress goes to standard error. Exit code
0: measured; 1: it could not be measured (one line says what is missing), or crashed; 2: unknown name.
"""

import json
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.harness.all_benchmarks import measure_all, write_pages
from bench.harness.benchmark import Effort, Listed, Load, Measurement, catalogue
from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from headgate.errors import HeadgateError

Benchmarks = Mapping[str, Load]


def command(benchmarks: Benchmarks) -> click.Command:
    """Return the command line over ``benchmarks`` (name → function that loads it)."""

    @click.command(name="bench", help="Run one benchmark, or list all.")
    @click.argument("name", required=False)
    @click.option("--quick", is_flag=True, help="Do less work in fewer rounds: a smoke test, not a measurement.")
    @click.option("--json", "only_json", is_flag=True, help="Print only the JSON object.")
    @click.option("--seconds", type=click.IntRange(min=2), help="Measure for so long, if the benchmark can.")
    @click.option(
        "--write",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Write results into FOLDER, the page FOLDER.md, and the part of README.md: of all benchmarks, "
        "or of one, beside the results of the others.",
    )
    def main(name: str | None, quick: bool, only_json: bool, seconds: int | None, folder: Path | None) -> None:
        if name is not None and name not in benchmarks:
            raise click.UsageError(f"unknown benchmark {name!r}; choose one of: {', '.join(benchmarks)}")
        if folder is not None and (quick or only_json or seconds is not None):
            raise click.UsageError("with --write, a benchmark is measured as on the page: give no other option")
        if seconds is not None and (name is None or not benchmarks[name]().benchmark.takes_seconds):
            raise click.UsageError(f"{name or 'a list'} measures a fixed amount of work; omit --seconds")
        try:
            if folder is not None:
                _write(benchmarks, name, folder)
            elif name is None:
                _list(benchmarks)
            else:
                effort = Effort(quick, lambda line: click.echo(f"{name}: {line}", err=True), seconds)
                _measure(name, benchmarks[name](), effort, only_json=only_json)
        except HeadgateError as error:
            raise click.ClickException(f"{name}: {error}" if name else str(error)) from error

    return main


def _write(benchmarks: Benchmarks, name: str | None, folder: Path) -> None:
    """Measure the benchmark, or all, and write the pages. Raises HeadgateError if one could not be measured."""
    docs = {each: load().doc for each, load in benchmarks.items()}
    results = measure_all(docs, folder, only=name, progress=lambda line: click.echo(f"bench: {line}", err=True))
    write_pages(folder, Path("README.md"))
    click.echo(f"wrote {folder.with_suffix('.md')}")
    if failed := [result.name for result in results.benchmarks if result.error and name in (None, result.name)]:
        raise HeadgateError(f"not measured: {', '.join(failed)}")


def _measure(name: str, listed: Listed, effort: Effort, *, only_json: bool) -> None:
    benchmark = listed.benchmark
    measured = benchmark.run(effort)
    missed = benchmark.missed(measured)
    if not only_json:
        click.echo(listed.doc.strip())
        Console().print(_table(name, listed, measured, missed))
    _, *part_goals = benchmark.goals()
    result = {
        "name": name,
        "value": round(measured.value, 4),
        "unit": benchmark.unit,
        "goal": benchmark.goal,
        "better": benchmark.better,
        "goal_met": not missed,
        "parts": {**measured.parts, **{f"{part}_goal": limit for part, _, limit in part_goals}},
    }
    click.echo(json.dumps(result))


def _table(name: str, listed: Listed, measured: Measurement, missed: list[str]) -> Table:
    table = Table(title=name, show_header=False)
    for part, number in measured.parts.items():
        table.add_row(part, f"{number:g}" if isinstance(number, float) else str(number))
    table.add_section()
    table.add_row("value", f"{measured.value:.3f} {listed.benchmark.unit}")
    for what, sign, limit in listed.benchmark.goals():
        table.add_row(f"goal of {what}", f"{sign} {limit:g}: {'missed' if what in missed else 'met'}")
    return table


def _list(benchmarks: Benchmarks) -> None:
    loaded = {name: load() for name, load in benchmarks.items()}
    width = max(len(name) for name in loaded)
    for subject, names in groupby(loaded, lambda name: loaded[name].subject):
        click.echo(subject)
        for name in names:
            what, *_ = loaded[name].doc.strip().splitlines()
            click.echo(f"  {name:<{width}}  {what}")


if __name__ == "__main__":
    configure_logging(LogSettings(level="warning"), sys.stderr)
    command(catalogue())(prog_name="python -m bench")
