"""Gap in commits when a leader fails, against a bare kazoo contender under the same session time-out.

Two daemons contend for one shard, and beside them two processes for a kazoo `Lock`, on the same ZooKeeper server and
with the same session time-out. In each round both leaders fail in the same way at the same moment: SIGKILL, SIGSTOP,
SIGTERM, or a network that loses everything between the leader and its servers. Our gap is the longest time without an
acknowledged record; a producer keeps sending. The contender's gap lasts from its last work, which a cut network does
not end, to the first work of the other process; it has no ledger to read and no clients to tell.

ZooKeeper ends each session at a moment of its own, up to a second apart, which belongs to neither side. So the moment
at which the node of each failed leader is deleted is observed, and our own share is our gap behind it, minus the
contender's gap behind its own. With SIGTERM both delete their nodes themselves, and the gaps are compared as they are.

The value is our gap over that of a contender whose node was deleted at the moment when ours was, for SIGKILL.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

import msgspec
from kazoo.client import KazooClient

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part, gc_disabled
from bench.harness.cluster import SESSION_SECONDS, SHARD, TOPIC, BenchCluster, leader_epoch
from bench.harness.tcp_proxy import Proxy
from controller.local.reserved_port import LOOPBACK
from controller.settings.load import Settings
from headgate import Producer
from headgate.client.connection import Client
from headgate.protocol.codec import LeaderAnnouncement

Failure = Literal["sigkill", "sigstop", "sigterm", "cut"]
FAILURES: Final[tuple[Failure, ...]] = ("sigkill", "sigstop", "sigterm", "cut")
DAEMONS: Final = ("d1", "d2")
CONTENDERS: Final = ("k1", "k2")
LOCK: Final = "/bench-failover"
SEND_INTERVAL_SECONDS: Final = 0.002
"""Between two records: the resolution of a gap, and as often as a contender writes."""
CHANGE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.01
SETTLE_SECONDS: Final = 6.0
"""Before each failure: until the standby, which has just started, has prepared to lead."""
FRESH_SECONDS: Final = 1.0
"""A contender whose last work is older does not hold the lock."""
AFTER_SECONDS: Final = 0.5
"""After the first record of the successor: until it is sure that no longer gap follows at once."""


@dataclass(frozen=True, slots=True)
class Gap:
    stopped_seconds: float
    """When the failed leader had done its last work: later than the failure if it was asked to end."""
    deleted_seconds: float
    """When the node of the failed leader was deleted."""
    resumed_seconds: float
    """When the successor had done its first work."""

    @property
    def seconds(self) -> float:
        """How long nothing was done."""
        return self.resumed_seconds - self.stopped_seconds

    @property
    def after_deletion_seconds(self) -> float:
        """How long the successor took once it could know of the failure."""
        return self.resumed_seconds - self.deleted_seconds


@dataclass(frozen=True, slots=True)
class Round:
    ours: Gap
    peer: Gap


class FailoverCluster(BenchCluster):
    """Two daemons and two contenders, each behind proxies that can lose everything."""

    def __init__(self) -> None:
        super().__init__(daemons=len(DAEMONS))
        self._links: dict[str, list[Proxy]] = {}
        self._open_links = AsyncExitStack()

    async def begin(self) -> None:
        for name in DAEMONS:
            self._links[name] = [await self._link(self.zookeeper.port), await self._link(self.broker.port)]
        for name in CONTENDERS:
            self._links[name] = [await self._link(self.zookeeper.port)]
        await super().begin()

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        await self._open_links.aclose()

    async def _link(self, port: int) -> Proxy:
        return await self._open_links.enter_async_context(Proxy(LOOPBACK, port))

    def settings(self, name: str) -> Settings:
        settings = super().settings(name)
        zookeeper, broker = self._links[name]
        return settings.replace(
            zookeeper=msgspec.structs.replace(settings.zookeeper, hosts=zookeeper.address),
            broker=msgspec.structs.replace(settings.broker, port=broker.port),
        )

    def beats(self, name: str) -> Path:
        return self.folder / f"{name}.beats"

    async def start_contender(self, name: str) -> None:
        hosts = self._links[name][0].address
        words = (hosts, LOCK, name, str(SESSION_SECONDS), str(self.beats(name)))
        await self.start_program(name, "-m", "bench.harness.kazoo_contender", *words)

    async def fail(self, failure: Failure, *names: str) -> None:
        """Let processes fail at the same moment."""
        for name in names:
            if failure == "cut":
                for link in self._links[name]:
                    await link.blackhole()
            else:
                self.programs[name].send_signal(signal.Signals[failure.upper()])

    async def replace(self, *names: str) -> None:
        for name in names:
            await self.kill(name)
            for link in self._links[name]:
                await link.heal()
            await (self.start_daemon(name) if name in DAEMONS else self.start_contender(name))


class _Commits:
    """Sends small records all the time and remembers when each was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self.times_ns: list[int] = []
        self._producer = producer
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Send until cancelled. Raises what a delivery raised."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._send())
                await asyncio.sleep(SEND_INTERVAL_SECONDS)

    async def _send(self) -> None:
        await (await self._producer.send(TOPIC, b"key", b"value"))
        self.times_ns.append(time.monotonic_ns())
        self._changed.set()

    async def another(self) -> None:
        """Wait until one more record is acknowledged."""
        self._changed.clear()
        await self._changed.wait()


