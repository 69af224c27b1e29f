"""``python -m scale``: the whole program at scale on one machine.

Exit code 0 if every stage was measured, 1 with one line that says where it stopped, 2 for bad input.
"""

import asyncio
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from bench.harness.logs import log_to_standard_error
from headgate.errors import ConfigError
from scale.asking_stages import ask, measure_store
from scale.building_stages import create_topics, join_consumers, open_producers, start_daemons, wait_for_spread
from scale.changing_stages import kill_daemon, restart_all, restart_in_turn, transfer_shards
from scale.cluster import TrialOptions
from scale.draining_stages import drain_segments
from scale.report import Report, shown
from scale.sizes import FULL, planned_sizes
from scale.trial import Say, Stage, play

STAGES: Final[Mapping[str, Stage]] = {
    "start": start_daemons,
    "topics": create_topics,
    "consumers": join_consumers,
    "spread": wait_for_spread,
    "producers": open_producers,
    "drains": drain_segments,
    "answers": ask,
    "transfer": transfer_shards,
    "kill": kill_daemon,
    "rolling restart": restart_in_turn,
    "restart of all": restart_all,
    "store": measure_store,
}
DOCUMENT: Final = "report.json"
SIZES: Final = ("shards", "daemons", "topics", "segments", "consumers", "producers")
EPILOG = f"""\b
The full size is {FULL.shards} shards, {FULL.daemons} daemons, {FULL.topics:,} topics, {FULL.segments:,} segments,
{FULL.consumers:,} consumers and {FULL.producers:,} producer identities.

\b
Examples:
  python -m scale --scale 0.01
  python -m scale --scale 1 --minutes 12 --json
  python -m scale --scale 0.1 --consumers 5000 --folder /tmp/scale
"""

Play = Callable[[Path, TrialOptions, Report, Mapping[str, Stage], Say, float], Coroutine[Any, Any, None]]


def _options(main: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(OPTIONS):
        main = option(main)
    return main


def show(report: Report, console: Console) -> None:
    """Print the values as a table that fits 80 columns."""
    table = Table(title="Scale", title_justify="left", box=None)
    table.add_column("stage")
    table.add_column("what", max_width=48)
    table.add_column("value", justify="right")
    table.add_column("")
    before = ""
    for each in report.measured:
        table.add_row(each.stage if each.stage != before else "", each.name, shown(each.value), each.unit)
        before = each.stage
    console.print(table)


OPTIONS: Final = (
    click.option(
        "--scale", type=click.FloatRange(0.001, 100), default=0.01, show_default=True, help="Multiplies every size."
    ),
    click.option("--shards", type=click.IntRange(2, 1024), help="Shards, instead of the scaled number."),
    click.option("--daemons", type=click.IntRange(2, 64), help="Daemons, each a process."),
    click.option("--topics", type=click.IntRange(1, 100_000), help="Topics."),
    click.option("--segments", type=click.IntRange(1, 10_000_000), help="Segments of all topics together."),
    click.option("--consumers", type=click.IntRange(0, 1_000_000), help="Generated consumers."),
    click.option("--producers", type=click.IntRange(1, 100_000_000), help="Producer identities."),
    click.option("--processes", type=click.IntRange(1, 64), default=4, show_default=True, help="Of the clients."),
    click.option(
        "--connections", type=click.IntRange(1, 10_000), default=64, show_default=True, help="Of the clients together."
    ),
    click.option(
        "--in-flight",
        type=click.IntRange(1, 100_000),
        default=1024,
        show_default=True,
        help="Openings of producers that are under way at the same time.",
    ),
    click.option(
        "--settle-seconds", type=click.FloatRange(0, 600), default=5.0, show_default=True, help="[spread] of daemons."
    ),
    click.option(
        "--rest-seconds",
        type=click.FloatRange(0.1, 600),
        default=15.0,
        show_default=True,
        help="To look at processes at rest.",
    ),
    click.option(
        "--snapshot-chunks", type=click.IntRange(1), default=200, show_default=True, help="[snapshots] of daemons."
    ),
    click.option(
        "--standby-bytes", type=click.IntRange(0), default=1 << 30, show_default=True, help="[standby] of daemons."
    ),
    click.option("--spark", is_flag=True, help="Start Spark as well, which the daemons ask."),
    click.option(
        "--minutes", type=click.FloatRange(0.1, 1440), default=12.0, show_default=True, help="Stop after so long."
    ),
    click.option("--folder", type=click.Path(path_type=Path), help="For everything, kept.  [default: temporary]"),
    click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object."),
)


def command(play: Play = play) -> click.Command:
    """Return the command; ``play`` plays the stages."""

    @click.command(epilog=EPILOG)
    @_options
    def main(scale: float, folder: Path | None, minutes: float, as_json: bool, **given: Any) -> None:
        """Start a large cluster on this machine, with generated clients, and measure it stage by stage.

        Progress goes to standard error. The report is also in FOLDER/report.json.
        """
        log_to_standard_error()
        try:
            sizes = planned_sizes(scale, {name: given.pop(name) for name in SIZES})
            data = _data_folder(folder)
        except ConfigError as error:
            sys.stderr.write(f"scale: {error}\n")
            sys.exit(2)
        report = Report(sizes, _machine(), shlex.join(["python", "-m", "scale", *sys.argv[1:]]))
        say = partial(Console(stderr=True).print, highlight=False, soft_wrap=True)
        try:
            asyncio.run(play(data / "run", TrialOptions(**given), report, STAGES, say, minutes))
        except KeyboardInterrupt:
            report.unfinished = "interrupted"
        (data / DOCUMENT).write_text(json.dumps(report.document(), indent=2) + "\n")
        if as_json:
            sys.stdout.write(json.dumps(report.document()) + "\n")
        else:
            show(report, Console())
        if folder is None and not report.unfinished:
            shutil.rmtree(data, ignore_errors=True)
        elif report.unfinished:
            sys.stderr.write(f"scale: {report.unfinished}; the folder of this trial is {data}\n")
        sys.exit(1 if report.unfinished else 0)

    return main


def _data_folder(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="headgate-scale-"))
    if (folder / "run").exists():
        raise ConfigError(f"--folder {folder}: it contains an earlier trial; choose another one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _machine() -> str:
    return f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    command()(prog_name="python -m scale")
