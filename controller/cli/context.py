"""What a command gets: the options before its name, the client, the servers of `headgate up`, and a way to run.

Commands receive the `CommandContext` of their invocation as their first argument. It is the only place from which they
get a `Producer`, a `Consumer`, an `Admin`, a daemon or a process, so tests pass one that returns fakes. Libraries are
imported when a command needs them, not when help is printed: MQTT, Parquet and object stores take long to import.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click

from controller.cli.async_stdio import write_all
from headgate.config import ClientConfig, load_client_config
from headgate.errors import HeadgateError, RequestRejectedError

if TYPE_CHECKING:
    from controller.daemon import Daemon
    from controller.local.broker_access import BrokerAccess
    from controller.local.embedded import EmbeddedBroker, EmbeddedZooKeeper
    from controller.local.server_tls import ServerTls
    from controller.settings.load import LogSettings, Settings
    from headgate import Admin, Consumer, Producer
    from headgate.child_process import ChildProcess
    from headgate.model.entries import Balance, SubscriptionType
    from headgate.protocol.messages import Start

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


class InterruptedBySignalError(Exception):
    """Ctrl-C or SIGTERM ended the command, and it has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass(slots=True)
class CommandContext:
    """One invocation of the command line."""

    config: Path | None = None
    """``--config``: the client configuration."""
    debug: bool = False
    """``--debug``."""
    watch_interval_seconds: float = 2.0
    """Pause between two updates of a watched table."""
    caught_up_poll_seconds: float = 0.2
    """`headgate consume` checks whether it has caught up after it has received nothing for this long."""
    caught_up_settle_seconds: float = 0.05
    """A record that the client has just delivered may need this long to reach the printer."""

    # The client

    def client_config(self) -> ClientConfig:
        """Return the client configuration. Raises ConfigError."""
        return load_client_config(self.config)

    def open_admin(self) -> Admin:
        """Return an Admin, not yet entered."""
        from headgate import Admin  # noqa: PLC0415

        return Admin(self.client_config())

    def open_producer(self, *, name: str | None) -> Producer:
        """Return a Producer, not yet entered."""
        from headgate import Producer  # noqa: PLC0415

        return Producer(self.client_config(), name=name)

    def open_consumer(
        self,
        *,
        topic: str,
        subscription: str,
        type: SubscriptionType,  # noqa: A002 - as Consumer names it
        name: str | None,
        start: Start,
        balance: Balance | None,
        capacity: float,
    ) -> Consumer:
        """Return a Consumer, not yet entered."""
        from headgate import Consumer  # noqa: PLC0415

        return Consumer(
            self.client_config(),
            topic=topic,
            subscription=subscription,
            type=type,
            name=name,
            start=start,
            balance=balance,
            capacity=capacity,
        )

    def ask(self, question: Callable[[Admin], Awaitable[Result]]) -> Result:
        """Run ``question`` with an Admin; return its result."""

        async def answer() -> Result:
            async with self.open_admin() as admin:
                return await question(admin)

        return self.run(answer())

    async def require_topic(self, topic: str) -> None:
        """Raise HeadgateError if the topic does not exist; the text names the command that creates it."""
        async with self.open_admin() as admin:
            try:
                await admin.describe_topic(topic)
            except RequestRejectedError as error:
                if error.verdict != "invalid":
                    raise
                raise HeadgateError(
                    f"topic {topic!r} does not exist; create it first: headgate topic create {topic}",
                ) from None

    # Standard input and output, and processes

    def standard_input(self) -> int:
        """Return the file descriptor of standard input."""
        return sys.stdin.fileno()

    async def write_output(self, data: bytes) -> None:
        """Write ``data`` to standard output without blocking the event loop. Raises OSError."""
        sys.stdout.flush()
        await write_all(sys.stdout.fileno(), data)

    def run_recount(self, command: list[str]) -> tuple[int, str]:
        """Run the recount; show its progress, and return its exit code and the other lines that it logged.

        The other lines are what the JVM prints while it starts; they matter only if the recount fails.
        """
        jvm_output = []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None, "started with a pipe"
            for line in process.stderr:
                if line.startswith("headgate:") or line.endswith("…\n"):
                    click.echo(line, err=True, nl=False)
                else:
                    jvm_output.append(line)
        return process.returncode, "".join(jvm_output)

    # Servers and daemons

    def new_daemon(self, settings: Settings) -> Daemon:
        """Return the daemon, not yet running."""
        from controller.daemon import Daemon  # noqa: PLC0415

        return Daemon(settings)

    def new_zookeeper(self, folder: Path, port: int, tls: ServerTls | None) -> EmbeddedZooKeeper:
        """Return the embedded ZooKeeper, not yet entered."""
        from controller.local.embedded import EmbeddedZooKeeper  # noqa: PLC0415

        return EmbeddedZooKeeper(folder, port, tls=tls)

    def new_broker(self, folder: Path, port: int, tls: ServerTls | None, access: BrokerAccess | None) -> EmbeddedBroker:
        """Return the embedded broker, not yet entered."""
        from controller.local.embedded import EmbeddedBroker  # noqa: PLC0415

        return EmbeddedBroker(folder, port, tls=tls, access=access)

    async def start_daemon(self, config: Path, log_path: Path) -> ChildProcess:
        """Start a further daemon as a process of its own."""
        from controller.local.daemon_process import start_daemon  # noqa: PLC0415

        return await start_daemon(config, log_path)

    # Running

    def start_logs(self, settings: LogSettings | None, stream: TextIO | None, instance: str) -> None:
        """Send logs to ``stream`` (None: standard error). Without ``settings``, use the level of a client command.

        On a terminal, warnings show why a command waits. A script gets only the final error.
        """
        from controller.logs import configure_logging  # noqa: PLC0415
        from controller.settings.load import LogSettings  # noqa: PLC0415

        if settings is None:
            quiet: Literal["warning", "error"] = "warning" if sys.stderr.isatty() else "error"
            settings = LogSettings(level="debug" if self.debug else quiet, format="text")
        configure_logging(settings, stream or sys.stderr, instance=instance)

    def run(
        self,
        main: Coroutine[Any, Any, Result],
        *,
        log: LogSettings | None = None,
        stream: TextIO | None = None,
        instance: str = "",
        patient: bool = False,
    ) -> Result:
        """Run ``main`` to its end. On SIGINT or SIGTERM cancel it, let it clean up, raise InterruptedBySignalError.

        A second signal during the cleanup ends the process at once. A ``patient`` command ignores it, because it has
        servers to stop and its cleanup has a time limit.
        """
        self.start_logs(log, stream, instance)
        return asyncio.run(_until_signalled(main, patient))


def with_context(command: Command) -> Command:
    """Pass the CommandContext as first argument, and accept ``--config`` after the command's name as well."""

    def set_config(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        if value is not None:
            context.ensure_object(CommandContext).config = value

    option = click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=set_config,
        help="Client configuration. [default: $HEADGATE_CONFIG, then headgate-data/client.toml]",
    )
    return option(click.pass_obj(command))  # type: ignore[return-value]  # the decorated command is only for click


async def _until_signalled(main: Coroutine[Any, Any, Result], patient: bool) -> Result:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main, name="command")
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            task.cancel()
        elif not patient:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        result = await task
    except asyncio.CancelledError:
        if not seen:
            raise
    else:
        if not seen:
            return result
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    raise InterruptedBySignalError(seen[0])
