"""What several commands take: names in one order (TOPIC SUBSCRIPTION CONSUMER), places in a topic, and consent.

A completion is a convenience: if the cluster does not answer in `COMPLETION_SECONDS`, or refuses, there are no names,
and nothing is printed.

Rules of a command that destroys something:

1. On a terminal the command shows what would go, and asks. Every answer but "y" changes nothing, and the exit code
   is 1.
2. Elsewhere it needs ``--yes``. Without it, it is wrong usage (exit code 2), found before a connection is opened.
3. ``--yes`` never asks. ``--dry-run`` only shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from headgate.cli.context import CommandContext, keep
from headgate.errors import HeadgateError
from headgate.model.entries import SubscriptionType
from headgate.model.identifiers import Offset, SegmentId
from headgate.model.text import as_bytes
from headgate.model.time_text import TIME_HELP, time_ms

if TYPE_CHECKING:
    from headgate import Admin
    from headgate.client.admin import Seen

COMPLETION_SECONDS: Final = 3.0
"""A person waits with a finger on the Tab key."""

Names = list[str]
Completion = Callable[[click.Context, click.Parameter, str], Names]


def _completion(find: Callable[[Admin, str | None, str | None], Awaitable[Names]]) -> Completion:
    """Return what completes an argument with the names that ``find`` returns.

    ``find`` gets the topic and the subscription that precede on the command line, None where there is none.
    """

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> Names:
        # After an option without its value, click has not assigned the arguments yet.
        assigned = [context.params[name] for name in ("topic", "name") if context.params.get(name) is not None]
        topic, subscription = (*assigned, *context.args, None, None)[:2]
        return _ask(context, lambda admin: find(admin, topic, subscription), incomplete)

    return complete


@_completion
async def complete_topic(admin: Admin, *_: str | None) -> Names:
    return [each.topic for each in await admin.list_topics()]


@_completion
async def complete_subscription(admin: Admin, topic: str | None, _: str | None) -> Names:
    return [each.subscription for each in await admin.list_subscriptions(topic)]


@_completion
async def complete_consumer(admin: Admin, topic: str | None, subscription: str | None) -> Names:
    if topic is None or subscription is None:
        return []
    return [each.consumer for each in (await admin.describe_subscription(topic, subscription)).consumers]


@_completion
async def complete_daemon(admin: Admin, *_: str | None) -> Names:
    return [each.daemon for each in (await admin.describe_cluster(blocked=True)).daemons]


@_completion
async def complete_producer(admin: Admin, *_: str | None) -> Names:
    return [each.producer for each in await admin.list_producers()]


def _ask(context: click.Context, names: Callable[[Admin], Awaitable[Names]], incomplete: str) -> Names:
    import asyncio  # noqa: PLC0415 - only to complete
    import logging  # noqa: PLC0415

    command_context = context.ensure_object(CommandContext)
    if command_context.config is None:
        command_context.config = context.find_root().params.get("config")

    async def ask() -> Names:
        async with asyncio.timeout(COMPLETION_SECONDS), command_context.open_admin() as admin:
            return await names(admin)

    logging.getLogger("headgate").setLevel(logging.CRITICAL + 1)
    try:
        found = asyncio.run(ask())
    except (HeadgateError, TimeoutError):
        return []
    return sorted({name for name in found if name.startswith(incomplete)})


_MAX_INT64 = 2**63 - 1

PlaceOption = str | int | tuple[SegmentId, Offset]
"""earliest or latest, milliseconds since 1970, or the first offset of one segment."""


class Position(click.ParamType[tuple[SegmentId, Offset]]):
    name = "segment=offset"

    def convert(
        self, value: str | tuple[SegmentId, Offset], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[SegmentId, Offset]:
        """Return the pair; fail with an example for anything else."""
        if isinstance(value, tuple):
            return value
        segment, _, offset = value.partition("=")
        if not (segment.isascii() and segment.isdigit() and offset.isascii() and offset.isdigit()):
            self.fail(f"{value!r} is not a position; write for example 3=1200", param, ctx)
        if max(int(segment), int(offset)) > _MAX_INT64:
            self.fail(f"{value!r}: segment and offset must not exceed {_MAX_INT64}", param, ctx)
        return SegmentId(int(segment)), Offset(int(offset))


class Place(click.ParamType[PlaceOption]):
    """``earliest``, ``latest``, a time (`headgate.model.time_text`) or, with ``positions``, one `Position`."""

    name = "place"

    def __init__(self, *, positions: bool = False, elsewhere: str = "") -> None:
        """``elsewhere``: for an error, how to say what this does not take."""
        self._positions, self._elsewhere = positions, elsewhere

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002
        return "earliest|latest|TIME" + ("|SEGMENT=OFFSET" if self._positions else "")

    def convert(self, value: PlaceOption, param: click.Parameter | None, ctx: click.Context | None) -> PlaceOption:
        """Return the word, the milliseconds or the pair; fail with examples for anything else."""
        if not isinstance(value, str) or value in {"earliest", "latest"}:
            return value
        if self._positions and "=" in value:
            return _POSITION.convert(value, param, ctx)
        try:
            return time_ms(value)
        except ValueError as error:
            others = "earliest, latest, or a position such as 3=1200" if self._positions else "earliest or latest"
            self.fail(f"{error}, or {others}{self._elsewhere}", param, ctx)


PLACE_HELP: Final = f"earliest is the first stored record, latest the present end. {TIME_HELP}"
"""For the help of every option of type `Place`."""
_POSITION = Position()

start_option: Final = click.option(
    "--from",
    "start",
    type=Place(),
    default="latest",
    show_default=True,
    help=f"Where a new subscription starts. An existing one continues at its position. {PLACE_HELP}",
)


def place_arguments(place: PlaceOption, word: str) -> dict[str, Any]:
    """Return the argument of a method of `Admin` that means ``place``. ``word``: its name for earliest and latest."""
    return {"timestamp_ms": place} if isinstance(place, int) else {word: place}


_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _both(first: _Decorator, second: _Decorator) -> _Decorator:
    return lambda function: first(second(function))


def consent_options(verb: str = "go") -> _Decorator:
    """Return the options of a command that destroys something; `CommandContext` keeps their values."""
    kept: dict[str, Any] = {"is_flag": True, "expose_value": False, "callback": keep}
    return _both(
        click.option("--dry-run", help=f"Only show what would {verb}.", **kept),
        click.option("--yes", "-y", help="Do not ask. Needed where no terminal can be asked.", **kept),
    )


def require_beside(option: str, needed: str, *, is_there: object, name: str | None = None) -> None:
    """Raise UsageError if ``option`` is given, and what gives it an effect is not there; ``needed`` says what that is.

    ``name``: of the parameter, if it is not that of the option.
    """
    name = option.removeprefix("--").replace("-", "_") if name is None else name
    given = click.get_current_context().get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    if given and not is_there:
        raise click.UsageError(f"{option} requires {needed}")


def require_consent(context: CommandContext) -> None:
    """Raise UsageError if the command would have to ask, and cannot."""
    if context.asks_first and not context.can_ask():
        raise click.UsageError(
            "this destroys something, and there is no terminal to ask: add --yes, or --dry-run to see what would go"
        )


def seen_before(context: CommandContext, *names: str, key: bytes | None = None) -> Seen | None:
    """Return which topic, subscription or consumer has ``names``, before it is shown; None: the command does not ask.

    One that is created, or whose program is started, again before the answer is another one: `Admin.bound_to`.
    """
    return context.ask(lambda admin: admin.seen(*names, key=key)) if context.asks_first and names else None


def ask_first(question: str, unchanged: str) -> None:
    """Ask ``question``; raise HeadgateError with the text ``unchanged`` unless the answer is yes."""
    try:
        confirmed = click.confirm(question, err=True)
    except click.Abort as ended:
        if not isinstance(ended.__context__, EOFError):
            raise  # Ctrl-C
        confirmed = False
    if not confirmed:
        raise HeadgateError(f"{unchanged}, because the answer was not y")


def destroy(
    context: CommandContext,
    report: dict[str, Any],
    what: str,
    contents: Callable[[], Mapping[str, Any]],
    request: Callable[[Admin], Awaitable[object]],
    *,
    question: str = "",
    done: str = "deleted",
    seen: Seen | None = None,
) -> None:
    """Send ``request``, which destroys ``what``, by the rules above; print ``report``.

    ``contents`` shows what would go, unless JSON is printed, and returns its part of the report, which names the topic
    and subscription, if it is in one. ``question``: by default whether to delete it. ``seen``: from `seen_before`, if
    something of it was shown before.
    """
    require_consent(context)
    names = [report[each] for each in ("topic", "subscription", "consumer") if each in report]
    seen = seen or seen_before(context, *names)
    report |= {done: not context.dry_run}
    if not context.yes or context.dry_run:
        report |= contents()
    if context.asks_first:
        ask_first(question or f"Delete {what}?", f"{what} was not {done}")
    if not context.dry_run:
        context.ask(lambda admin: request(admin.bound_to(seen)))
    context.report(report, f"dry run: {what} was not {done}" if context.dry_run else f"{what} {done}")


base64_option = click.option("--base64", "is_base64", is_flag=True, help="The key is base64: its bytes are not text.")


def key_bytes(key: str, *, is_base64: bool) -> bytes:
    """Return a key as it is stored. Raises BadParameter: it is not base64."""
    try:
        return as_bytes(key, "base64" if is_base64 else "utf-8")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="KEY") from None


topic_argument = click.argument("topic", shell_complete=complete_topic)
subscription_argument = click.argument("name", metavar="SUBSCRIPTION", shell_complete=complete_subscription)
consumer_argument = click.argument("consumer", shell_complete=complete_consumer)
NO_SUBSCRIPTIONS = "no subscriptions; a consumer creates its own, or: headgate subscription create --help"
optional_topic_argument = click.argument("topic", required=False, shell_complete=complete_topic)
_any_subscription = click.argument(
    "name", metavar="[SUBSCRIPTION]", required=False, shell_complete=complete_subscription
)
of_subscription = _both(topic_argument, subscription_argument)
of_any_subscription = _both(optional_topic_argument, _any_subscription)
subscription_type_option = click.option(
    "--type",
    "kind",
    type=click.Choice(SubscriptionType, case_sensitive=False),
    default=SubscriptionType.STREAM,
    show_default=False,
    help="stream: ordered per key. queue: any order. checkpoint: nothing is acknowledged. [default: stream]",
)
