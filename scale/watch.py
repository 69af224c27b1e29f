"""Watches a cluster as clients do: who leads which shard, and how long a record waits to become durable.

One connection sees the leaders. One ordinary producer sends a record to a topic of each shard, again and again; while a
shard has no leader its record waits, and the longest wait is the gap that clients notice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final, Self

from headgate import Producer, ProducerSettings
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.model.hashing import shard_of
from headgate.process.background import cancel_and_wait
from headgate.settings.config import ClientConfig
from scale.cluster import ScaleCluster

POLL_SECONDS: Final = 0.05
LEADERS_SECONDS: Final = 300.0
"""Longest wait until all shards have a leader."""
SPREAD_SECONDS: Final = 600.0
"""Longest wait until the shards are spread: each daemon starts 16 transfers a minute at most."""
INTERVAL_SECONDS: Final = 0.25
"""Between two records for one shard."""
DELIVERY_SECONDS: Final = 120.0


class LeaderView:
    def __init__(self, client: Client, cluster: ScaleCluster) -> None:
        self._client = client
        self._cluster = cluster
        self._shards = range(cluster.shards)

    async def watch(self) -> None:
        for shard in self._shards:
            await self._client.watch_leader(shard)

    def leader(self, shard: int) -> str | None:
        known = self._client.leader(shard)
        return None if known is None else known.instance

    def led(self) -> Counter[str]:
        """Return daemon → number of shards that it leads, as far as leaders have answered."""
        return Counter(name for shard in self._shards if (name := self.leader(shard)) is not None)

    def epochs(self) -> dict[int, int]:
        """Return shard → number of the newest term of which a leader has answered, 0 if none has."""
        known = {shard: self._client.leader(shard) for shard in self._shards}
        return {shard: 0 if each is None else each.leader_epoch for shard, each in known.items()}

    async def until_led(self, later_than: Mapping[int, int] | None = None) -> None:
        """Wait until every shard has a leader that is alive, of a later term than ``later_than`` says."""

        def holds(led: Counter[str]) -> bool:
            epochs = self.epochs()
            later = all(epochs[shard] > epoch for shard, epoch in (later_than or {}).items())
            return later and led.total() == len(self._shards) and set(led) <= set(self._cluster.daemons)

        await self._until(holds, "every shard has a leader", LEADERS_SECONDS)

    async def until_spread(self) -> None:
        def holds(led: Counter[str]) -> bool:
            every = led.total() == len(self._shards) and len(led) == len(self._cluster.names)
            return every and max(led.values()) - min(led.values()) <= 1

        await self._until(holds, "the shards are spread over the daemons", SPREAD_SECONDS)

    async def _until(self, holds: Callable[[Counter[str]], bool], what: str, timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                while not holds(self.led()):  # noqa: ASYNC110 - no event says when
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise HeadgateError(
                f"{what}: not within {timeout_seconds:g} s; the shards per daemon are {dict(self.led())}"
            ) from None


class Probe:
    """Sends records to one topic of each shard while it is entered."""

    def __init__(self, config: ClientConfig | Client, topics: Mapping[int, str]) -> None:
        """``topics``: shard → a topic of it."""
        self._topics = topics
        self._producer = Producer(config, settings=ProducerSettings(delivery_timeout_seconds=DELIVERY_SECONDS))
        self._waits: dict[int, list[float]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self.failures: list[str] = []

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._producer)
        for topic in self._topics.values():
            await self._producer.open(topic)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send(shard, topic)) for shard, topic in self._topics.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(*self._tasks)
        await self._stack.aclose()

    def take(self) -> dict[int, list[float]]:
        taken, self._waits = self._waits, {}
        return taken

    async def _send(self, shard: int, topic: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._producer.send_and_wait(topic, b"probe", b"")
            except HeadgateError as error:
                self.failures.append(f"shard {shard}: {error}")
            waited = loop.time() - began
            self._waits.setdefault(shard, []).append(waited)
            await asyncio.sleep(max(0.0, INTERVAL_SECONDS - waited))


def topic_of_each_shard(topics: list[str], shards: int) -> dict[int, str]:
    """Return shard → the first of ``topics`` that belongs to it; shards without a topic are left out."""
    found: dict[int, str] = {}
    for topic in topics:
        found.setdefault(shard_of(topic, shards), topic)
    return found
