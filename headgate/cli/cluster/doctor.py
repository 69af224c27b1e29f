"""`headgate doctor`: check what a client, or a daemon on this machine, needs, and say what to do."""

import os
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.commands import daemon_is_installed
from headgate.cli.context import CommandContext, command
from headgate.cli.exit_codes import ExitCode
from headgate.cli.terminal.option_types import FilePath
from headgate.errors import HeadgateError
from headgate.extras import install_daemon

if TYPE_CHECKING:
    from headgate.cli.cluster.judgements import Finding

TIMEOUT_SECONDS = 4.0
DaemonFindings = Callable[[Path, float], Coroutine[Any, Any, "list[Finding]"]]


@command("headgate doctor", "headgate doctor --json", "headgate doctor --daemon-config /etc/headgate/headgate.toml")
@click.option(
    "--daemon-config",
    type=FilePath(dir_okay=False),
    metavar="FILE",
    help="Also check what a daemon with these settings needs on this machine: Java, Spark, ZooKeeper, the broker, "
    "put-if-absent of the store, folders, certificates and space.",
)
def doctor(context: CommandContext, daemon_config: Path | None) -> None:
    """Check configuration, broker, leaders, daemons, versions, store and clocks; say what to do.

    Each line is "ok", a "warning" or a "problem", and the next one is its remedy. Exit code 1 if there is a problem.

    With --daemon-config, run it as the user of the daemon, who need not be a client. The store is tried with an object
    that is written, must not be written again, and is deleted. Nothing else is changed.
    """
    checks = _daemon_checks() if daemon_config is not None else None
    context.reply_timeout_seconds = TIMEOUT_SECONDS
    from headgate.cli.cluster.client_checks import client_findings  # noqa: PLC0415 - it needs MQTT and Parquet
    from headgate.cli.cluster.judgements import finding_lines, has_problem, ok  # noqa: PLC0415
    from headgate.settings.config import DEFAULT_PATH, ENVIRONMENT_VARIABLE  # noqa: PLC0415

    is_named = context.config is not None or bool(os.environ.get(ENVIRONMENT_VARIABLE))
    if checks is None or is_named or Path(DEFAULT_PATH).exists():
        found = context.run(client_findings(context))
    else:
        found = [ok("configuration", f"no client's: {DEFAULT_PATH} does not exist, so only the daemon is checked")]
    if checks is not None and daemon_config is not None:
        found += context.run(checks(daemon_config, context.wait_seconds()))
    if not context.printed_as_json(found):
        for line in finding_lines(found):
            click.echo(line)
        if checks is None:
            click.echo("what a daemon needs on its machine: headgate doctor --daemon-config FILE", err=True)
    if has_problem(found):
        raise click.exceptions.Exit(ExitCode.FAILED)


def _daemon_checks() -> DaemonFindings:
    if not daemon_is_installed():
        raise HeadgateError(f"--daemon-config: the checks of a daemon are in headgate-daemon: {install_daemon()}")
    checks: DaemonFindings = import_module("controller.cli.doctor").daemon_findings
    return checks
