"""`headgate subscription`: `dead-letters` of a queue, and `parked`, `resume` and `drop` for keys of a STREAM.

The rules are in headgate.client.open_letters. A key is text. One that is not UTF-8 is shown as base64, as `headgate
read` shows it, and given with ``--base64``.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headgate.cli import arguments
from headgate.cli.context import CommandContext, command
from headgate.cli.records.record_format import printable, put_text
from headgate.cli.terminal.output import print_table
from headgate.errors import HeadgateError
from headgate.model.text import plural
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate import Admin, ParkedKeyInfo
    from headgate.client.open_letters import OpenLetters
    from headgate.model.headers import Origin
    from headgate.reading.stored_rows import LedgerRecord


@command(
    "headgate subscription dead-letters orders jobs",
    "headgate subscription dead-letters orders jobs --replay",
    "headgate subscription dead-letters orders jobs --drop --dry-run",
    name="dead-letters",
)
@arguments.of_subscription
@click.option("--replay", is_flag=True, help="Send them back to TOPIC, each once.")
@click.option("--drop", is_flag=True, help="Close them: they are not listed or sent back any more.")
@arguments.consent_options()
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
        arguments.require_consent(context)
    seen = arguments.seen_before(context, topic, name) if drop else None
    found, letters = context.ask(lambda admin: _list(admin, topic, name))
    if replay or drop:
        found.require_order_kept(replay=replay)
    count, done = len(letters), "sent_back" if replay else "dropped"
    if not context.as_json:
        _print(found, letters, err=replay or drop)
    if not (replay or drop):
        context.printed_as_json(letters)
        return
    what = f"{plural(count, 'dead letter')} of subscription {name} of {topic}"
    if drop and count and context.asks_first:
        arguments.ask_first(f"Drop {what}?", "nothing was dropped")
        if arguments.seen_before(context, topic, name) != seen:
            raise HeadgateError("nothing was dropped, because the subscription was created again meanwhile")
    if (count or (drop and found.has_stored)) and not context.dry_run:
        from headgate.client.open_letters import act  # noqa: PLC0415

        sent = context.ask(lambda admin: act(admin, topic, name, found.through, replay=replay))
        count = count if sent is None else sent
    text = f"{'dry run: would be ' if context.dry_run else ''}{done.replace('_', ' ')}: {count}"
    context.report({done: 0 if context.dry_run else count, "dead_letters": letters}, text)


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
    rows = [
        (
            printable(each["key"]),
            *(each[name] for name in columns),
            utc_minute(each["died_at"]),
            printable(each["reason"]),
        )
        for each in letters
    ]
    shown = ("key", "segment", "offset", "deliveries", "died (UTC)", "reason")
    print_table(shown, rows, drop=("segment", "offset", "died (UTC)"), err=err)


_key_argument = click.argument("key")


def _document(each: ParkedKeyInfo) -> dict[str, Any]:
    document: dict[str, Any] = {}
    put_text(document, "key", each.key)
    return msgspec.structs.asdict(each) | document


def _parked_state(each: dict[str, Any]) -> str:
    if not each["is_resuming"]:
        return "parked"
    return "resuming" if each["records"] else "ending"


@command("headgate subscription parked orders billing", "headgate subscription parked orders billing --json")
@arguments.of_subscription
def parked(context: CommandContext, topic: str, name: str) -> None:
    """List the parked keys of SUBSCRIPTION of TOPIC, in the order in which they were last parked.

    Their records go to the dead-letter topic, until the key is resumed or dropped.
    """
    found = [_document(each) for each in context.ask(lambda admin: admin.parked_keys(topic, name))]
    if not found:
        context.report(found, "no key is parked")
    elif not context.printed_as_json(found):
        print_table(
            ("key", "records", "since (UTC)", "state", "reason"),
            [
                (
                    printable(each["key"]) + (" (base64)" if "key_encoding" in each else ""),
                    each["records"],
                    utc_minute(each["since_ms"]),
                    _parked_state(each),
                    printable(each["reason"]),
                )
                for each in found
            ],
            drop=("state",),
        )


@command("headgate subscription resume orders billing customer-7")
@arguments.of_subscription
@_key_argument
@arguments.base64_option
def resume(context: CommandContext, topic: str, name: str, key: str, *, is_base64: bool) -> None:
    """Deliver the parked records of KEY in order, and then newer ones.

    The consumer that reads the key begins within a heartbeat. The key stays parked until the records are processed.
    """
    wanted = arguments.key_bytes(key, is_base64=is_base64)
    context.ask(lambda admin: admin.resume_key(topic, name, wanted))
    report: dict[str, Any] = {"topic": topic, "subscription": name, "resumed": True}
    put_text(report, "key", wanted)
    context.report(report, f"key {printable(report['key'])} of subscription {name} of {topic} is being resumed")


@command(
    "headgate subscription drop orders billing customer-7 --dry-run",
    "headgate subscription drop orders billing customer-7 --yes",
)
@arguments.of_subscription
@_key_argument
@arguments.base64_option
@arguments.consent_options()
def drop(context: CommandContext, topic: str, name: str, key: str, *, is_base64: bool) -> None:
    """Give the parked records of KEY up, and deliver those that come from now on.

    What is in the dead-letter topic stays there, but cannot be resumed any more. On a terminal, the command says what
    is dropped and asks first. Elsewhere it needs --yes.
    """
    wanted = arguments.key_bytes(key, is_base64=is_base64)
    arguments.require_consent(context)
    seen = arguments.seen_before(context, topic, name, key=wanted)
    found = context.ask(lambda admin: admin.parked_keys(topic, name, wanted))
    if not found:
        raise HeadgateError(f"key {key} is not parked; see: headgate subscription parked {topic} {name}")
    report: dict[str, Any] = {"topic": topic, "subscription": name, "records": found[0].records}
    put_text(report, "key", wanted)
    records = plural(found[0].records, "parked record")
    which = f"key {printable(report['key'])} of subscription {name} of {topic}"
    arguments.destroy(
        context,
        report,
        f"{which} with {records}",
        dict,
        lambda admin: admin.resume_key(topic, name, wanted, drop=True),
        question=f"Drop the {records} of {which}?",
        done="dropped",
        seen=seen,
    )
