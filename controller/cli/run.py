"""`headgate run` and `headgate check-config`: the daemon against servers that somebody else runs.

Here, and in `headgate up`, is where the environment is read: the host's name for a daemon without one, and systemd's
folder of credentials.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import structlog

from controller.cli import context as session
from controller.cli.output import examples, json_option, print_json, print_table
from controller.settings.load import Settings, load_settings
from headgate.errors import ConfigError, HeadgateError

if TYPE_CHECKING:
    from controller.daemon import Daemon

_MAX_NAME_CHARS = 100

log = structlog.get_logger(__name__)


def instance_name() -> str:
    """Return a name that no other live process has: this host's name and this process's number."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-") or "host"
    number = f"-{os.getpid()}"
    return host[: _MAX_NAME_CHARS - len(number)] + number


def read_settings(path: Path) -> Settings:
    """Return the settings in ``path`` for a daemon in this process. Raises ConfigError."""
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return load_settings(
        path,
        default_instance=instance_name(),
        credentials=None if credentials is None else Path(credentials),
    )


def new_daemon(settings: Settings) -> Daemon:
    """Return the daemon, not yet running; tests put a fake in here."""
    from controller.daemon import Daemon  # noqa: PLC0415

    return Daemon(settings)


async def run_daemon(daemon: Daemon, load_new_settings: Callable[[], Settings]) -> None:
    """Run ``daemon`` until this task is cancelled; then let it hand over and close, and be cancelled.

    On SIGHUP it takes over what it can of the settings that ``load_new_settings`` returns.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = loop.create_task(daemon.run(stop), name="daemon")
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, _on_hangup, daemon, load_new_settings, sys.stderr.isatty())
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        stop.set()
        await running
        raise
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, before)
    error = running.exception()
    if error is not None:
        if not _is_self_explanatory(error):
            # The command line shows one line; whoever looks for the cause finds the rest in the log.
            log.error("daemon.failed", exc_info=error)
        raise error


def _is_self_explanatory(error: BaseException) -> bool:
    """Whether ``error`` says by itself what is wrong; the daemon's task groups wrap what is raised inside them."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_self_explanatory, error.exceptions))
    return isinstance(error, HeadgateError)


def _on_hangup(daemon: Daemon, load_new_settings: Callable[[], Settings], had_terminal: bool) -> None:
    if had_terminal and not sys.stderr.isatty():
        # The terminal was closed, which is the signal's first meaning: nobody is left to stop us otherwise.
        signal.raise_signal(signal.SIGTERM)
        return
    try:
        read = load_new_settings()
    except ConfigError as error:
        log.error("settings.invalid", error=str(error))  # noqa: TRY400 - its text says all
        return
    daemon.reload(read)


@click.command(
    epilog=examples(
        "headgate run --config /etc/headgate/headgate.toml",
        "headgate check-config --config headgate.toml && headgate run --config headgate.toml",
    ),
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Settings (TOML).")
def run(config: Path) -> None:
    """Run the daemon against a ZooKeeper, a broker and a store that run already.

    SIGTERM and Ctrl-C hand over to another daemon, if there is one, and end with exit code 0. SIGHUP reads the settings
    again: ingest.pipelining, ingest.mqtt_devices, [scaling], [retention] and log.level change at once, and the log
    names what needs a restart. Under systemd (Type=notify) readiness and the watchdog are told.
    """
    settings = read_settings(config)
    settings.broker.password()
    try:
        session.run(
            run_daemon(new_daemon(settings), lambda: read_settings(config)),
            log=settings.log,
            instance=settings.instance.name,
            patient=True,
        )
    except session.InterruptedBySignalError:
        # Being told to stop is how a daemon ends well.
        return


@click.command(
    "check-config",
    epilog=examples("headgate check-config --config headgate.toml", "headgate check-config headgate.toml --json"),
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="The same as the argument.")
@json_option
def check_config(file: Path | None, config: Path | None, as_json: bool) -> None:
    """Check the daemon's settings in FILE and print them with all defaults. Starts nothing, prints no secret."""
    if (file is None) == (config is None):
        raise click.UsageError("name the file of settings once: headgate check-config FILE")
    path = file or config
    assert path is not None, "one of the two is given"
    settings = read_settings(path)
    settings.broker.password()
    if as_json:
        print_json(settings)
        return
    print_table(("setting", "value"), settings.rows())
    click.echo(f"{path} is valid", err=True)
