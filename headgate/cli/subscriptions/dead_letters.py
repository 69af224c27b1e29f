"""`headgate subscription dead-letters`: list the dead letters of a queue, send them back, or drop them.

Rules:

1. A dead-letter topic is a topic: nothing is taken out of it. What is open is behind the positions of a subscription
   of that topic, which the first replay or drop creates. Retention waits for that subscription, too.
2. A replay stores its position with each record, as a copy does, and moves that subscription at its end. So each dead
   letter is sent back once, whatever interrupts it.
3. Only dead letters of this very subscription count, by its id: not those of an earlier one of the same name.
4. The parked records of a stream are not sent back, which would break the order: their keys are resumed. They are
   dropped only while no key is parked.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.arguments import ask_first, consent_options, of_subscription, require_consent
from headgate.cli.context import CommandContext, command
from headgate.cli.records.json_fields import put_text
from headgate.cli.records.record_format import printable
from headgate.cli.terminal.output import print_table
from headgate.cli.topics.transfer import TopicCopy
from headgate.errors import HeadgateError
from headgate.model.dead_letter import Origin, origin_of
from headgate.model.time_text import utc_minute

if TYPE_CHECKING:
    from headgate import Admin, SubscriptionInfo, TopicInfo
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
@consent_options
def dead_letters(
    context: CommandContext, topic: str, name: str, *, replay: bool, drop: bool, dry_run: bool, yes: bool
) -> None:
    """List the dead letters of SUBSCRIPTION of TOPIC that were neither sent back nor dropped, oldest first.

    A dead-letter topic keeps its records until its retention deletes them. --drop deletes nothing at once: it marks
    them as done in the subscription dead-letters-SHARD-ID of that topic, and so does --replay. From then on retention
    can delete them, and `headgate read` shows them until then.

    A dead letter that is sent back keeps its headers. It is a new record of TOPIC, for all subscriptions.
    """
    if replay and drop:
        raise click.UsageError("give --replay or --drop, not both")
    if drop:
        require_consent(context, yes=yes, dry_run=dry_run)
    found = context.run(find_open(context, topic, name))
    if found.described.type == "STREAM" and (replay or (drop and found.described.parked_keys)):
        raise HeadgateError(
            f"the records of parked keys are resumed in order: headgate subscription resume {topic} {name} KEY"
        )
    count, action = len(found.letters), "sent_back" if replay else "dropped"
    if not context.as_json:
        _print(found, err=replay or drop)
    if not (replay or drop):
        context.printed_as_json(found.letters)
        return
    what = f"{count} dead letters of subscription {name} of {topic}"
    if drop and count and not (yes or dry_run):
        ask_first(f"Drop {what}?", "nothing was dropped")
    if count and replay and not dry_run:
        count = context.run(replay_open(context, found))
    elif count and not dry_run:
        context.ask(found.close)
    context.printed_as_json({action: 0 if dry_run else count, "dead_letters": found.letters})
    click.echo(f"{'dry run: would be ' if dry_run else ''}{action.replace('_', ' ')}: {count}", err=True)


@dataclass(frozen=True, slots=True)
class OpenLetters:
    """The open dead letters of one subscription, and where they are."""

    source: TopicInfo
    described: SubscriptionInfo
    store: TopicInfo
    ledger_id: str
    starts: dict[int, int]
    """Segment of the store → first offset that is open."""
    letters: list[dict[str, Any]]

    def is_own(self, origin: Origin | None) -> bool:
        own = self.ledger_id, self.source.topic, self.source.topic_id, self.described.subscription_id
        return origin is not None and origin.owner == own

    async def close(self, admin: Admin) -> None:
        """Move the subscription of rule 1 behind what was found."""
        store, name = self.store.topic, _closing(self.source, self.described)
        await admin.create_subscription(store, name, type="QUEUE", start="earliest", if_absent=True)
        await admin.seek(store, name, positions={each.segment: each.next_offset for each in self.store.segments})


def _closing(source: TopicInfo, described: SubscriptionInfo) -> str:
    return f"dead-letters-{source.shard}-{described.subscription_id}"


async def find_open(context: CommandContext, topic: str, name: str) -> OpenLetters:
    """Read the open dead letters. Raises HeadgateError if there is no dead-letter topic."""
    from headgate.reading.topic_reader import TopicReader  # noqa: PLC0415 - not needed to print help

    async with context.open_admin() as admin:
        source, described = await admin.describe_topic(topic), await admin.describe_subscription(topic, name)
        store = described.policy.dead_letter_topic
        if not store:
            raise HeadgateError(
                f"subscription {name} of {topic} has no dead-letter topic: headgate subscription set --dead-letter"
            )
        known = {each.subscription: each.segments for each in await admin.list_subscriptions(store)}
    passed = {each.segment: each.acknowledged_offset for each in known.get(_closing(source, described), ())}
    async with context.open_topic(store) as opened:
        starts = {each.segment: passed.get(each.segment, 0) for each in opened.description.segments}
        found = OpenLetters(source, described, opened.description, opened.ledger_id, starts, [])
        reader = TopicReader(opened.ledger, opened.description, starts=starts, describe=opened.describe)
        async with aclosing(reader.stored()) as records:
            async for record in records:
                if (origin := origin_of(record.headers)) is not None and found.is_own(origin):
                    found.letters.append(_letter(record, origin))
    found.letters.sort(key=lambda each: each["died_at"])
    return found


async def replay_open(context: CommandContext, found: OpenLetters) -> int:
    """Send the dead letters back; return how many were stored."""
    store, target = found.store, found.source
    producer = f"replay-{store.shard}-{store.topic_id}-{target.shard}-{found.described.subscription_id}"
    copy = TopicCopy(context, store.topic, context, target.topic, producer, append=True)
    copy.select(lambda record: found.is_own(origin_of(record.headers)), found.starts)
    await copy.run()
    await context.answer(found.close)
    return copy.counts.stored


def _letter(record: LedgerRecord, origin: Origin) -> dict[str, Any]:
    letter: dict[str, Any] = {"segment": record.segment, "offset": record.offset}
    put_text(letter, "key", record.key)
    source = {"source_segment": origin.segment, "source_offset": origin.offset}
    return letter | source | {"deliveries": origin.deliveries, "reason": origin.reason, "died_at": origin.died_at_ms}


def _print(found: OpenLetters, *, err: bool) -> None:
    if not found.letters:
        click.echo(f"no dead letters are open in {found.store.topic}", err=True)
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
            for each in found.letters
        ],
        drop=("segment", "offset", "died"),
        err=err,
    )
