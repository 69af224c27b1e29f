"""One trial: what its stages share, and their order."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from headgate import Admin
from headgate.client.connection import Client
from headgate.errors import HeadgateError
from headgate.process.background import cancel_and_wait
from scale.cluster import ScaleCluster, TrialOptions, Usage
from scale.report import Measured, Report, percentile, shown
from scale.sizes import Sizes, topic_name
from scale.watch import LeaderView, Probe, is_even, topic_of_each_shard

LEADERS_SECONDS: Final = 300.0
"""Longest wait until all shards have a leader."""
SPREAD_SECONDS: Final = 600.0
"""Longest wait until the shards are spread: each daemon starts 16 transfers a minute at most."""
ADMIN_SECONDS: Final = 120.0
PROGRESS_SECONDS: Final = 10.0
"""Between two lines about a long order."""

Say = Callable[[str], None]


class Trial:
    """What the stages of a trial use."""

    def __init__(self, cluster: ScaleCluster, client: Client, report: Report, say: Say) -> None:
        self.cluster = cluster
        self.sizes = cluster.sizes
        self.admin = Admin(client, timeout_seconds=ADMIN_SECONDS)
        self.leaders = LeaderView(client, cluster.sizes.shards)
        self.stage = ""
        self.readable_segments = 0
        """How many segments the consumers can hold."""
        self.spreading: asyncio.Task[float] | None = None
        """Waits until the shards are spread after the start; its result is when, in seconds."""
        self._report = report
        self._say = say

    async def close(self) -> None:
        """End what runs beside the stages."""
        if self.spreading is not None and not self.spreading.done():
            await cancel_and_wait(self.spreading)

    def add(self, name: str, value: float, unit: str = "") -> None:
        """Add a value to the report."""
        self._report.measured.append(Measured(self.stage, name, value, unit))
        self._say(f"{self.stage}: {name} {shown(value)} {unit}".rstrip())

    def add_distribution(self, name: str, values: Sequence[float], unit: str) -> None:
        """Add the median, the 99th percentile and the longest of ``values``."""
        for word, fraction in (("median", 0.5), ("p99", 0.99), ("max", 1.0)):
            self.add(f"{name}, {word}", percentile(values, fraction), unit)

    def add_usage(self) -> None:
        """Add how much memory the processes use."""
        for kind, each in self.cluster.usage().items():
            if each:
                megabytes = [usage.memory_bytes / 1e6 for usage in each]
                self.add(f"memory of {kind}, largest", max(megabytes), "MB")
                if len(megabytes) > 1:
                    self.add(f"memory of {kind}, sum", sum(megabytes), "MB")

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add how long the block took, in real and in processor time per kind of process."""
        before, began = self.cluster.usage(), time.perf_counter()
        yield
        self.add(name, time.perf_counter() - began, "s")
        for kind, seconds in spent(before, self.cluster.usage()).items():
            self.add(f"{name}, processor time of {kind}", seconds, "s")

    async def order(self, word: str, what: str) -> list[dict[str, Any]]:
        """Give all processes of clients a long order; say now and then how many of ``what`` are done."""

        async def say_progress() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                done, of = self.cluster.progress()
                if of:
                    self._say(f"{self.stage}: {done:,} of {of:,} {what}")

        saying = asyncio.get_running_loop().create_task(say_progress())
        try:
            return await self.cluster.order(word)
        finally:
            await cancel_and_wait(saying)

    async def until_led(self) -> None:
        """Wait until every shard has a leader that is alive."""
        await self.leaders.until(
            lambda led: sum(led.values()) == self.sizes.shards and set(led) <= set(self.cluster.daemons),
            "every shard has a leader",
            LEADERS_SECONDS,
        )

    async def until_led_again(self, epochs: Mapping[int, int]) -> None:
        """Wait until the leader of a later term than ``epochs`` says has answered for every shard."""
        await self.leaders.until_later(epochs, LEADERS_SECONDS)

    async def until_spread(self) -> None:
        """Wait until the daemons lead equally many shards."""
        await self.leaders.until(
            lambda led: is_even(led, self.sizes.shards, self.sizes.daemons),
            "the shards are spread over the daemons",
            SPREAD_SECONDS,
        )

    def probe(self) -> Probe:
        """Return a producer that sends to every shard."""
        topics = topic_of_each_shard([topic_name(number) for number in range(self.sizes.topics)], self.sizes.shards)
        return Probe(self.cluster.client_config(), topics)


Stage = Callable[[Trial], Awaitable[None]]


async def play(
    folder: Path, options: TrialOptions, report: Report, stages: Mapping[str, Stage], say: Say, minutes: float
) -> None:
    """Play the stages in order, for ``minutes`` at most. What was measured is in ``report``, however it ends."""
    sizes: Sizes = report.sizes
    stage = "start"
    try:
        async with asyncio.timeout(60 * minutes), AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(ScaleCluster(folder, sizes, options))
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
