"""Commands that are programs of their own: `headgate` imports them when they run, and passes their arguments on."""

import sys
from functools import partial
from importlib import import_module

import click

from drain.spark_extra import needs_spark
from headgate.cli.terminal.output import examples

PROGRAMS = {
    "serve": (
        "drain.service.program",
        "Count when daemons ask. Each machine needs one, started by a daemon or a unit.",
    ),
    "job": ("drain.backlog.job", "Count once and publish the results, from cron, a timer or Airflow."),
    "verify": ("drain.backlog.verify", "Compare published results with a count of the whole ledger."),
    "compact": ("drain.compaction.job", "Compact the old chunks of a ledger into large objects, once."),
}
"""Command of `headgate drain` → (module with ``main``, one line of help)."""


def program_command(name: str, module: str, text: str) -> click.Command:
    """Return the command that calls ``main`` of ``module``; ``text`` is its line in the list of commands."""
    return click.Command(
        name,
        callback=partial(_run, module),
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS]")],
        help=text,
        short_help=text,
        add_help_option=False,  # the program has its own
        context_settings={"ignore_unknown_options": True},
    )


def _run(module: str, arguments: tuple[str, ...]) -> None:
    with needs_spark():
        program = import_module(module)
    code = program.main(arguments)
    sys.stdout.flush()
    raise click.exceptions.Exit(code)


snapshot = program_command("snapshot", "controller.snapshots.job", "Write the snapshots of shards that are due, once.")


@click.group(
    epilog=examples(
        "headgate drain serve --ledger file:///var/lib/headgate/ledger --listen /run/headgate/drain.sock",
        "headgate drain job --ledger s3://bucket/headgate --out s3://bucket/headgate",
        "headgate drain compact --ledger s3://bucket/headgate",
    )
)
def drain() -> None:
    """Count backlogs and compact chunks with Spark, as programs of their own.

    A daemon asks `serve`, or reads what `job` publishes ([drain] results), to learn when a segment is drained.
    """


for _name, (_module, _text) in PROGRAMS.items():
    drain.add_command(program_command(_name, _module, _text))
