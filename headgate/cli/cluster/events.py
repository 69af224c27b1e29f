"""`headgate events`: print what has changed, from the ledgers."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import Place, PlaceOption, optional_topic_argument, require_beside
from headgate.cli.context import CommandContext, command
from headgate.cli.records.record_format import printable
from headgate.model.time_text import TIME_HELP, iso_time

if TYPE_CHECKING:
    from headgate import Admin
    from headgate.views.cluster import LedgerEvent


@command(
    "headgate events",
    "headgate events orders --since 2026-01-31T18:00:00Z",
    "headgate events --tail 10 --follow --json | jq .text",
    prints_json=False,
)
@optional_topic_argument
@click.option("--since", type=Place(), help=f"All events from then on; earliest: that are stored. {TIME_HELP}")
@click.option("--tail", type=click.IntRange(0), default=50, metavar="N", show_default=True, help="Or only the last N.")
@click.option("--follow", "-f", is_flag=True, help="Then print new events, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def events(
    context: CommandContext, topic: str | None, since: PlaceOption | None, tail: int, follow: bool, as_json: bool
) -> None:
    """Print events, the oldest first: of all topics, or of TOPIC and its shard.

    Events are terms, splits, merges, drained and pruned segments, seeks, removed consumers, failed deliveries, parked
    keys, and what was created, changed or deleted. They are read from the ledger, so they are as old as its chunks.
    Without --since, the search ends after 10,000 chunks, and the command says how far it came.
    """
    require_beside("--tail", "no --since, which prints all events from then on", is_there=since is None)
    import msgspec  # noqa: PLC0415 - not needed to print help

    from headgate.ledger.ledger import Ledger, shard_folders  # noqa: PLC0415
    from headgate.reading.ledger_events import LedgerEvents, names_of  # noqa: PLC0415

    limit = tail if since is None else 0 if since == "latest" else None

    def show(event: LedgerEvent) -> None:
        name = event.topic if event.subscription is None else f"{event.topic}/{event.subscription}"
        line = f"{iso_time(event.at_ms)}  {name or f'shard {event.shard}'}: {event.text}"
        click.echo(msgspec.json.encode(event) if as_json else printable(line))

    async def print_events(admin: Admin) -> None:
        topics = await admin.list_topics() if topic is None else [await admin.describe_topic(topic)]
        store = await context.open_store()
        looked = LedgerEvents(
            ledgers=[
                Ledger(store, each) for each in (await shard_folders(store) if topic is None else [topics[0].shard])
            ],
            names=names_of(topics, await admin.list_subscriptions(topic)),
            topic_id=None if topic is None else topics[0].topic_id,
            since_ms=since if isinstance(since, int) else 0,
            limit=limit,
        )
        await looked.run()
        found = looked.found()
        for event in reversed(found.events[:limit]):
            show(event)
        if found.next is not None and len(found.events) < (limit or 0):
            click.echo(f"events before {iso_time(found.next)} were not looked for; --since reads all", err=True)
        if follow:
            async with aclosing(looked.follow()) as following:
                async for event in following:
                    show(event)

    context.run_while_read(context.answer(print_events))
