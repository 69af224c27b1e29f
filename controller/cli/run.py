"""`headgate run` and `headgate check-config`: a daemon against existing servers.

Only this module reads the daemon's environment: a name for a daemon whose settings have none, and systemd's folder of
credentials.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from controller.cli.context import DaemonContext, pass_daemon_context
from controller.settings.files import check_files
from controller.settings.load import Settings, load_settings, security_warnings
from headgate.cli.context import CommandContext, command
from headgate.cli.exit_codes import InterruptedBySignalError, machine_fault
from headgate.cli.terminal.option_types import FilePath
from headgate.cli.terminal.output import examples, print_table
from headgate.errors import ConfigError, HeadgateError
from metrics import events

if TYPE_CHECKING:
    from controller.daemon import Daemon

_MAX_NAME_CHARS = 100
config_option = click.option(
    "--config", type=FilePath(), metavar="FILE", required=True, help="Settings file of the daemon (TOML)."
)

log = structlog.get_logger(__name__)


def instance_name() -> str:
    """Return the name that systemd's unit gives, which outlives a restart, or one that no other live process has."""
    number = "" if (name := os.environ.get("HEADGATE_INSTANCE", "")) else f"-{os.getpid()}"
    host = re.sub(r"[^A-Za-z0-9._-]", "-", name or socket.gethostname()).lstrip("._-") or "host"
    return host[: _MAX_NAME_CHARS - len(number)] + number


def read_settings(path: Path) -> Settings:
    """Return the settings in ``path`` for a daemon in this process. Raises ConfigError."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return load_settings(
        path, default_instance=instance_name(), credentials=None if credentials is None else Path(credentials)
    )


async def run_daemon(
    daemon: Daemon,
    load_new_settings: Callable[[], Settings],
    report: Callable[[str], None] = lambda _: None,
    *,
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Run ``daemon`` until this task is cancelled; then let the daemon hand over and close.

    On SIGHUP the daemon applies the settings from ``load_new_settings`` that can change while it runs. ``report`` shows
    what came of it, and that it stops, to a person who does not see the log. ``on_stop`` is called before that.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = loop.create_task(daemon.run(stop), name="daemon")
    before = signal.getsignal(signal.SIGHUP)
    had_terminal = sys.stderr.isatty()

    def on_hangup() -> None:
        reload_or_stop(daemon, load_new_settings, report, terminal_closed=had_terminal and not sys.stderr.isatty())

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        on_stop()
        report("stopping the daemon and its servers")
        stop.set()
        await running
        raise
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)
    if (error := running.exception()) is not None:
        if not _is_self_explanatory(error):
            # The command line prints one line; the log has the traceback.
            log.error("daemon.failed", exc_info=error)
        raise error


def _is_self_explanatory(error: BaseException) -> bool:
    """Whether the text of ``error`` explains it; task groups wrap the errors that are raised inside them."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_self_explanatory, error.exceptions))
    return isinstance(error, HeadgateError) or machine_fault(error) is not None


def reload_or_stop(
    daemon: Daemon, load_new_settings: Callable[[], Settings], report: Callable[[str], None], *, terminal_closed: bool
) -> None:
    """Handle SIGHUP: reload the settings, or stop if the terminal was closed, because no user could stop it later."""
    if terminal_closed:
        signal.raise_signal(signal.SIGTERM)
        return
    try:
        daemon.reload(load_new_settings())
    except ConfigError as error:
        daemon.instruments.observe(events.ReloadFailed())
        log.error("settings.invalid", error=str(error))  # noqa: TRY400 - the text suffices
        report(f"SIGHUP changed nothing: {error}")
    else:
        report("SIGHUP: the settings were read again; the log names what requires a restart")


@click.command(
    epilog=examples(
        "headgate run --config /etc/headgate/headgate.toml",
        "headgate check-config --config headgate.toml && headgate run --config headgate.toml",
    )
)
@config_option
@pass_daemon_context
def run(context: DaemonContext, config: Path) -> None:
    """Run a daemon against an existing ZooKeeper, MQTT broker and object store.

    SIGTERM and Ctrl-C hand over to another daemon, if there is one, and exit with code 0. SIGHUP reads the settings
    again: ingest.mqtt_devices, [access], [scaling], [retention], [spread], [standby], certificates and log.level change
    at once; the log names settings that require a restart. Under systemd (Type=notify), the daemon reports readiness
    and the watchdog.
    """
    settings = read_settings(config)
    check_files(settings, config)
    with suppress(InterruptedBySignalError):  # The normal way to stop a daemon.
        context.serve(
            run_daemon(context.new_daemon(settings), lambda: read_settings(config)),
            log=settings.log,
            instance=settings.instance.name,
        )


@command(
    "headgate check-config --config headgate.toml",
    "headgate check-config --config headgate.toml --json",
    name="check-config",
    asks_cluster=False,
)
@config_option
def check_config(context: CommandContext, config: Path) -> None:
    """Check the settings of a daemon in FILE and print them with all defaults. Starts nothing and prints no secret."""
    settings = read_settings(config)
    check_files(settings, config)
    for warning in security_warnings(settings):
        click.echo(f"warning: {config}: {warning}", err=True)
    if context.printed_as_json(settings):
        return
    print_table(("setting", "value"), settings.rows())
    click.echo(f"{config} is valid", err=True)
