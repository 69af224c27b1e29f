"""``python -m demo``: run the scenario on real servers, then check the result from the outside.

Exit code 0: every guarantee held. 1: one was broken, or a step failed. 3: none was broken, but some records were not
delivered yet when nothing changed any more. The folder of the run is kept with ``--keep``, and unless the code is 0.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

import click
import msgspec
from rich.console import Console

from controller.process.logs import configure_logging
from controller.settings.sections import LogSettings
from demo.report import evaluate_run, show
from demo.scenario import TOPIC, DemoCluster, Run, run_scenario
from headgate.errors import HeadgateError

EXIT_VIOLATION, EXIT_UNFINISHED = 1, 3


async def run_demo(folder: Path, *, rate: int, seconds: float, as_json: bool) -> int:
    console = Console(stderr=as_json)
    run = Run()
    now = asyncio.get_running_loop().time
    began = now()

    def report_step(what: str) -> None:
        console.print(f"{now() - began:6.1f} s  {what}", highlight=False, soft_wrap=True)

    report_step(f"starting ZooKeeper, a broker and Spark; the folder of this run is {folder}")
    async with DemoCluster(folder, report_step) as cluster:
        report_step("Spark is ready")
        await run_scenario(cluster, run, rate=rate, seconds=seconds, report_step=report_step)
        report_step("reading the ledger and the consumers' records")
        findings = evaluate_run(run, await cluster.evidence(TOPIC))
    show(findings, console)
    if as_json:
        found = {"violations": msgspec.to_builtins(findings.violations), "unfinished": findings.unfinished}
        sys.stdout.write(json.dumps(findings.summary | {"steps": run.steps} | found) + "\n")
    if findings.violations:
        return EXIT_VIOLATION
    return EXIT_UNFINISHED if findings.unfinished else 0


@click.command()
@click.option("--rate", default=2000, show_default=True, help="Records per second.")
@click.option(
    "--seconds", type=click.FloatRange(1, 86_400), default=60.0, show_default=True, help="How long to produce."
)
@click.option("--keep", is_flag=True, help="Keep the folder of the run: ledger, logs and records.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON object.")
def main(rate: int, seconds: float, keep: bool, as_json: bool) -> None:
    """Run splits, merges, a crash and handovers on real servers, and check that every guarantee holds.

    Example: python -m demo --rate 2000 --seconds 30
    """
    # Lost connections are part of the scenario.
    configure_logging(LogSettings(level="error"), sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="headgate-demo-"))
    code = EXIT_VIOLATION
    try:
        code = asyncio.run(run_demo(folder, rate=rate, seconds=seconds, as_json=as_json))
    except HeadgateError as error:
        sys.stderr.write(f"demo: {error}\n")
    except KeyboardInterrupt:
        sys.stderr.write("demo: interrupted\n")
        sys.exit(130)
    finally:
        if keep or code:
            sys.stderr.write(f"demo: the folder of this run is {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
