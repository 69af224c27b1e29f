"""``python -m demo``: play the scenario on real servers, then judge it from the outside.

Exits 0 if every promise was kept, 1 if not or if a step could not be done. ``--keep`` leaves the run's folder behind.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from controller.logs import configure_logging
from controller.settings.load import LogSettings
from demo.cluster import SHARDS, DemoCluster
from demo.evidence import read_committed, read_deliveries, read_ledger
from demo.report import evaluate_run, show
from demo.scenario import SUBSCRIPTIONS, Run, run_scenario, topic_shard
from demo.view import View
from headgate.errors import HeadgateError
from headgate.ledger.ledger import Ledger
from headgate.storage.object_store import open_store


async def run_demo(folder: Path, *, rate: int, seconds: float, as_json: bool) -> bool:
    """Play and judge; return whether every promise was kept."""
    console = Console(stderr=as_json)
    run = Run()
    cluster = DemoCluster(folder)
    view = View(console, cluster, run)
    view.report_step(f"ZooKeeper, a broker and Spark are starting on this machine; the run's folder is {folder}")
    async with cluster:
        view.report_step(f"ZooKeeper, {cluster.broker.kind} and Spark are ready")
        showing = asyncio.create_task(view.run(), name="view")
        try:
            await run_scenario(cluster, run, rate=rate, seconds=seconds, report_step=view.report_step)
        finally:
            showing.cancel()
            await asyncio.wait({showing})
        if console.is_terminal:
            for line in view.steps():
                console.print(line, highlight=False)
        view.report_step("reading the ledger and the consumers' notes")
        shard = topic_shard(SHARDS)
        committed, produced = read_committed(cluster.output_path("producer"))
        chunks, stored = await read_ledger(Ledger(open_store(cluster.ledger_url), shard))
        deliveries = {
            name: [
                delivery
                for consumer, subscription in run.consumers.items()
                if subscription == name
                for delivery in read_deliveries(cluster.output_path(consumer), consumer)
            ]
            for name in SUBSCRIPTIONS
        }
    found = evaluate_run(
        run, shard=shard, produced=produced, committed=committed, chunks=chunks, stored=stored, deliveries=deliveries
    )
    show(found, console)
    if as_json:
        answer = found.summary | {"steps": run.steps, "violations": msgspec.to_builtins(found.violations)}
        sys.stdout.write(json.dumps(answer) + "\n")
    return not found.violations


@click.command()
@click.option("--rate", default=2000, show_default=True, help="Records a second.")
@click.option("--seconds", default=60.0, show_default=True, help="How long to produce.")
@click.option("--keep", is_flag=True, help="Leave the run's folder (ledger, logs, notes) behind.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def main(rate: int, seconds: float, keep: bool, as_json: bool) -> None:
    """Split, merge, crash and hand over on real servers, and check that no promise is broken.

    Example: python -m demo --rate 2000 --seconds 30
    """
    # What happens is told by the view; a connection that comes and goes is part of the play.
    configure_logging(LogSettings(level="error"), sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    kept = False
    try:
        kept = asyncio.run(run_demo(folder, rate=rate, seconds=seconds, as_json=as_json))
    except HeadgateError as error:
        sys.stderr.write(f"demo: {error}\n")
        keep = True
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted\n")
        sys.exit(130)
    finally:
        if keep:
            sys.stderr.write(f"demo: the run's folder is {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
