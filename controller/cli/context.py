"""What every client command needs: the configuration, a way to run asyncio code, and the public client.

This is the one place where commands get a `Producer`, `Consumer` or `Admin` from; tests put fakes in here. The client
brings MQTT, Parquet and object stores along, so it is imported when a command runs, not when help is printed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar

import click

from headgate.config import ClientConfig, load_client_config
from headgate.errors import HeadgateError, RequestRejectedError

if TYPE_CHECKING:
    from controller.settings.load import LogSettings
    from headgate import Admin, Consumer, Producer
    from headgate.model.entries import Balance, SubscriptionType
    from headgate.protocol.messages import Start

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """What was said before the name of the command."""

    config: Path | None = None
    debug: bool = False


class InterruptedBySignalError(Exception):
    """Ctrl-C or SIGTERM ended the command, and everything is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def config_option(command: Command) -> Command:
    """Let ``command`` take ``--config`` as well, so that it may stand where people write it."""

    def remember(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        if value is not None:
            context.ensure_object(Invocation).config = value

    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=remember,
        help="Client configuration. [default: $HEADGATE_CONFIG, then headgate-data/client.toml]",
    )(command)


def client_config() -> ClientConfig:
    """Return the configuration for this command. Raises ConfigError."""
    return load_client_config(click.get_current_context().ensure_object(Invocation).config)


def open_admin(config: ClientConfig) -> Admin:
    """Return an Admin, not yet entered."""
    from headgate import Admin  # noqa: PLC0415

    return Admin(config)


def open_producer(config: ClientConfig, *, name: str | None) -> Producer:
    """Return a Producer, not yet entered."""
    from headgate import Producer  # noqa: PLC0415

    return Producer(config, name=name)


def open_consumer(
    config: ClientConfig,
    *,
    topic: str,
    subscription: str,
    type: SubscriptionType,  # noqa: A002 - the client's own word
    name: str | None,
    start: Start,
    balance: Balance | None,
    capacity: float,
) -> Consumer:
    """Return a Consumer, not yet entered."""
    from headgate import Consumer  # noqa: PLC0415

    return Consumer(
        config,
        topic=topic,
        subscription=subscription,
        type=type,
        name=name,
        start=start,
        balance=balance,
        capacity=capacity,
    )


async def require_topic(config: ClientConfig, topic: str) -> None:
    """Return if there is such a topic; otherwise raise HeadgateError that says how to make one."""
    async with open_admin(config) as admin:
        try:
            await admin.describe_topic(topic)
        except RequestRejectedError as error:
            if error.verdict != "invalid":
                raise
            raise HeadgateError(
                f"there is no topic {topic!r}; create it first: headgate topic create {topic}",
            ) from None


def start_logs(settings: LogSettings | None, stream: TextIO | None, instance: str) -> None:
    """Send logs to ``stream`` (None: standard error); without ``settings`` as suits a client.

    A person sees why a command waits; a script sees the one line that the command ends with.
    """
    from controller.logs import configure_logging  # noqa: PLC0415
    from controller.settings.load import LogSettings  # noqa: PLC0415

    if settings is None:
        debug = click.get_current_context().ensure_object(Invocation).debug
        quiet: Literal["warning", "error"] = "warning" if sys.stderr.isatty() else "error"
        settings = LogSettings(level="debug" if debug else quiet, format="text")
    configure_logging(settings, stream or sys.stderr, instance=instance)


def run(
    main: Coroutine[Any, Any, Result],
    *,
    log: LogSettings | None = None,
    stream: TextIO | None = None,
    instance: str = "",
    patient: bool = False,
) -> Result:
    """Run ``main`` to its end. On SIGINT or SIGTERM cancel it, let it clean up, and raise InterruptedBySignalError.

    A second signal while it cleans up ends the process at once, as if nobody had listened; unless ``patient``, for a
    command that has servers to stop and a limit on everything it waits for.
    """
    start_logs(log, stream, instance)
    return asyncio.run(_until_signalled(main, patient))


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
