"""`headgate consume`: print records, one JSON object per line.

Rules:

1. A record is acknowledged only after its line has been written. Records that were not printed are delivered again.
2. A slow reader of standard output slows this consumer down, but the consumer keeps its segments.
3. Standard output holds only records. Diagnostics go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from headgate.cli.arguments import PlaceOption, of_subscription, start_option, subscription_type_option
from headgate.cli.context import CommandContext, command
from headgate.cli.records.record_format import json_headers, put_text
from headgate.model.entries import SubscriptionType
from headgate.model.text import UNREADABLE_JSON, plural

if TYPE_CHECKING:
    from headgate import ConsumedRecord, Consumer
    from headgate.model.entries import Balance
    from headgate.reading.stored_rows import LedgerRecord

PRINT_BATCH_RECORDS = 512
"""Maximum number of records that are printed and acknowledged together."""

_ANYTHING = msgspec.json.Decoder(msgspec.Raw)


def record_line(record: ConsumedRecord | LedgerRecord) -> bytes:
    r"""Return ``record`` as one line of JSON, ``\n`` included.

    The value is embedded as JSON if it is JSON, else as a string, else in base64 with ``"value_encoding": "base64"``.
    Headers are a list of objects with name and value, if there are any.
    """
    line: dict[str, Any] = {}
    put_text(line, "key", record.key)
    try:
        _ANYTHING.decode(record.value)
        value: Any = msgspec.Raw(record.value)
        if b"\n" in record.value or b"\r" in record.value:
            value = msgspec.Raw(msgspec.json.format(record.value, indent=-1))
        line["value"] = value
    except UNREADABLE_JSON:
        put_text(line, "value", record.value)
    if record.headers:
        line["headers"] = json_headers(record.headers)
    line["segment"] = record.segment
    line["offset"] = record.offset
    line["timestamp"] = record.timestamp_ms
    return msgspec.json.encode(line) + b"\n"


@command(
    "headgate consume orders billing --type stream --from earliest",
    "headgate consume orders billing --max 10 | jq .value",
    "headgate consume orders audit --type checkpoint --from earliest --exit-when-caught-up",
    "headgate consume orders billing --balance load --capacity 2",
    prints_json=False,
)
@of_subscription
@subscription_type_option
@start_option
@click.option("--max", "max_records", type=click.IntRange(min=1), metavar="N", help="Exit after N records.")
@click.option("--exit-when-caught-up", is_flag=True, help="Exit when all records stored so far have been printed.")
@click.option(
    "--balance",
    type=click.Choice(["count", "load"]),
    help="How to balance segments across consumers. [default: the subscription's current setting]",
)
@click.option(
    "--capacity",
    type=float,
    default=1.0,
    show_default=True,
    help="Relative capacity of this consumer, for --balance load.",
)
@click.option(
    "--consumer",
    metavar="NAME",
    help="Name of this consumer. A restart under the same name gets its segments back. [default: a random name]",
)
def consume(
    context: CommandContext,
    *,
    topic: str,
    name: str,
    kind: SubscriptionType,
    start: PlaceOption,
    max_records: int | None,
    exit_when_caught_up: bool,
    consumer: str | None,
    balance: Balance | None,
    capacity: float,
) -> None:
    """Print the records of TOPIC, one JSON object per line: key, value, headers, segment, offset, timestamp (ms).

    SUBSCRIPTION is created if it does not exist. Printed records are acknowledged. Consumers of one subscription share
    the segments of its topic.
    """

    async def print_records() -> int:
        if isinstance(start, int):
            await context.answer(
                lambda admin: admin.create_subscription(topic, name, type=kind, timestamp_ms=start, if_absent=True)
            )
        else:
            await context.answer(lambda admin: admin.describe_topic(topic))
        opened = context.open_consumer(
            topic=topic,
            subscription=name,
            type=kind,
            name=consumer,
            start="earliest" if start == "earliest" else "latest",
            balance=balance,
            capacity=capacity,
        )
        async with opened:
            records = opened.until_caught_up() if exit_when_caught_up else opened
            return await _print_all(context, opened, records, kind, max_records)

    printed = context.run_while_read(print_records())
    if sys.stderr.isatty():
        click.echo(plural(printed, "record"), err=True)


async def _print_all(
    context: CommandContext,
    consumer: Consumer,
    records: AsyncIterable[ConsumedRecord],
    kind: SubscriptionType,
    max_records: int | None,
) -> int:
    """Print ``records`` of ``consumer``, and acknowledge each batch that was printed; return how many."""
    printed = 0
    async for first in records:
        limit = PRINT_BATCH_RECORDS if max_records is None else min(PRINT_BATCH_RECORDS, max_records - printed)
        batch = [first, *(await consumer.get_many(limit - 1) if limit > 1 else ())]
        await context.write_output(b"".join(map(record_line, batch)))
        await _acknowledge(consumer, kind, batch)
        printed += len(batch)
        if printed == max_records:
            break
    return printed


async def _acknowledge(consumer: Consumer, kind: SubscriptionType, batch: Sequence[ConsumedRecord]) -> None:
    if kind is SubscriptionType.CHECKPOINT:
        return
    # A STREAM acknowledges cumulatively: the last record of each segment, and of each resumed key, covers earlier ones.
    last = {(record.segment, record.parked_number and record.key): record for record in batch}.values()
    for record in batch if kind is SubscriptionType.QUEUE else last:
        await consumer.acknowledge(record)
