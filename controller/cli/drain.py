"""`headgate drain`: the programs that count and compact with Spark. Their options are in ``drain``."""

import click

from controller.cli.program import program_command
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
"""Name → (module with ``main``, one line of help)."""


@click.group(
    epilog=examples(
        "headgate drain serve --ledger file:///var/lib/headgate/ledger --listen /run/headgate/drain.sock",
        "headgate drain job --ledger s3://bucket/headgate --out s3://bucket/headgate",
        "headgate drain compact --ledger s3://bucket/headgate",
    ),
)
def drain() -> None:
    """Count backlogs and compact chunks with Spark, as programs of their own.

    A daemon asks `serve`, or reads what `job` publishes ([drain] results), to learn when a segment is drained.
    """


for _name, (_module, _text) in PROGRAMS.items():
    drain.add_command(program_command(_name, _module, _text))
