"""`headgate consume`: records out, one JSON object a line.

Rules:

1. A record is acknowledged only after its line has left this process. What was not printed is delivered again.
2. A slow reader of standard output slows this consumer down, but does not make it lose its segments.
3. Diagnostics go to standard error; standard output holds records and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from controller.cli import context as session
from controller.cli.async_stdio import write_all
from controller.cli.output import examples
from headgate.model.entries import SubscriptionType

if TYPE_CHECKING:
    from headgate import ConsumedRecord, Consumer
    from headgate.model.entries import Balance
    from headgate.protocol.messages import Start

PRINT_BATCH_RECORDS = 512
"""Most records that are printed and acknowledged together, and that wait to be printed."""
CAUGHT_UP_POLL_SECONDS = 0.2
"""How long nothing must have come before we ask whether we are caught up."""
CAUGHT_UP_SETTLE_SECONDS = 0.05
"""A record that was handed out just now may still be on its way through this process's queue."""

_ANYTHING = msgspec.json.Decoder(msgspec.Raw)


def record_line(record: ConsumedRecord) -> bytes:
    r"""Return ``record`` as one line of JSON, ``\n`` included.

    The value stands as JSON if it is JSON, else as a string, else as base64 beside ``"value_encoding": "base64"``.
    """
    line: dict[str, Any] = {}
    _put_text(line, "key", record.key)
    try:
        _ANYTHING.decode(record.value)
        value: Any = msgspec.Raw(record.value)
        if b"\n" in record.value or b"\r" in record.value:
            value = msgspec.Raw(msgspec.json.format(record.value, indent=-1))
        line["value"] = value
    except (msgspec.DecodeError, UnicodeDecodeError):
        _put_text(line, "value", record.value)
    line["segment"] = record.segment
    line["offset"] = record.offset
    line["timestamp"] = record.timestamp_ms
    return msgspec.json.encode(line) + b"\n"


def _put_text(line: dict[str, Any], name: str, data: bytes) -> None:
    try:
        line[name] = data.decode()
    except UnicodeDecodeError:
        line[name] = base64.b64encode(data).decode()
        line[f"{name}_encoding"] = "base64"


@click.command(
    epilog=examples(
        "headgate consume orders --subscription billing --type stream --from earliest",
        "headgate consume orders -s billing --max 10 | jq .value",
        "headgate consume orders -s audit --type checkpoint --from earliest --exit-when-caught-up",
        "headgate consume orders -s billing --balance load --capacity 2",
    ),
)
@click.argument("topic")
@click.option("--subscription", "-s", required=True, help="Whose position this is. Created when it is missing.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(SubscriptionType, case_sensitive=False),
    default=SubscriptionType.STREAM,
    show_default=True,
    help="stream: ordered per key. queue: any order. checkpoint: acknowledges nothing.",
)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Where a new subscription begins; one that exists goes on where it was.",
)
@click.option("--max", "max_records", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--exit-when-caught-up", is_flag=True, help="Stop once everything stored so far has been printed.")
@click.option(
    "--balance",
    type=click.Choice(["count", "load"]),
    help="What all consumers of the subscription are balanced by; what it was when left out.",
)
@click.option("--capacity", type=float, default=1.0, help="Of this consumer, beside an ordinary one's 1 (with load).")
@click.option("--consumer", metavar="NAME", help="Name of this consumer; the same name takes up what it held before.")
@session.config_option
def consume(
    *,
    topic: str,
    subscription: str,
    kind: SubscriptionType,
    start: Start,
    max_records: int | None,
    exit_when_caught_up: bool,
    consumer: str | None,
    balance: Balance | None,
    capacity: float,
) -> None:
    """Print the records of TOPIC, one JSON object a line: key, value, segment, offset, timestamp (ms since 1970).

    What has been printed is acknowledged. Consumers of one subscription share the segments of its topic.
    """
    config = session.client_config()

    async def print_records() -> int:
        await session.require_topic(config, topic)
        opened = session.open_consumer(
            config,
            topic=topic,
            subscription=subscription,
            type=kind,
            name=consumer,
            start=start,
            balance=balance,
            capacity=capacity,
        )
        async with opened:
            printer = _Printer(opened, kind, max_records=max_records, exit_when_caught_up=exit_when_caught_up)
            return await printer.run()

    printed = session.run(print_records())
    if sys.stderr.isatty():
        click.echo(f"{printed} records", err=True)


class _Printer:
    """Takes records from a consumer, prints them in groups, and acknowledges each batch."""

    def __init__(
        self,
        consumer: Consumer,
        kind: SubscriptionType,
        *,
        max_records: int | None,
        exit_when_caught_up: bool,
    ) -> None:
        self._consumer = consumer
        self._kind = kind
        self._max_records = max_records
        self._exit_when_caught_up = exit_when_caught_up
        self._records: asyncio.Queue[ConsumedRecord] = asyncio.Queue(PRINT_BATCH_RECORDS)
        self._printed = 0

    async def run(self) -> int:
        """Print until there is a reason to stop; return how many."""
        reading = asyncio.get_running_loop().create_task(self._read(), name="read-records")
        try:
            while self._max_records is None or self._printed < self._max_records:
                batch = await self._next_batch(reading)
                if not batch:
                    break
                await self._print(batch)
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        return self._printed

    async def _read(self) -> None:
        async for record in self._consumer:
            await self._records.put(record)

    async def _next_batch(self, reading: asyncio.Task[None]) -> list[ConsumedRecord]:
        """Return the records that have come, at least one; none if it is time to stop."""
        capacity_left = (
            PRINT_BATCH_RECORDS
            if self._max_records is None
            else min(PRINT_BATCH_RECORDS, self._max_records - self._printed)
        )
        first = await self._next_record(reading)
        batch = [] if first is None else [first]
        while batch and len(batch) < capacity_left and not self._records.empty():
            batch.append(self._records.get_nowait())
        return batch

    async def _next_record(self, reading: asyncio.Task[None]) -> ConsumedRecord | None:
        getting = asyncio.get_running_loop().create_task(self._records.get(), name="next-record")
        timeout = CAUGHT_UP_POLL_SECONDS if self._exit_when_caught_up else None
        try:
            while True:
                await asyncio.wait({getting, reading}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
                if reading.done():
                    # The consumer ended: by an error, which this raises, or because it was fenced or closed.
                    reading.result()
                    return None
                if await self._consumer.caught_up():
                    await asyncio.wait({getting}, timeout=CAUGHT_UP_SETTLE_SECONDS)
                    if not getting.done():
                        return None
        finally:
            if not getting.done():
                getting.cancel()
                await asyncio.wait([getting])

    async def _print(self, batch: list[ConsumedRecord]) -> None:
        await _write(b"".join(map(record_line, batch)))
        self._printed += len(batch)
        if self._kind == SubscriptionType.QUEUE:
            for record in batch:
                await self._consumer.acknowledge(record)
        elif self._kind == SubscriptionType.STREAM:
            # Cumulative: the last record of each segment speaks for those before it.
            for record in {record.segment: record for record in batch}.values():
                await self._consumer.acknowledge(record)


async def _write(data: bytes) -> None:
    try:
        file = sys.stdout.fileno()
    except OSError:  # no descriptor behind it, as under a test
        sys.stdout.buffer.write(data)
        return
    sys.stdout.flush()
    await write_all(file, data)
