"""What several commands take: names in one order (TOPIC SUBSCRIPTION CONSUMER), types, and consent.

Rules of a command that destroys something:

1. On a terminal the command shows what would go, and asks. Every answer but "y" changes nothing, and the exit code
   is 1.
2. Elsewhere it needs ``--yes``. Without it, it is wrong usage (exit code 2), found before a connection is opened.
3. ``--yes`` never asks. ``--dry-run`` only shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.completion import complete_consumer, complete_subscription, complete_topic
from headgate.cli.context import CommandContext, keep
from headgate.errors import HeadgateError
from headgate.model.byte_text import as_bytes
from headgate.model.entries import SubscriptionType

if TYPE_CHECKING:
    from headgate import Admin

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


def ask_first(context: CommandContext, question: str, unchanged: str, *names: str) -> None:
    """Ask ``question``; raise HeadgateError with the text ``unchanged`` unless the answer is yes.

    ``names``: what was shown, a topic, a subscription or a consumer. One that is created, or whose program is started,
    again before the answer is another one.
    """
    shown = context.ask(lambda admin: admin.identity(*names)) if names else ""
    if not click.confirm(question, err=True):
        raise HeadgateError(f"{unchanged}, because the answer was not y")
    if names and context.ask(lambda admin: admin.identity(*names)) != shown:
        raise HeadgateError(f"{unchanged}, because it was created or started again meanwhile")


def destroy(
    context: CommandContext,
    report: dict[str, Any],
    what: str,
    contents: Callable[[], Mapping[str, Any]],
    request: Callable[[Admin], Awaitable[object]],
    *,
    question: str = "",
    done: str = "deleted",
) -> None:
    """Send ``request``, which destroys ``what``, by the rules above; print ``report``.

    ``contents`` shows what would go, unless JSON is printed, and returns its part of the report, which names the topic
    and subscription, if it is in one. ``question``: by default whether to delete it.
    """
    require_consent(context)
    report |= {done: not context.dry_run}
    if not context.yes or context.dry_run:
        report |= contents()
    if context.asks_first:
        names = [report[each] for each in ("topic", "subscription", "consumer") if each in report]
        ask_first(context, question or f"Delete {what}?", f"{what} was not {done}", *names)
    if not context.dry_run:
        context.ask(request)
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