class _Nodes:
    """Watches the nodes of leaders with a session of its own."""

    def __init__(self, client: KazooClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    async def first(self, folder: str, part: str) -> str:
        """Return the first node in the queue of ``folder``, once it contains ``part`` and a second one waits."""
        while True:
            names = sorted(await asyncio.to_thread(self._children, folder), key=lambda name: name[-10:])
            if len(names) > 1 and part in names[0]:
                return f"{folder}/{names[0]}"
            await asyncio.sleep(POLL_SECONDS)

    def _children(self, folder: str) -> list[str]:
        names: list[str] = self._client.get_children(folder) if self._client.exists(folder) else []
        return names

    async def deletion(self, node: str) -> asyncio.Future[int]:
        """Return a future of the time at which ``node`` is deleted."""
        deleted: asyncio.Future[int] = self._loop.create_future()

        def on_change(_: Any) -> None:
            at_ns = time.monotonic_ns()
            self._loop.call_soon_threadsafe(deleted.set_result, at_ns)

        await asyncio.to_thread(self._client.exists, node, on_change)
        return deleted


async def measure(effort: Effort) -> Measurement:
    """Return our gap over that of a contender, and our own share for each failure."""
    rounds: dict[Failure, list[Round]] = {failure: [] for failure in FAILURES}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(FailoverCluster())
        for name in CONTENDERS:
            await cluster.start_contender(name)
        watcher = await cluster.watcher(stack)
        nodes = await stack.enter_async_context(_watching(cluster))
        total = effort.pick(5, 1)
        for number in range(total):
            for failure, found in rounds.items():
                with gc_disabled():
                    async with asyncio.timeout(CHANGE_SECONDS):
                        found.append(await _round(cluster, watcher, nodes, failure))
            effort.progress(f"round {number + 1} of {total}")
    return compared(rounds)


@asynccontextmanager
async def _watching(cluster: FailoverCluster) -> AsyncIterator[_Nodes]:
    client = KazooClient(cluster.zookeeper.address, timeout=CHANGE_SECONDS)
    await asyncio.to_thread(client.start, CHANGE_SECONDS)
    try:
        yield _Nodes(client, asyncio.get_running_loop())
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)


