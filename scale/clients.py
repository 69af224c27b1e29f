"""``python -m scale.clients CONFIG SCALE NUMBER``: one of `PROCESSES` processes of generated clients.

It obeys the trial (trials.ordered_process), and has the clients of its share of the shards. Consumers of one shard
share a connection, because the broker sends each new chunk of a shard to each connection with consumers of it:

* ``join``: enter this process's consumers; they stay.
* ``state``: what the consumers hold now.
* ``open``: open this process's producer identities.

A generated consumer does everything but read: it registers, holds segments, sends heartbeats and confirms revocations.
Ten thousand programs do not fit on one machine. Many of these share a few connections, and run the membership of
`headgate.Consumer` unchanged. Reading is left out: it costs the object store and the consumer's own machine, not the
daemons.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from headgate.client.connection import Client
from headgate.client.consumer import Consumer
from headgate.client.consuming.record_feed import RecordFeed
from headgate.client.consuming.record_queue import HeldSegment
from headgate.errors import HeadgateError
from headgate.model.identifiers import Offset, SegmentId
from headgate.model.layout import shard_of
from headgate.protocol.replies import Grant
from headgate.protocol.requests import OpenProducer
from headgate.settings.config import ClientConfig, load_client_config
from scale.sizes import SUBSCRIPTION, Sizes, scaled, share, topic_name, topic_of
from trials.ordered_process import obey

PROCESSES: Final = 4
CONNECTIONS: Final = 16
"""The connections of one process."""
OPENINGS: Final = 256
"""Producers of one process that are opened at the same time."""
JOINING: Final = 8
"""Consumers of one process that register at the same time. Each makes others confirm up to a hundred revocations, one
request each; with 64 more than ten thousand requests waited, longer than clients do."""
TIMEOUT_SECONDS: Final = 120.0
"""For one registration or opening: daemons that are restored answer late."""
MAX_FAILED: Final = 0.01
"""Part of a process's openings that may fail before its trial ends: a few show that leaders are overloaded."""
SHOWN: Final = 10_000
"""Times of openings that a process reports, of all that it has measured."""


class GeneratedConsumer(Consumer):
    registrations = 0
    registered_at_ns = 0
    """The time of the last registration, by the monotonic clock that all processes of a machine share."""

    @property
    def held_segments(self) -> int:
        """How many segments, or bucket ranges of them, it holds."""
        return len(self._feed.holdings)

    def _new_feed(self, positions: Mapping[SegmentId, Offset]) -> RecordFeed:
        self._idle_feed = _IdleFeed(self._topic, self._kind, positions, self._tasks.spawn)
        return self._idle_feed

    def _open_feed(self, shard: int, topic_id: int) -> None:
        """Note a registration; ``topic_id`` would name what to read."""
        self._log.debug("consumer.registered", shard=shard, topic_id=topic_id)
        self._idle_feed.registered = True
        self.registrations += 1
        self.registered_at_ns = time.monotonic_ns()


class _IdleFeed(RecordFeed):
    """Holds segments without reading them."""

    registered = False

    @property
    def is_open(self) -> bool:
        return self.registered

    def begin(self, grant: Grant, _after: asyncio.Task[None] | None = None, /) -> HeldSegment:
        start = Offset(grant.start_offset)
        holding = HeldSegment(grant, _IDLE, delivered=start, acknowledged=start)
        self.holdings[grant.segment, grant.generation] = holding
        return holding


class _IdleReader:
    async def run(self) -> None:
        raise AssertionError("an idle feed starts no reader")

    def has_read(self, chunk: int) -> bool:
        return chunk >= 0


_IDLE: Final = _IdleReader()


class GeneratedClients:
    def __init__(self, sizes: Sizes, number: int, clients: list[Client]) -> None:
        self._sizes = sizes
        self._shards = share(sizes.shards, PROCESSES, number)
        self._clients = clients
        self._consumers: list[GeneratedConsumer] = []

    async def join(self) -> list[float]:
        """Enter all consumers of this process; return how many milliseconds each took."""
        sizes, took_ms = self._sizes, list[float]()
        topics = [topic_name(topic_of(sizes, number)) for number in range(sizes.consumers)]
        wanted = ((number, topic, shard_of(topic, sizes.shards)) for number, topic in enumerate(topics))
        joining = iter([each for each in wanted if each[2] in self._shards])

        async def enter_some() -> None:
            for number, topic, shard in joining:
                consumer = GeneratedConsumer(
                    self._clients[(shard - self._shards.start) % CONNECTIONS],
                    topic=topic,
                    subscription=SUBSCRIPTION,
                    name=f"consumer-{number:05d}",
                    connect_timeout_seconds=TIMEOUT_SECONDS,
                )
                began = asyncio.get_running_loop().time()
                await consumer.__aenter__()
                took_ms.append(1000 * (asyncio.get_running_loop().time() - began))
                self._consumers.append(consumer)

        await _at_once(JOINING, enter_some)
        return took_ms

    async def state(self) -> dict[str, int]:
        """Return what the consumers hold, and when the last one registered."""
        return {
            "segments": sum(each.held_segments for each in self._consumers),
            "idle": sum(not each.held_segments for each in self._consumers),
            "registrations": sum(each.registrations for each in self._consumers),
            "registered_at_ns": max((each.registered_at_ns for each in self._consumers), default=0),
        }

    async def open(self) -> dict[str, Any]:
        """Open all producer identities of this process, shard by shard; return how long they took.

        Raises HeadgateError: more than `MAX_FAILED` of them failed.
        """
        wanted = [shard for shard in self._shards for _ in share(self._sizes.producers, self._sizes.shards, shard)]
        openings = enumerate(wanted)
        took_ms: list[float] = []
        failures: list[HeadgateError] = []

        async def open_some() -> None:
            for number, shard in openings:
                client = self._clients[number % CONNECTIONS]
                request = OpenProducer(token=client.new_token())
                began = asyncio.get_running_loop().time()
                try:
                    await client.request(shard, request, TIMEOUT_SECONDS)
                except HeadgateError as error:
                    failures.append(error)
                    if len(failures) > MAX_FAILED * len(wanted):
                        reason = (
                            f"{len(failures)} of {len(wanted)} openings failed, after {len(took_ms)} that did not; "
                        )
                        raise HeadgateError(f"{reason}the last one: {error}") from error
                else:
                    took_ms.append(1000 * (asyncio.get_running_loop().time() - began))

        await _at_once(OPENINGS, open_some)
        shown = took_ms[:: max(1, len(took_ms) // SHOWN)]
        return {"took_ms": shown, "opened": len(took_ms), "failed": len(failures)}


async def _at_once(count: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(work())


async def _serve(config: ClientConfig, sizes: Sizes, number: int) -> None:
    async with AsyncExitStack() as stack:
        names = [f"generated-{number}-{connection}" for connection in range(CONNECTIONS)]
        clients = [await stack.enter_async_context(Client.from_config(config, name)) for name in names]
        generated = GeneratedClients(sizes, number, clients)
        await obey({"join": generated.join, "state": generated.state, "open": generated.open})


if __name__ == "__main__":
    path, scale, process = sys.argv[1:]
    try:
        asyncio.run(_serve(load_client_config(Path(path)), scaled(float(scale)), int(process)))
    except* HeadgateError as errors:
        sys.stderr.write(f"scale.clients: {errors.exceptions[0]}\n")
        sys.exit(1)
