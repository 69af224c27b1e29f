"""`headgate subscription dead-letters`: list the dead letters of a queue, send them back, or drop them.

The rules are in headgate.client.open_letters.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import ask_first, consent_options, of_subscription, require_consent, seen_before
from headgate.cli.context import CommandContext, command
from headgate.cli.records.record_format import printable, put_text
from headgate.cli.terminal.output import print_table
from headgate.errors import HeadgateError
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate import Admin
    from headgate.client.open_letters import OpenLetters
    from headgate.model.headers import Origin
    from headgate.reading.stored_rows import LedgerRecord


@command(
    "headgate subscription dead-letters orders jobs",
    "headgate subscription dead-letters orders jobs --replay",
    "headgate subscription dead-letters orders jobs --drop --dry-run",
    name="dead-letters",
)
@of_subscription
@click.option("--replay", is_flag=True, help="Send them back to TOPIC, each once.")
@click.option("--drop", is_flag=True, help="Close them: they are not listed or sent back any more.")
@consent_options()
def dead_letters(context: CommandContext, topic: str, name: str, *, replay: bool, drop: bool) -> None:
    """List the dead letters of SUBSCRIPTION of TOPIC that were neither sent back nor dropped, oldest first.

    Of a stream, these are the records of parked keys that were not processed yet: see headgate subscription parked.

    A dead-letter topic keeps its records until its retention deletes them. --drop deletes nothing at once: it marks
    them as done in the subscription dead-letters-SHARD-ID of that topic, and so does --replay. From then on retention
    can delete them, and `headgate read` shows them until then.

    A dead letter that is sent back keeps its headers. It is a new record of TOPIC, for all subscriptions.
    """
    if replay and drop:
        raise click.UsageError("give --replay or --drop, not both")
    if (context.yes or context.dry_run) and not (replay or drop):
        raise click.UsageError("--yes and --dry-run require --replay or --drop: without them, the letters are listed")
    if drop:
        require_consent(context)
    seen = seen_before(context, topic, name) if drop else None
    found, letters = context.ask(lambda admin: _list(admin, topic, name))
    if replay or drop:
        found.require_order_kept(replay=replay)
    count, done = len(letters), "sent_back" if replay else "dropped"
    if not context.as_json:
        _print(found, letters, err=replay or drop)
    if not (replay or drop):
        context.printed_as_json(letters)
        return
    what = f"{count} dead letters of subscription {name} of {topic}"
    if drop and count and context.asks_first:
        ask_first(f"Drop {what}?", "nothing was dropped")
        if seen_before(context, topic, name) != seen:
            raise HeadgateError("nothing was dropped, because the subscription was created again meanwhile")
    if (count or (drop and found.has_stored)) and not context.dry_run:
        from headgate.client.open_letters import act  # noqa: PLC0415

        sent = context.ask(lambda admin: act(admin, topic, name, found.through, replay=replay))
        count = count if sent is None else sent
    context.printed_as_json({done: 0 if context.dry_run else count, "dead_letters": letters})
    click.echo(f"{'dry run: would be ' if context.dry_run else ''}{done.replace('_', ' ')}: {count}", err=True)


async def _list(admin: Admin, topic: str, name: str) -> tuple[OpenLetters, list[dict[str, Any]]]:
    from headgate.client.open_letters import find_open  # noqa: PLC0415 - not needed to print help

    found = await find_open(admin, topic, name)
    async with aclosing(found.letters()) as letters:
        return found, sorted([_letter(*each) async for each in letters], key=lambda each: each["died_at"])


def _letter(record: LedgerRecord, origin: Origin) -> dict[str, Any]:
    letter: dict[str, Any] = {"segment": record.segment, "offset": record.offset}
    put_text(letter, "key", record.key)
    source = {"source_segment": origin.segment, "source_offset": origin.offset}
    return letter | source | {"deliveries": origin.deliveries, "reason": origin.reason, "died_at": origin.died_at_ms}


def _print(found: OpenLetters, letters: list[dict[str, Any]], *, err: bool) -> None:
    if not letters:
        text = f"no dead letters are open in {found.opened.description.topic}"
        if found.has_stored and not err:
            text += "; --drop lets its retention delete the closed ones"
        click.echo(text, err=True)
        return
    columns = ("source_segment", "source_offset", "deliveries")
    print_table(
        ("key", "segment", "offset", "deliveries", "died", "reason"),
        [
            (
                printable(each["key"]),
                *(each[column] for column in columns),
                utc_minute(each["died_at"]),
                printable(each["reason"]),
            )
            for each in letters
        ],
        drop=("segment", "offset", "died"),
        err=err,
    )
