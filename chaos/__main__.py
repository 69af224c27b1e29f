"""``python -m chaos``: faults on a cluster of real processes, and a judgement of what its clients saw.

Exit code 0 if every invariant held, 1 with one line that names the first violation, 2 for bad input.
"""

import asyncio
import json
import random
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from chaos.fault_shim import find_compiler
from chaos.faults.catalogue import CATALOGUE, select, why_impossible
from chaos.judge import judge
from chaos.report import Report, document, make_report, markdown, verdict
from chaos.run import Options, RunPlan, play
from chaos.schedule import left_out, plan, plan_in_order
from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from headgate.errors import ConfigError, HeadgateError

PAGE, DOCUMENT = "report.md", "report.json"
EPILOG = """\b
Examples:
  python -m chaos
  python -m chaos --minutes 60 --seed 7 --folder /tmp/chaos
  python -m chaos --minutes 30 --at-once 2 --tls
  python -m chaos --faults leader-killed,broker-cut+spark-killed --json
"""


def make_plan(options: Options, *, has_shim: bool) -> tuple[RunPlan, dict[str, str]]:
    """Return the plan, and the faults that are not in it, each with the reason. Raises ConfigError."""
    groups = [name.split("+") for name in options.names]
    chosen = select([name for group in groups for name in group]) or list(CATALOGUE.values())
    reasons = {
        fault.name: reason
        for fault in chosen
        if (reason := why_impossible(fault, has_shim=has_shim, has_spark=options.with_spark, has_tls=options.tls))
    }
    possible = [fault for fault in chosen if fault.name not in reasons]
    # Faults that take as long as their steps do have no duration.
    kinds = {fault.name: fault.seconds and (options.fault_seconds or fault.seconds) for fault in possible}
    seconds = 60 * options.minutes
    if options.names:
        known = [[name for name in group if name in kinds] for group in groups]
        planned, seconds = plan_in_order(filter(None, known), kinds, rest_seconds=options.rest_seconds)
    else:
        shuffle = random.Random(options.seed).shuffle
        planned = plan(
            kinds, seconds=seconds, rest_seconds=options.rest_seconds, shuffle=shuffle, at_once=options.at_once
        )
        reasons |= dict.fromkeys(left_out(kinds, planned), "the run is too short")
    return RunPlan(options, planned, seconds), reasons


def run_chaos(folder: Path, options: Options, command: str, console: Console) -> Report:
    """Play, judge, and write the report into ``folder``. ``command`` repeats the run. Raises HeadgateError."""
    made, reasons = make_plan(options, has_shim=find_compiler() is not None)
    console.print(f"seed {options.seed}, {len(made.faults)} faults, folder {folder}", highlight=False, soft_wrap=True)
    data = folder / "run"
    if data.exists():
        raise ConfigError(f"--folder {folder}: it contains an earlier run; choose another one")
    data.mkdir(parents=True, exist_ok=True)
    say = partial(console.print, highlight=False, soft_wrap=True)
    run, timeline, restarts = asyncio.run(play(data, made, say))
    console.print("judging", highlight=False)
    report = make_report(
        run, timeline, judge(run), seed=options.seed, command=command, not_tried=reasons, restarts=restarts
    )
    (folder / PAGE).write_text(f"# Chaos report\n\n{markdown(report)}")
    (folder / DOCUMENT).write_text(json.dumps(document(report), indent=2) + "\n")
    return report


def _show_faults(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        width = max(map(len, CATALOGUE))
        for fault in CATALOGUE.values():
            click.echo(f"{fault.name:<{width}}  {fault.summary()}")
        raise click.exceptions.Exit(0)


@click.command(epilog=EPILOG)
@click.option(
    "--minutes", type=click.FloatRange(0.5, 1440), default=12.0, show_default=True, help="How long to produce."
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the schedule.  [default: a new one, which is printed]")
@click.option("--faults", default="", help="Play these faults in this order, and ignore --minutes; A+B: both at once.")
@click.option("--at-once", type=click.IntRange(1, 4), default=1, show_default=True, help="Faults that begin together.")
@click.option("--fault-seconds", type=click.FloatRange(1, 300), help="Duration of each fault.  [default: its own]")
@click.option("--rest-seconds", type=click.FloatRange(1, 300), default=8.0, show_default=True, help="After each fault.")
@click.option("--rate", type=click.IntRange(10, 10_000), default=200, show_default=True, help="Records per second.")
@click.option("--clients", default=sys.executable, metavar="PYTHON", help="Runs the clients.  [default: this one]")
@click.option("--tls", is_flag=True, help="Encrypt all connections; the broker's certificate expires.")
@click.option("--spark/--no-spark", default=True, help="Without Spark, nothing is split or merged.")
@click.option("--folder", type=click.Path(path_type=Path), help="Folder for everything.  [default: a temporary one]")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_show_faults, help="List the faults.")
def main(seed: int | None, faults: str, spark: bool, folder: Path | None, as_json: bool, **options: Any) -> None:
    """Break a cluster of real processes again and again, and check what its clients saw.

    The report is in FOLDER: report.md and report.json. In a temporary folder, ledger and logs are deleted if
    every invariant held.
    """
    asked = Options(
        seed=secrets.randbelow(100_000) if seed is None else seed,
        names=[name for name in faults.split(",") if name],
        with_spark=spark,
        **options,
    )
    repeat = ["python", "-m", "chaos", *sys.argv[1:], *(() if seed is not None else ("--seed", str(asked.seed)))]
    # Lost connections are the purpose; the logs of the daemons are in the folder.
    configure_logging(LogSettings(level="error"), sys.stderr)
    made = folder or Path(tempfile.mkdtemp(prefix="headgate-chaos-"))
    with _errors_in_one_line(made):
        report = run_chaos(made, asked, shlex.join(repeat), Console(stderr=True))
    if as_json:
        sys.stdout.write(json.dumps(document(report)) + "\n")
    else:
        sys.stdout.write(markdown(report))
    if report.passed and folder is None:
        shutil.rmtree(made / "run", ignore_errors=True)
    sys.stderr.write(f"chaos: {verdict(report.violations)}; the report is {made / PAGE}\n")
    sys.exit(0 if report.passed else 1)


@contextmanager
def _errors_in_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        sys.stderr.write(f"chaos: {error}\n")
        sys.exit(2)
    except HeadgateError as error:
        sys.stderr.write(f"chaos: {error}; the folder of this run is {folder}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write(f"chaos: interrupted; the folder of this run is {folder}\n")
        sys.exit(130)


if __name__ == "__main__":
    main(prog_name="python -m chaos")
