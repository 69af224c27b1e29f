"""One trial: what its stages share, and their order.

A trial watches its cluster as clients do. One connection sees the leaders. One ordinary producer sends a record to a
topic of each shard, again and again; while a shard has no leader its record waits, and the longest wait is the gap that
clients notice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final, Self

from bench.harness.cluster import percentile
from headgate import Admin, Producer, ProducerSettings
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.model.layout import shard_of
from headgate.process.background import cancel_and_wait, end_tasks
from headgate.settings.config import ClientConfig
from scale.cluster import ScaleCluster, Usage
from scale.report import Measured, Report
from scale.sizes import topic_name

POLL_SECONDS: Final = 0.05
LEADERS_SECONDS: Final = 300.0
"""Longest wait until all shards have a leader."""
SPREAD_SECONDS: Final = 600.0
"""Longest wait until the shards are spread: each daemon starts 16 transfers a minute at most."""
INTERVAL_SECONDS: Final = 0.25
"""Between two records for one shard."""
DELIVERY_SECONDS: Final = 120.0
ADMIN_SECONDS: Final = 120.0
Say = Callable[[str], None]


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


class Trial:
    def __init__(self, cluster: ScaleCluster, client: Client, report: Report, say: Say) -> None:
        self.cluster = cluster
        self.sizes = cluster.sizes
        self.admin = Admin(client, timeout_seconds=ADMIN_SECONDS)
        self.leaders = LeaderView(client, cluster)
        self.stage = ""
        self.readable_segments = 0
        """How many segments the consumers can hold."""
        self.spreading: asyncio.Task[float] | None = None
        """Waits until the shards are spread after the start; its result is when, in seconds."""
        self._report = report
        self._say = say

    async def close(self) -> None:
        """End what runs beside the stages."""
        if self.spreading is not None:
            await end_tasks(self.spreading)

    def add(self, name: str, value: float, unit: str = "") -> None:
        measured = Measured(self.stage, name, value, unit)
        self._report.measured.append(measured)
        self._say(f"{self.stage}: {name} {measured.shown} {unit}".rstrip())

    def add_distribution(self, name: str, values: Sequence[float], unit: str) -> None:
        for word, fraction in (("median", 0.5), ("p99", 0.99), ("max", 1.0)) if values else ():
            self.add(f"{name}, {word}", percentile(list(values), fraction), unit)

    def add_usage(self) -> None:
        for kind, each in self.cluster.usage().items():
            if each:
                megabytes = [usage.memory_bytes / 1e6 for usage in each]
                self.add(f"memory of {kind}, largest", max(megabytes), "MB")
                if len(megabytes) > 1:
                    self.add(f"memory of {kind}, sum", sum(megabytes), "MB")

    @contextmanager
    def timed_ms(self, name: str) -> Iterator[None]:
        """Add how long the block took."""
        began = time.perf_counter()
        yield
        self.add(name, 1000 * (time.perf_counter() - began), "ms")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add how long the block took, in real and in processor time per kind of process."""
        before, began = self.cluster.usage(), time.perf_counter()
        yield
        self.add(name, time.perf_counter() - began, "s")
        for kind, seconds in spent(before, self.cluster.usage()).items():
            self.add(f"{name}, processor time of {kind}", seconds, "s")

    def probe(self) -> Probe:
        """Return a producer that sends to every shard."""
        topics = topic_of_each_shard([topic_name(number) for number in range(self.sizes.topics)], self.sizes.shards)
        return Probe(self.cluster.client_config(), topics)


Stage = Callable[[Trial], Awaitable[None]]


async def play(cluster: ScaleCluster, report: Report, stages: Mapping[str, Stage], say: Say, minutes: float) -> None:
    """Play the stages in order, for ``minutes`` at most. What was measured is in ``report``, however it ends."""
    stage = "start"
    try:
        async with asyncio.timeout(60 * minutes), AsyncExitStack() as stack:
            await stack.enter_async_context(cluster)
            await cluster.start_servers()
            client = await stack.enter_async_context(Client.from_config(cluster.client_config(), "trial"))
            trial = Trial(cluster, client, report, say)
            stack.push_async_callback(trial.close)
            for stage, work in stages.items():
                trial.stage = stage
                began = time.perf_counter()
                await work(trial)
                say(f"{stage}: took {time.perf_counter() - began:.1f} s")
                cluster.require_running()
    except TimeoutError:
        report.unfinished = f"{stage}: the trial reached its limit of {minutes:g} minutes"
    except HeadgateError as error:
        report.unfinished = f"{stage}: {error}"


def spent(before: Mapping[str, Sequence[Usage]], after: Mapping[str, Sequence[Usage]]) -> dict[str, float]:
    """Return kind of process → processor seconds between two looks; none of a kind of which a process was replaced."""
    return {
        kind: sum(now.processor_seconds - then.processor_seconds for then, now in zip(before[kind], each, strict=True))
        for kind, each in after.items()
        if each and [usage.pid for usage in each] == [usage.pid for usage in before.get(kind, ())]
    }
