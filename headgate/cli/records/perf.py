"""`headgate perf`: measure a cluster as its programs see it, with random records in a topic for that purpose."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import TYPE_CHECKING

import click

from headgate.cli.arguments import topic_argument
from headgate.cli.context import CommandContext, command
from headgate.cli.terminal.output import print_table

if TYPE_CHECKING:
    from headgate import Consumer

AT_ONCE = 10_000
"""Records of one `send_many`, up to `BYTES_AT_ONCE`. As many more are sent while they wait for their outcome."""
BYTES_AT_ONCE = 16 * 1024 * 1024
DISTINCT = 1000
"""Values and keys that repeat."""

_size = click.option(
    "--size", type=click.IntRange(8, 1_000_000), default=100, show_default=True, help="Bytes of a value."
)


@click.group()
def perf() -> None:
    """Measure how fast a cluster stores and delivers records, from where this command runs.

    Give it a topic of its own: it adds records of random bytes.
    """


@command("headgate perf produce trial --records 1000000 --size 1000", group=perf)
@topic_argument
@click.option("--records", type=click.IntRange(1), default=100_000, show_default=True, help="How many to store.")
@_size
def produce(context: CommandContext, topic: str, records: int, size: int) -> None:
    """Store records in TOPIC with one producer, as fast as it can."""

    async def measure() -> float:
        import asyncio  # noqa: PLC0415
        import os  # noqa: PLC0415

        at_once = max(1, min(AT_ONCE, BYTES_AT_ONCE // size))
        keys = cycle([b"key-%d" % number for number in range(DISTINCT)])
        values, sent = cycle([os.urandom(size) for _ in range(min(DISTINCT, at_once))]), []
        async with context.open_producer(name=None) as producer:
            await producer.send_and_wait(topic, b"first", b"")
            began = asyncio.get_running_loop().time()
            for first in range(0, records, at_once):
                count = min(at_once, records - first)
                sent.append(await producer.send_many(topic, [*islice(keys, count)], [*islice(values, count)]))
                if len(sent) > 1:
                    await sent.pop(0)
            for each in sent:
                await each
            return asyncio.get_running_loop().time() - began

    _report_rate(context, records, records * size, context.run(measure()))


@command("headgate perf consume trial", group=perf)
@topic_argument
def consume(context: CommandContext, topic: str) -> None:
    """Read all records of TOPIC with one consumer, which acknowledges nothing."""

    async def measure() -> tuple[int, int, float]:
        import asyncio  # noqa: PLC0415

        loop, count, size_bytes, last_at = asyncio.get_running_loop(), 0, 0, 0.0
        async with _opened(context, topic, start="earliest") as consumer:
            began = loop.time()
            async for first in consumer.until_caught_up():
                found = [first, *await consumer.get_many(AT_ONCE)]
                count, size_bytes = count + len(found), size_bytes + sum(len(each.value) for each in found)
                last_at = loop.time()
            return count, size_bytes, max(last_at - began, 1e-9)

    _report_rate(context, *context.run(measure()))


@command("headgate perf latency trial --records 1000", group=perf)
@topic_argument
@click.option("--records", type=click.IntRange(1), default=1000, show_default=True, help="How many to send.")
@_size
def latency(context: CommandContext, topic: str, records: int, size: int) -> None:
    """Send single records to TOPIC, and measure until each is stored, and until a consumer has it.

    The next one is sent once the one before has arrived.
    """

    async def measure() -> tuple[list[float], list[float]]:
        import asyncio  # noqa: PLC0415
        import secrets  # noqa: PLC0415

        loop, stored, delivered, key = asyncio.get_running_loop(), [], [], secrets.token_bytes(8)
        async with _opened(context, topic, start="latest") as consumer, context.open_producer(name=None) as producer:
            for number in range(-1, records):  # The first one is not counted: it finds the leader.
                value = number.to_bytes(8, signed=True) + bytes(size - 8)
                began = loop.time()
                await producer.send_and_wait(topic, key, value)
                stored_at = loop.time()
                while ((found := await anext(consumer)).key, found.value) != (key, value):
                    pass  # Another program may measure with this topic, too.
                stored.append((stored_at - began) * 1000)
                delivered.append((loop.time() - began) * 1000)
        return stored[1:], delivered[1:]

    stored, delivered = context.run(measure())
    found = {"stored": _percentiles(stored), "delivered": _percentiles(delivered)}
    if not context.printed_as_json(found):
        rows = [(name, *(f"{each:.2f}" for each in values.values())) for name, values in found.items()]
        print_table(("ms", "median", "99 %", "highest"), rows, numbers=("median", "99 %", "highest"))


@asynccontextmanager
async def _opened(context: CommandContext, topic: str, *, start: str) -> AsyncGenerator[Consumer]:
    """Open a consumer with a subscription that is deleted at the end."""
    import secrets  # noqa: PLC0415

    name = f"perf-{secrets.token_hex(4)}"
    try:
        async with context.open_consumer(topic=topic, subscription=name, type="CHECKPOINT", start=start) as consumer:
            yield consumer
    finally:
        async with context.open_admin() as admin:
            if name in (await admin.describe_topic(topic)).subscriptions:
                await admin.delete_subscription(topic, name, force=True)


def _report_rate(context: CommandContext, records: int, size_bytes: int, seconds: float) -> None:
    per_second, megabytes = records / seconds, size_bytes / 1e6 / seconds
    result = {"records": records, "seconds": seconds, "records_per_second": per_second, "mb_per_second": megabytes}
    if not context.printed_as_json(result):
        numbers = "records", "seconds", "records/s", "MB/s"
        print_table(numbers, [(records, f"{seconds:.2f}", f"{per_second:.0f}", f"{megabytes:.1f}")], numbers=numbers)


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    found = sorted(milliseconds)
    return {"p50_ms": found[len(found) // 2], "p99_ms": found[len(found) * 99 // 100], "max_ms": found[-1]}
