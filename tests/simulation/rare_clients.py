"""Clients that some simulated worlds have: producers of large records, a crowd of consumers, and some of the first version.

The first version reads no bucket ranges.

A crowd are so many consumers that every segment is divided into several slices. All that read one segment vanish at once, as
if they were on one machine. The other segments are then divided into small slices, and this one into none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.client.connection import Client
from headgate.model.headers import Headers
from headgate.model.layout import segment_of
from headgate.process.background import end_tasks
from headgate.protocol.replies import Reply
from headgate.protocol.requests import AnyRequestBody, RegisterConsumer
from tests.simulation.assignment_checker import uneven
from tests.simulation.cluster_plan import MAIN_TOPIC
from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from tests.simulation.world import ClusterSimulation

CROWDED = frozenset({"crowd", "first_version"})
"""Programs of a world with a crowd."""
SLICES = 4
"""Of each segment: four times as small as a whole one."""
MOST_CONSUMERS = 16
ASSIGNED_SECONDS, EVICTED_SECONDS = 60, 120
"""Longest pauses: until a crowd has segments, and until those that have vanished are evicted."""
LARGE_BYTES = 20_000
"""Size of large records: a burst of them is no idle load, even on the mean of a minute."""


class FirstVersionClient(Client):
    """A client of the first version, whose consumers read whole segments."""

    async def request(self, shard: int, body: AnyRequestBody, *args: Any, **options: Any) -> Reply:
        """Send a request; a registration does not say that the consumer reads bucket ranges."""
        if isinstance(body, RegisterConsumer):
            body = msgspec.structs.replace(body, supports_bucket_ranges=False)
        return await super().request(shard, body, *args, **options)


def client_kind(plan: Plan, consumer: str) -> type[Client]:
    """Return the version of a consumer: in some worlds, every second one is of the first."""
    is_first = "first_version" in plan.programs and plan.rng(f"version of {consumer}").random() < 1 / 2
    return FirstVersionClient if is_first else Client


def value_of(plan: Plan, counter: int) -> bytes:
    """Return the value of a record: its counter, in some worlds behind many spaces."""
    return (b"%d" % counter).rjust(LARGE_BYTES if "large_records" in plan.programs else 0)


def headers_of(key: bytes, counter: int) -> Headers:
    """Return the headers of a record: every third one has two of one name."""
    return () if counter % 3 else (("of", key), ("of", b"%d" % counter))


def balances_by_load(plan: Plan) -> bool:
    """Return whether the STREAM subscription is balanced by load: half of them are, but not that of a crowd."""
    return "large_records" in plan.programs or (plan.seed % 4 > 1 and not CROWDED & plan.kinds)


async def play_crowd(world: ClusterSimulation, subscription_name: str) -> None:
    """Let a crowd join a subscription, and vanish in part; no fault is active."""
    topic = world.main_state.topics[MAIN_TOPIC]
    subscription = topic.subscriptions.get(subscription_name)
    if subscription is None:
        return
    wanted = SLICES * len({segment_of(held) for held in subscription.holdings})
    if not len(subscription.consumers) < wanted <= MOST_CONSUMERS:
        return
    for _ in range(wanted - len(subscription.consumers)):
        world.start_consumer(subscription_name)
    for _ in range(ASSIGNED_SECONDS):
        await asyncio.sleep(1)
        if len(subscription.consumers) >= wanted and uneven(subscription, topic.layout) is None:
            break
    segment = max((segment_of(held) for held in subscription.holdings), default=None)
    gone = {holding.consumer for held, holding in subscription.holdings.items() if segment_of(held) == segment}
    gone &= world.consumers.keys()
    if gone >= {name for name in world.consumers if name.startswith(f"{subscription_name}-")}:
        return
    for name in sorted(gone):
        world.end_connections(name)
    await end_tasks(*(world.consumers.pop(name) for name in sorted(gone)))
    world.log("crowd", f"{len(gone)} consumers of segment {segment} vanish at once")
    for _ in range(EVICTED_SECONDS):
        if not gone & subscription.consumers.keys():
            break
        await asyncio.sleep(1)
