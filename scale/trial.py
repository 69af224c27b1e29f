"""One trial: what its stages share, and their order."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from bench.harness.cluster import percentile
from headgate import Admin
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.process.background import end_tasks
from scale.cluster import ScaleCluster, Usage
from scale.report import Measured, Report
from scale.sizes import topic_name
from scale.watch import LeaderView, Probe, topic_of_each_shard

ADMIN_SECONDS: Final = 120.0

Say = Callable[[str], None]


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