async def _round(cluster: FailoverCluster, watcher: Client, nodes: _Nodes, failure: Failure) -> Round:
    """Let both leaders fail once, and replace them."""
    leader = watcher.leader(SHARD)
    assert leader is not None, "no leader is known"
    ours, epoch = leader.instance, leader_epoch(watcher)
    peer, standby = await _holder(cluster)
    our_node = await nodes.first(f"/headgate/{cluster.name}/shards/{SHARD:04d}", f"{ours}-")
    peer_node = await nodes.first(LOCK, "__lock__")
    async with Producer(cluster.client_config()) as producer:
        commits = _Commits(producer)
        sending = asyncio.create_task(commits.run())
        try:
            await asyncio.sleep(SETTLE_SECONDS)
            our_deletion, peer_deletion = await nodes.deletion(our_node), await nodes.deletion(peer_node)
            succeeded = asyncio.Event()

            def on_leader(known: LeaderAnnouncement) -> None:
                if known.leader_epoch > epoch:
                    succeeded.set()

            remove_handler = watcher.on_leader(SHARD, on_leader)
            failed_ns = time.monotonic_ns()
            await cluster.fail(failure, ours, peer)
            await succeeded.wait()
            remove_handler()
            await commits.another()
            await asyncio.sleep(AFTER_SECONDS)
            stopped_ns, resumed_ns = longest_gap(failed_ns, commits.times_ns)
            beat_ns = await _first_beat(cluster.beats(standby), failed_ns)
            last_ns = failed_ns if failure == "cut" else max(failed_ns, _newest_beat(cluster.beats(peer)))
            gaps = Round(
                Gap(*(_seconds(failed_ns, at_ns) for at_ns in (stopped_ns, await our_deletion, resumed_ns))),
                Gap(*(_seconds(failed_ns, at_ns) for at_ns in (last_ns, await peer_deletion, beat_ns))),
            )
        finally:
            sending.cancel()
            await asyncio.wait({sending})
    await cluster.replace(ours, peer)
    return gaps


async def _holder(cluster: FailoverCluster) -> tuple[str, str]:
    while True:
        ages = {name: _newest_beat(cluster.beats(name)) for name in CONTENDERS}
        newest = max(ages, key=lambda name: ages[name])
        if time.monotonic_ns() - ages[newest] < FRESH_SECONDS * 1e9:
            return newest, next(name for name in CONTENDERS if name != newest)
        await asyncio.sleep(POLL_SECONDS)


def _beats(path: Path) -> list[int]:
    return [int(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []


def _newest_beat(path: Path) -> int:
    if not path.exists() or not path.stat().st_size:
        return 0
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 100))
        return int(file.read().split(b"\n")[-2])


async def _first_beat(path: Path, since_ns: int) -> int:
    while True:
        if _newest_beat(path) > since_ns:
            return next(at_ns for at_ns in _beats(path) if at_ns > since_ns)
        await asyncio.sleep(POLL_SECONDS)


def _seconds(began_ns: int, ended_ns: int) -> float:
    return (ended_ns - began_ns) / 1e9


def longest_gap(since_ns: int, times_ns: Sequence[int]) -> tuple[int, int]:
    return max(
        pairwise([since_ns, *(at_ns for at_ns in times_ns if at_ns > since_ns)]), key=lambda gap: gap[1] - gap[0]
    )


def own_share_ms(failure: Failure, rounds: Sequence[Round]) -> float:
    """Return the median of what we add to the time of a bare contender, in milliseconds."""
    if failure == "sigterm":
        return 1000 * median(each.ours.seconds - each.peer.seconds for each in rounds)
    return 1000 * median(each.ours.after_deletion_seconds - each.peer.after_deletion_seconds for each in rounds)


def compared(rounds: Mapping[Failure, Sequence[Round]]) -> Measurement:
    parts: dict[str, Part] = {}
    for failure, found in rounds.items():
        parts |= {
            f"{failure}_gap_ms": round(1000 * median(each.ours.seconds for each in found), 1),
            f"{failure}_contender_gap_ms": round(1000 * median(each.peer.seconds for each in found), 1),
            f"{failure}_own_share_ms": round(own_share_ms(failure, found), 1),
            f"{failure}_longest_own_share_ms": round(max(own_share_ms(failure, [each]) for each in found), 1),
        }
    ratios = [
        each.ours.resumed_seconds / (each.ours.deleted_seconds + each.peer.after_deletion_seconds)
        for each in rounds["sigkill"]
    ]
    parts |= {"session_timeout_ms": round(1000 * SESSION_SECONDS), "rounds": len(ratios)}
    return Measurement(median(ratios), parts)


BENCHMARK = Benchmark(
    unit="times the gap of a bare contender",
    goal=1.1,
    better="lower",
    measure=measure,
    part_goals={
        "sigkill_own_share_ms": 150.0,
        "sigstop_own_share_ms": 150.0,
        "sigterm_own_share_ms": 60.0,
        "cut_own_share_ms": 150.0,
    },
)
