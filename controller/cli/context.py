"""What a command of the daemon gets, in addition to what a client command gets: a daemon, its servers and its logs.

Tests pass a context that returns fakes.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from headgate.cli.context import CommandContext
from headgate.cli.terminal.running import until_signalled
from headgate.errors import ConfigError
from headgate.log.lossy_output import lossy_standard_output
from headgate.process.child_process import ChildProcess, python_module

if TYPE_CHECKING:
    from controller.daemon import Daemon
    from controller.local.broker_access import BrokerAccess
    from controller.local.certificates import ServerTls
    from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper
    from controller.settings.load import Settings
    from controller.settings.sections import LogSettings

Result = TypeVar("Result")


class DaemonContext(CommandContext):
    """One invocation of a daemon's command."""

    def require_machine(self, folder: Path) -> None:
        """Raise ConfigError if this machine cannot run a node with its data in ``folder``."""
        from controller.local.servers import require_machine  # noqa: PLC0415

        require_machine(folder)

    async def require_ledger(self, url: str) -> int:
        """Return how many shards the ledger at ``url`` has; 0: it is new. No server has started.

        Raises ConfigError: no leader can write there. StoreUnavailableError: the store does not answer.
        """
        from controller.settings.load import ledger_problem  # noqa: PLC0415
        from headgate.ledger.identity import present_shards  # noqa: PLC0415
        from headgate.storage.object_store import open_store, write_problem  # noqa: PLC0415

        found = ledger_problem(url) or await write_problem(open_store(url))
        if found is not None:
            raise ConfigError(f"--ledger {url}: {found}")
        return await present_shards(open_store(url))

    async def move_ledger(self, settings: Settings, before: str) -> None:
        from controller.connections.zookeeper import move_ledger  # noqa: PLC0415

        await move_ledger(settings, before)

    def new_daemon(self, settings: Settings) -> Daemon:
        # pyarrow imports it for conversions that a daemon never makes: 24 MB, and a tenth of its start.
        sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
        from controller.daemon import Daemon  # noqa: PLC0415

        return Daemon(settings)

    def new_zookeeper(self, folder: Path, port: int, tls: ServerTls | None) -> EmbeddedZooKeeper:
        from controller.local.embedded import EmbeddedZooKeeper  # noqa: PLC0415

        return EmbeddedZooKeeper(folder, port, tls=tls)

    def new_broker(self, folder: Path, port: int, tls: ServerTls | None, access: BrokerAccess | None) -> EmbeddedBroker:
        from controller.local.embedded import EmbeddedBroker  # noqa: PLC0415

        return EmbeddedBroker(folder, port, tls=tls, access=access)

    async def start_daemon(self, config: Path, log_path: Path) -> ChildProcess:
        """Start a daemon with the settings in ``config``. It dies with this process."""
        return await ChildProcess.start(*python_module("headgate", "run", "--config", str(config)), log_path=log_path)

    def start_daemon_logs(self, settings: LogSettings, stream: TextIO, instance: str) -> None:
        from controller.process.logs import configure_logging  # noqa: PLC0415

        configure_logging(settings, stream, instance=instance)

    def serve(
        self, main: Coroutine[Any, Any, Result], *, log: LogSettings, instance: str, stream: TextIO | None = None
    ) -> Result:
        """Run ``main`` like `run`, with the logs of a daemon (None: to standard error), and stop patiently."""
        self.start_daemon_logs(log, stream or sys.stderr, instance)
        with lossy_standard_output():
            return asyncio.run(until_signalled(main, patient=True))


def pass_daemon_context(command: Callable[..., Result]) -> Callable[..., Result]:
    """Pass a DaemonContext as first argument. The command line itself makes a CommandContext."""

    @functools.wraps(command)
    def with_daemon_context(*arguments: Any, **options: Any) -> Result:
        given = click.get_current_context().find_object(DaemonContext)
        return command(given or DaemonContext(), *arguments, **options)

    return with_daemon_context
