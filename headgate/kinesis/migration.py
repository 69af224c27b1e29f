"""Gives a subscription the positions of a KCL application's lease table.

A consumer takes each shard as headgate grants it, parents first, stores its checkpoint or finishes it, and reads
nothing. So every rule of external topics holds, and a run that was interrupted can be repeated.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from headgate.client.admin import Admin
from headgate.client.connection import Client
from headgate.client.external_consumer import ExternalConsumer, GrantedSegment
from headgate.errors import HeadgateError
from headgate.kinesis.kcl_leases import FINISHED, positions, read_leases
from headgate.kinesis.position import Position, iterator_arguments
from headgate.kinesis.stream import KinesisStream, new_client
from headgate.settings.config import ClientConfig
from headgate.views.subscriptions import SubscriptionInfo


class MigratedShard(msgspec.Struct, frozen=True):
    shard: str
    kcl: str | None
    """``SHARD_END``, or the checkpoint; None: the lease says that no record was handled, or there is none."""
    headgate: str | None
    """What the subscription has, in the same terms."""


async def read_tables(application: str, client: Any = None) -> list[dict[str, Any]]:
    """Return the rows of the lease table, and those of KCL 3 that name the stream, if there are any."""
    items = await scan(application, client)
    with suppress(HeadgateError):  # KCL 3.5 has them in the lease table, and KCL 2 has none.
        items += await scan(f"{application}-CoordinatorState", client)
    return items


async def scan(table: str, client: Any = None) -> list[dict[str, Any]]:
    source = client or new_client("dynamodb")

    def pages() -> list[dict[str, Any]]:
        return [item for page in source.get_paginator("scan").paginate(TableName=table) for item in page["Items"]]

    try:
        return await asyncio.to_thread(pages)
    except Exception as error:
        raise HeadgateError(f"table {table} cannot be read: {error}") from error


def _positions(described: SubscriptionInfo) -> dict[str | None, str | None]:
    return {
        each.label: FINISHED if each.acknowledged_offset == each.next_offset > 0 else each.checkpoint
        for each in described.segments
    }


async def migrate(
    config: ClientConfig | Client,
    stream: KinesisStream,
    items: list[dict[str, Any]],
    *,
    topic: str,
    subscription: str,
    dry_run: bool = False,
    trusted: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> list[MigratedShard]:
    """Import the stream's shards, and move the subscription; return what the table and headgate say of each shard.

    Shards that have expired are left out. Raises HeadgateError: a lease has no exact position, the subscription has
    other positions already, or nothing shows that ``items`` are of the stream, unless they are ``trusted``.
    """
    layout = await stream.shards()
    listed = [each.segment for each in layout.segments]
    created = layout.source.split()[-1].partition(".")[0]  # KCL has whole seconds.
    leases = positions(read_leases(items, stream.name, created, stream.id), layout, trusted=trusted)
    for shard, checkpoint in leases.items():
        if checkpoint != FINISHED:  # Kinesis refuses a sequence number of another stream.
            await stream.iterator(shard, iterator_arguments(Position.read(checkpoint), None))
    if dry_run:
        return [MigratedShard(shard, leases.get(shard), None) for shard in listed]
    async with Admin(config) as admin:
        await admin.import_topic(topic, layout)
        async with ExternalConsumer(config, topic=topic, subscription=subscription) as consumer:
            has = _positions(await admin.describe_subscription(topic, subscription))
            waiting = {shard for shard, wanted in leases.items() if has.get(shard) != wanted}

            async def take(segment: GrantedSegment) -> None:
                wanted = leases.get(segment.label)
                if segment.checkpoint not in (None, wanted):
                    raise HeadgateError(
                        f"subscription {subscription} has read {segment.label} to {segment.checkpoint}: use a new one"
                    )
                if wanted == FINISHED:
                    await segment.finish()
                elif wanted is not None:
                    await segment.acknowledge(checkpoint=wanted)
                waiting.discard(segment.label)
                report(f"{len(leases) - len(waiting)} of {len(leases)} leases")
                if not waiting:
                    consumer.stop()
                if wanted != FINISHED:
                    await asyncio.Event().wait()  # It is held until the end of the run.

            if waiting:
                await consumer.run(take)
        has = _positions(await admin.describe_subscription(topic, subscription))
    return [MigratedShard(shard, leases.get(shard), has.get(shard)) for shard in listed]
