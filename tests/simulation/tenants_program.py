"""Users with small quotas who want more than they may have: some simulated worlds. `quota_rules` has what must hold.

Each makes and ends topics, segments, subscriptions, consumers and producers, one at a time, also those of the other. A
consumer leaves, is evicted, vanishes, or loses its subscription or its topic. Once the faults have ended, nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from headgate import Admin, Consumer, Producer
from headgate.client.producing.producer_settings import ProducerSettings
from headgate.errors import DeliveryFailedError, HeadgateError, RequestRejectedError
from shard.access.quotas import UNLIMITED, Limits
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.queue_program import until_done
from tests.simulation.quota_rules import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.simulation.plan import Plan
    from tests.simulation.world import ClusterSimulation

TENANTS: Final = "tenant-0", "tenant-1"
NAMES, SUBSCRIPTIONS, PROGRAMS = 4, 2, 5
"""Topics of a tenant, subscriptions of each topic, and names of consumers and of producers."""
SETTINGS: Final = ProducerSettings(linger_seconds=0, request_timeout_seconds=1, delivery_timeout_seconds=5)
GONE_SECONDS: Final = 60.0
"""After so long without heartbeats, every consumer is evicted."""


def tenant_limits(plan: Plan) -> dict[str, Limits]:
    rng = plan.rng("tenants' quotas")
    return {
        tenant: UNLIMITED.changed(
            {
                "topics": rng.randint(1, 3),
                "segments": rng.randint(2, 8),
                "subscriptions": rng.randint(1, 3),
                "consumers": rng.randint(1, 3),
                "producers": rng.randint(1, 4),
            }
        )
        for tenant in TENANTS
    }


class TenantsProgram:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._tenants = [_Tenant(world, name) for name in TENANTS if "tenants" in world.plan.programs]
        self._running: list[asyncio.Task[None]] = []

    async def start(self, rng: random.Random) -> None:
        """Start the tenants; each ends once it has nothing."""
        self._running = [self._world.spawn(each.live(random.Random(rng.getrandbits(32)))) for each in self._tenants]
        self._world.faults.rare.external_tasks += self._running

    @property
    def is_settled(self) -> bool:
        """Whether every tenant has ended what it had."""
        return all(each.done() for each in self._running)

    def check(self) -> None:
        """Raise BrokenPromiseError unless the tenants have nothing but producers."""
        for state in self._world.checker.states.values():
            for tenant in TENANTS:
                left = {quota: count for quota, count in counted(state, tenant).items() if count}
                if not self.is_settled or left.keys() - {"producers"}:
                    raise BrokenPromiseError(f"{tenant} has ended everything, and has {left}")


class _Tenant:
    def __init__(self, world: ClusterSimulation, name: str) -> None:
        self._world, self._name = world, name
        self._counter = 0
        """Of clients and of records."""
        self._consumers: dict[str, tuple[str, AsyncExitStack]] = {}
        """Name of an open consumer → its client, and how it ends."""

    async def live(self, rng: random.Random) -> None:
        world, name = self._world, self._name
        async with Admin(world.client(f"{name}-admin", user=name), timeout_seconds=60) as admin:
            while world.producing:
                await asyncio.sleep(rng.uniform(0, rng.choice([0.2, 3, 10])))
                await self._act(rng, admin)
            for consumer in list(self._consumers):
                await self._end(consumer)
            for number in range(NAMES):
                await self._until_gone(partial(admin.delete_topic, f"tenant-{number}", force=True))
            for number in range(PROGRAMS):
                await self._until_gone(partial(admin.delete_producer, f"loader-{number}"))
            # What was asked for last, and given up, may be made until its time is over.
            await asyncio.sleep(GONE_SECONDS)
            for number in range(NAMES):
                await self._until_gone(partial(admin.delete_topic, f"tenant-{number}", force=True))

    @staticmethod
    async def _until_gone(delete: Callable[[], Awaitable[None]]) -> None:
        with suppress(RequestRejectedError):  # There is none.
            await until_done(delete)

    async def _act(self, rng: random.Random, admin: Admin) -> None:
        number = rng.randrange(PROGRAMS)
        names = [f"tenant-{each}" for each in range(NAMES)]
        made = [name for name in names for state in self._world.checker.states.values() if name in state.topics]
        topic = rng.choice(made if made and rng.random() < 3 / 4 else names)
        subscription, consumer, asked = f"s{rng.randrange(SUBSCRIPTIONS)}", f"c{number}", rng.choice([1, 1, 2, 4])
        wanted: dict[str, Callable[[], Awaitable[object]]] = {
            f"create {topic} of {asked}": lambda: admin.create_topic(topic, asked),
            f"delete {topic}": lambda: admin.delete_topic(topic, force=True),
            f"split {topic}": lambda: self._divide(rng, admin, topic),
            f"create {subscription} of {topic}": lambda: admin.create_subscription(topic, subscription),
            f"delete {subscription} of {topic}": lambda: admin.delete_subscription(topic, subscription, force=True),
            f"join {subscription} of {topic} as {consumer}": lambda: self._join(topic, subscription, consumer),
            f"end {consumer}": lambda: self._end(consumer, cuts=rng.random() < 1 / 3),
            f"evict {consumer} of {subscription} of {topic}": lambda: admin.evict_consumer(
                topic, subscription, consumer
            ),
            f"send to {topic}": lambda: self._send(topic, None if rng.random() < 1 / 2 else f"loader-{number}"),
            f"delete producer {number}": lambda: admin.delete_producer(f"loader-{number}"),
        }
        what = rng.choices(list(wanted), [4, 2, 4, 4, 1, 6, 2, 1, 4, 1])[0]
        done = "done"
        with self._world.checker.quotas.asking() as seen:
            try:
                await wanted[what]()
            except HeadgateError as error:
                done = f"failed: {error}"
                refusal = error.__cause__ if isinstance(error, DeliveryFailedError) else error
                if isinstance(refusal, RequestRejectedError) and refusal.verdict == "quota_exceeded":
                    segments = {"create": asked, "split": 2}.get(what.partition(" ")[0], 1)
                    self._world.checker.quotas.check_refusal(self._name, str(refusal), segments, seen)
        self._world.log(self._name, what, done)

    async def _divide(self, rng: random.Random, admin: Admin, topic: str) -> None:
        segments = (await admin.describe_topic(topic)).segments
        await admin.split(topic, rng.choice([each.segment for each in segments if each.state == "active"]))

    async def _join(self, topic: str, subscription: str, name: str) -> None:
        await self._end(name)
        self._counter += 1
        client = self._world.client(f"{self._name}-{name}-{self._counter}", user=self._name)
        async with AsyncExitStack() as stack:
            consumer = Consumer(client, topic=topic, subscription=subscription, name=name, start="earliest")
            await stack.enter_async_context(consumer)
            self._consumers[name] = client.client_id, stack.pop_all()

    async def _end(self, name: str, *, cuts: bool = False) -> None:
        """Close a consumer that is open. ``cuts``: without a farewell, so that it is evicted."""
        client_id, stack = self._consumers.pop(name, ("", AsyncExitStack()))
        if cuts and client_id:
            self._world.broker.cut(client_id)
        with suppress(HeadgateError):
            await stack.aclose()

    async def _send(self, topic: str, name: str | None) -> None:
        self._counter += 1
        client = self._world.client(f"{self._name}-sender-{self._counter}", user=self._name)
        async with Producer(client, name=name, settings=SETTINGS) as producer:
            await producer.send_and_wait(topic, self._name.encode(), b"%d" % self._counter)
