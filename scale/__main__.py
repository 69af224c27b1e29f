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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from scale.asking_stages import ask, measure_store
from scale.building_stages import create_topics, join_consumers, open_producers, start_daemons, wait_for_spread
from scale.changing_stages import drain_segments, kill_daemon, restart_all, restart_in_turn, transfer_shards
from scale.cluster import ScaleCluster
from scale.report import Report
from scale.sizes import FULL
from scale.trial import Stage, play

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
EPILOG = f"""\b
The full size is {FULL.shards} shards, {FULL.daemons} daemons, {FULL.topics:,} topics, {FULL.segments:,} segments,
{FULL.consumers:,} consumers and {FULL.producers:,} producer identities.

\b
Examples:
  python -m scale --scale 0.01
  python -m scale --scale 1 --minutes 12 --json
  python -m scale --scale 0.1 --spark --folder /tmp/scale
"""


@click.command(epilog=EPILOG)
@click.option(
    "--scale", type=click.FloatRange(0.001, 100), default=0.01, show_default=True, help="Multiplies every size."
)
@click.option(
    "--minutes", type=click.FloatRange(0.1, 1440), default=12.0, show_default=True, help="Stop after so long."
)
@click.option("--spark", is_flag=True, help="Start Spark as well, which the daemons ask.")
@click.option("--folder", type=click.Path(path_type=Path), help="For everything, kept.  [default: temporary]")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def main(scale: float, minutes: float, spark: bool, folder: Path | None, as_json: bool) -> None:
    """Start a large cluster on this machine, with generated clients, and measure it stage by stage.

    Progress goes to standard error. The report is also in FOLDER/report.json.
    """
    configure_logging(LogSettings(level="warning"), sys.stderr)
    if folder is not None and (folder / "run").exists():
        raise click.UsageError(f"--folder {folder}: it contains an earlier trial; choose another one")
    data = folder or Path(tempfile.mkdtemp(prefix="headgate-scale-"))
    cluster = ScaleCluster(data / "run", scale, spark=spark)
    machine = f"{os.cpu_count()} processors, {platform.system()}, Python {platform.python_version()}"
    report = Report(cluster.sizes, machine, shlex.join(["python", "-m", "scale", *sys.argv[1:]]))
    say = partial(Console(stderr=True).print, highlight=False, soft_wrap=True)
    try:
        asyncio.run(play(cluster, report, STAGES, say, minutes))
    except KeyboardInterrupt:
        report.unfinished = "interrupted"
    (data / DOCUMENT).write_text(json.dumps(report.document(), indent=2) + "\n")
    if as_json:
        sys.stdout.write(json.dumps(report.document()) + "\n")
    else:
        Console().print(report.table())
    if report.unfinished:
        sys.stderr.write(f"scale: {report.unfinished}; the folder of this trial is {data}\n")
    elif folder is None:
        shutil.rmtree(data, ignore_errors=True)
    sys.exit(1 if report.unfinished else 0)


if __name__ == "__main__":
    main(prog_name="python -m scale")
