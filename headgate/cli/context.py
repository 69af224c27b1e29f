"""What a command gets: the options before its name, the client, standard input and output, and a way to run.

Commands receive the `CommandContext` of their invocation as their first argument. It is the only place from which they
get a `Producer`, a `Consumer` or an `Admin`, so tests pass one that returns fakes. Libraries are
imported when a command needs them, not when help is printed: even asyncio takes as long to import as click.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from headgate.cli.terminal.option_types import FilePath, Seconds
from headgate.cli.terminal.output import JSON_HELP, examples, print_json
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from headgate import Admin, Consumer, Producer, ProducerSettings
    from headgate.client.topic_source import TopicSource
    from headgate.settings.config import ClientConfig
    from headgate.storage.object_store import Store

REPLY_TIMEOUT_SECONDS: Final = 30.0
"""For the answer to a request, including a change of leader."""
BROKER_TIMEOUT_SECONDS: Final = 4.0
"""A person waits for the command, or a script that can repeat it: with its start, it ends within 5 seconds. A broker
answers within milliseconds."""

Result = TypeVar("Result")


@dataclass(slots=True)
class CommandContext:
    config: Path | None = None
    debug: bool = False
    as_json: bool = False
    timeout_seconds: float | None = None
    """``--timeout``; None: `BROKER_TIMEOUT_SECONDS` for the broker, and ``reply_timeout_seconds`` for a reply."""
    reply_timeout_seconds: float = REPLY_TIMEOUT_SECONDS
    """What the command waits for a reply unless ``--timeout`` is given."""
    watch_interval_seconds: float = 2.0
    yes: bool = False
    """``--yes``: destroy without a question."""
    dry_run: bool = False
    """``--dry-run`` of a command that destroys something: only show what would go."""

    # The client

    def of_cluster(self, config: Path) -> Self:
        """Return a context of this command for the cluster that ``config`` names."""
        other = copy(self)
        other.config = config
        return other

    def is_same_cluster(self, other: CommandContext) -> bool:
        mine, others = self.client_config(), other.client_config()
        return (mine.cluster, mine.ledger_url) == (others.cluster, others.ledger_url)

    def client_config(self) -> ClientConfig:
        import msgspec  # noqa: PLC0415

        from headgate.settings.config import load_client_config  # noqa: PLC0415

        config = load_client_config(self.config)
        seconds = self.timeout_seconds or config.broker_timeout_seconds or BROKER_TIMEOUT_SECONDS
        return msgspec.structs.replace(config, broker_timeout_seconds=seconds)

    def wait_seconds(self) -> float:
        return self.reply_timeout_seconds if self.timeout_seconds is None else self.timeout_seconds

    def open_admin(self) -> Admin:
        from headgate import Admin  # noqa: PLC0415

        return Admin(self.client_config(), timeout_seconds=self.wait_seconds())

    def open_producer(self, *, name: str | None, copies: bool = False) -> Producer:
        """Return a Producer, not yet entered; one that ``copies`` stored records sends all of their headers."""
        from headgate import Producer  # noqa: PLC0415

        return Producer(
            self.client_config(),
            name,
            replace(producer_settings(self.timeout_seconds), reserved_headers=copies),
            connect_timeout_seconds=self.wait_seconds(),
        )

    def open_consumer(self, **options: Any) -> Consumer:
        from headgate import Consumer  # noqa: PLC0415

        return Consumer(self.client_config(), **options, connect_timeout_seconds=self.wait_seconds())

    def open_topic(self, topic: str) -> AbstractAsyncContextManager[TopicSource]:
        """Return a topic's description and ledger, not yet entered."""
        from headgate.client.connection import Client  # noqa: PLC0415
        from headgate.client.topic_source import open_topic_source  # noqa: PLC0415

        client = Client.from_config(self.client_config(), "reader", with_store=True)
        return open_topic_source(client, topic, self.wait_seconds())

    async def open_store(self) -> Store:
        """Return the store of the configured ledger. Raises LedgerError if that is not the cluster's."""
        from headgate.client.connection import Client  # noqa: PLC0415

        async with Client.from_config(self.client_config(), "reader", with_store=True) as client:
            await client.ledger_id(self.wait_seconds())
            return client.store

    async def answer(self, question: Callable[[Admin], Awaitable[Result]]) -> Result:
        async with self.open_admin() as admin:
            return await question(admin)

    def ask(self, question: Callable[[Admin], Awaitable[Result]]) -> Result:
        return self.run(self.answer(question))

    # Standard input and output

    @property
    def asks_first(self) -> bool:
        """Whether a command shows what it would destroy, and asks."""
        return not (self.yes or self.dry_run)

    def can_ask(self) -> bool:
        """Whether a person sees questions and can answer them."""
        return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()

    def standard_input(self) -> int:
        if sys.stdin is None:
            raise HeadgateError("standard input is closed: name a file or /dev/null for it")
        return sys.stdin.fileno()

    def printed_as_json(self, result: object) -> bool:
        """Print ``result`` as JSON if the command has the option ``--json``; return whether it has."""
        if self.as_json:
            print_json(result)
        return self.as_json

    def report(self, result: object, text: str) -> None:
        """Print what was done: ``result`` as JSON, or ``text`` on standard error."""
        if not self.printed_as_json(result):
            click.echo(text, err=True)

    def show(
        self, question: Callable[[Admin], Awaitable[Result]], print_: Callable[[Result], None], *, empty: str = ""
    ) -> None:
        """Ask, and print the answer as JSON, or with ``print_``; an empty list as ``empty`` on standard error."""
        found = self.ask(question)
        if self.printed_as_json(found):
            return
        if empty and not found:
            click.echo(empty, err=True)
        else:
            print_(found)

    async def write_output(self, data: bytes) -> None:
        """Write ``data`` to standard output without blocking the event loop. Raises OSError, which names it."""
        from headgate.cli.terminal.running import write_all  # noqa: PLC0415

        try:
            sys.stdout.flush()
            await write_all(sys.stdout.fileno(), data)
        except OSError as error:
            error.filename = "standard output"
            raise

    def run_while_read(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Run ``main`` as `run` does. Raises BrokenPipeError once standard output has no reader any more."""
        from headgate.cli.terminal.running import while_read  # noqa: PLC0415

        return self.run(while_read(sys.stdout.fileno(), main))

    # Running

    async def pause(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415

        await asyncio.sleep(seconds)

    def watch(
        self, question: Callable[[Admin], Awaitable[Result]], show: Callable[[Result], None], interval_seconds: float
    ) -> None:
        """Ask again and again until Ctrl-C, which is no failure.

        On a terminal each answer replaces the one before. With ``--json`` each is one line, and ``show`` is not used.
        """
        import signal  # noqa: PLC0415

        import msgspec  # noqa: PLC0415

        from headgate.cli.exit_codes import InterruptedBySignalError  # noqa: PLC0415
        from headgate.errors import NoLeaderError  # noqa: PLC0415

        async def ask_again_and_again() -> None:
            answered = False
            async with self.open_admin() as admin:
                while True:
                    try:
                        found = await question(admin)
                    except NoLeaderError as error:
                        # One may appear again. A cluster that never answered is an error.
                        if not answered:
                            raise
                        click.echo(f"no answer: {error}", err=True)
                    else:
                        answered = True
                        if self.as_json:
                            click.echo(msgspec.json.encode(found))
                        else:
                            click.clear()
                            show(found)
                    await self.pause(interval_seconds)

        try:
            self.run_while_read(ask_again_and_again())
        except InterruptedBySignalError as interrupted:
            if interrupted.number != signal.SIGINT:
                raise

    def start_logs(self) -> None:
        from headgate.cli.terminal.running import start_logs  # noqa: PLC0415

        start_logs(debug=self.debug)

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Run ``main`` to its end. On SIGINT or SIGTERM cancel it, let it clean up, raise InterruptedBySignalError.

        A second signal during the cleanup ends the process at once.
        """
        import asyncio  # noqa: PLC0415

        from headgate.cli.terminal.running import until_signalled  # noqa: PLC0415

        self.start_logs()
        return asyncio.run(until_signalled(main, patient=False))


def producer_settings(timeout_seconds: float | None) -> ProducerSettings:
    """Return the settings of a producer whose records have an outcome after ``timeout_seconds``; None: the default."""
    from headgate import ProducerSettings  # noqa: PLC0415

    default = ProducerSettings()
    if timeout_seconds is None:
        return default
    shorter = min(default.request_timeout_seconds, timeout_seconds)
    return ProducerSettings(request_timeout_seconds=shorter, delivery_timeout_seconds=timeout_seconds)


def keep(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None:
        setattr(context.ensure_object(CommandContext), str(option.name), value)


_JSON_OPTION: Final = click.Option(
    ["--json", "as_json"], is_flag=True, expose_value=False, callback=keep, help=JSON_HELP
)
_CLUSTER_OPTIONS: Final = (
    click.Option(
        ["--config"],
        type=FilePath(),
        metavar="FILE",
        expose_value=False,
        callback=keep,
        help="Client configuration. [default: $HEADGATE_CONFIG, then headgate-data/client.toml]",
    ),
    click.Option(
        ["--timeout", "timeout_seconds"],
        type=Seconds(),
        metavar="SECONDS",
        expose_value=False,
        callback=keep,
        help="Longest wait for the broker to accept the connection, and then for each answer of the cluster. "
        f"[default: {BROKER_TIMEOUT_SECONDS:g} for the broker, {REPLY_TIMEOUT_SECONDS:g} for an answer]",
    ),
)


def command(
    *shown: str,
    group: click.Group | None = None,
    name: str | None = None,
    prints_json: bool = True,
    asks_cluster: bool = True,
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a command, which gets the `CommandContext` as first argument.

    Args:
        shown: examples for the end of its help; the first one is also in the help of its group.
        group: the group that it belongs to; None: it is added to one later.
        name: its name; None: that of the function.
        prints_json: whether it has the option --json, see `CommandContext.printed_as_json`.
        asks_cluster: whether it has the options of a client.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        made = (click if group is None else group).command(name, epilog=examples(*shown))(click.pass_obj(function))
        made.params += [*[_JSON_OPTION] * prints_json, *(_CLUSTER_OPTIONS if asks_cluster else ())]
        if group is not None:
            group.epilog = f"{group.epilog or examples()}\n  {shown[0]}"
        return made

    return decorate
