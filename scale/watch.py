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

POLL_SECONDS: Final = 0.05
INTERVAL_SECONDS: Final = 0.25
"""Between two records for one shard."""
DELIVERY_SECONDS: Final = 120.0


class LeaderView:
    """Who leads each shard."""

    def __init__(self, client: Client, shards: int) -> None:
        self._client = client
        self._shards = shards

    async def watch(self) -> None:
        """Subscribe to all leaders."""
        for shard in range(self._shards):
            await self._client.watch_leader(shard)

    def led(self) -> Counter[str]:
        """Return daemon → number of shards that it leads, as far as leaders have answered."""
        known = (self._client.leader(shard) for shard in range(self._shards))
        return Counter(each.instance for each in known if each is not None)

    def leader(self, shard: int) -> str | None:
        """Return the daemon that leads a shard."""
        known = self._client.leader(shard)
        return None if known is None else known.instance

    def epochs(self) -> dict[int, int]:
        """Return shard → number of the newest term of which a leader has answered, 0 if none has."""
        known = {shard: self._client.leader(shard) for shard in range(self._shards)}
        return {shard: 0 if each is None else each.leader_epoch for shard, each in known.items()}

    async def until_later(self, epochs: Mapping[int, int], timeout_seconds: float) -> None:
        """Wait until a leader of a later term than ``epochs`` says has answered for every shard."""

        def later(_: Counter[str]) -> bool:
            return all(self.epochs()[shard] > epoch for shard, epoch in epochs.items())

        await self.until(later, "every shard has a leader of a later term", timeout_seconds)

    async def until(self, holds: Callable[[Counter[str]], bool], what: str, timeout_seconds: float) -> None:
        """Wait until ``holds`` of the shards per daemon. Raises HeadgateError, which names ``what``."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not holds(self.led()):  # noqa: ASYNC110 - no event says when
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise HeadgateError(
                f"{what}: not within {timeout_seconds:g} s; the shards per daemon are {dict(self.led())}"
            ) from None


def is_even(led: Mapping[str, int], shards: int, daemons: int) -> bool:
    """Return whether all ``shards`` are led, by ``daemons`` with counts that differ by at most one."""
    return sum(led.values()) == shards and len(led) == daemons and max(led.values()) - min(led.values()) <= 1


class Probe:
    """Sends records to one topic of each shard while it is entered."""

    def __init__(self, config: ClientConfig | Client, topics: Mapping[int, str]) -> None:
        """``topics``: shard → a topic of it."""
        self.topics = topics
        self._producer = Producer(config, settings=ProducerSettings(delivery_timeout_seconds=DELIVERY_SECONDS))
        self._waits: dict[int, list[float]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self.failures: list[str] = []

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._producer)
        for topic in self.topics.values():
            await self._producer.open(topic)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send(shard, topic)) for shard, topic in self.topics.items()]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(*self._tasks)
        await self._stack.aclose()

    def take(self) -> dict[int, list[float]]:
        """Return shard → seconds that its records waited since the last call."""
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
