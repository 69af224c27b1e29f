"""Unread time of a topic when a consumer joins, against eager rebalancing.

Three consumers hold all segments of a topic on real servers while records are produced, and a fourth one joins. Ours:
revoke, confirm, grant, for the segments that must move. The other side uses the same servers with the eager protocol:
all consumers release everything, and register again once nothing is held.

Each side records when each segment lost its old holder and got its new one. The value is the unread time summed over
all segments, of the eager protocol over ours. The parts contain the time until all consumers hold a balanced share, and
the longest unread time of a single segment.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

import structlog

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part
from bench.harness.cluster import SHARD, BenchCluster
from headgate import Admin, Producer, SubscriptionType
from headgate.client.connection import Client
from headgate.client.decisions.held_segments import Changes, HeldSegments
from headgate.client.membership import Confirmations
from headgate.protocol.replies import AssignmentChanged, Push, Registered, Reply, Revocation
from headgate.protocol.requests import ConfirmRevoked, LeaveConsumer, RegisterConsumer

SUBSCRIPTION = "bench"
INITIAL_CONSUMERS = ("a", "b", "c")
JOINER = "d"
SETTLE_SECONDS = 120.0


class RebalanceTrace:
    """One rebalance, in seconds of one clock. Every segment has one holder at the start."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """It is set at every change of any reader."""
        self.began = self.ended = 0.0
        self.steps: dict[int, list[tuple[float, int]]] = defaultdict(list)
        """Segment → (time, +1 or -1) for each holder gained or lost in between."""

    def begin(self) -> None:
        """Forget earlier steps: the joiner begins."""
        self.began = asyncio.get_running_loop().time()
        self.steps.clear()

    def end(self) -> None:
        """Let later steps not count: all consumers hold a balanced share."""
        self.ended = asyncio.get_running_loop().time()

    def record(self, segments: Iterable[int], change: int) -> None:
        """Record that a consumer began (+1) or stopped (-1) to read ``segments``."""
        now = asyncio.get_running_loop().time()
        for segment in segments if not self.ended else ():
            self.steps[segment].append((now, change))
        self.changed.set()

    def unread_durations(self) -> list[float]:
        return [unread_seconds(steps) for steps in self.steps.values()]


def unread_seconds(steps: Iterable[tuple[float, int]]) -> float:
    """Return how long a segment had no holder between its first and its last one."""
    holders, unread, since = 1, 0.0, 0.0
    for at, change in sorted(steps):
        if holders == 0:
            unread += at - since
        holders, since = holders + change, at
    assert holders == 1, f"{holders} holders at the end"
    return unread


class Reader:
    """A consumer that reads nothing and confirms revocations immediately, as a `Consumer` does."""

    def __init__(self, client: Client, topic: str, name: str, seen: RebalanceTrace) -> None:
        self.incarnation = 1
        self._client = client
        self._push_key = {"topic": topic, "subscription": SUBSCRIPTION, "consumer": name}
        self._trace = seen
        self._assignment = HeldSegments()
        self._confirmations = Confirmations(self._confirm, self._on_confirmed, structlog.get_logger(__name__))
        self._confirming = asyncio.get_running_loop().create_task(self._confirmations.run())

    @property
    def held(self) -> list[int]:
        return [segment for segment, generation in self._assignment.held]

    async def register(self) -> None:
        topic, subscription, name = self._push_key.values()
        self._client.replies.expect_pushes((topic, subscription, name, self.incarnation), self._on_push)
        self._assignment.registration_requested()
        reply = await self._ask(RegisterConsumer, subscription_type=SubscriptionType.STREAM, start="earliest")
        assert isinstance(reply.body, Registered), reply
        self._apply_changes(self._assignment.registered(reply.leader_epoch, reply.body))

    def close(self) -> None:
        self._confirming.cancel()

    async def leave(self) -> None:
        """Release everything. The next registration is another incarnation; grants to this one are ignored."""
        left, self.incarnation = self.incarnation, self.incarnation + 1
        self._trace.record(self.held, -1)
        self._assignment = HeldSegments()
        await self._ask(LeaveConsumer, incarnation=left)

    def _on_push(self, push: Push) -> None:
        if isinstance(push, AssignmentChanged) and push.incarnation == self.incarnation:
            self._apply_changes(self._assignment.changed(push))

    def _apply_changes(self, changes: Changes) -> None:
        assert not changes.stop, "fenced although it confirmed everything"
        self._trace.record((revocation.segment for revocation in changes.finish), -1)
        for revocation in [*changes.finish, *changes.confirm]:
            self._confirmations.add(revocation)
        self._trace.record((grant.segment for grant in changes.start), 1)

    async def _confirm(self, released: list[tuple[int, int]]) -> None:
        await self._ask(ConfirmRevoked, released=released)

    def _on_confirmed(self, revocation: Revocation) -> None:
        self._assignment.confirmed(revocation)
        self._trace.changed.set()

    async def _ask(self, kind: type[RegisterConsumer | LeaveConsumer | ConfirmRevoked], **fields: Any) -> Reply:
        address: dict[str, Any] = {**self._push_key, "incarnation": self.incarnation, **fields}
        return await self._client.request(SHARD, kind(**address), SETTLE_SECONDS)


async def measure(effort: Effort) -> Measurement:
    """Return the unread time of the eager protocol over ours."""
    segments, rounds = effort.pick(1000, 200), effort.pick(5, 1)
    seen: dict[str, list[RebalanceTrace]] = {"ours": [], "stop": []}
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(BenchCluster())
        client = await cluster.watcher(stack)
        admin = await stack.enter_async_context(Admin(client))
        for number in range(rounds + 1):
            for side in ("ours", "stop"):
                topic = f"{side}-{number}"
                await admin.create_topic(topic, segments=segments)
                found = await _under_load(cluster, client, topic, segments, side)
                if number:
                    seen[side].append(found)
                effort.progress(f"{side}: {'warm-up' if not number else f'round {number} of {rounds}'}")
    return compared(seen, segments)


async def _under_load(cluster: BenchCluster, client: Client, topic: str, segments: int, side: str) -> RebalanceTrace:
    """Let one consumer join three others while records are produced."""
    seen = RebalanceTrace()
    readers: list[Reader] = []
    for name in INITIAL_CONSUMERS:
        readers.append(Reader(client, topic, name, seen))
        await readers[-1].register()
        await balanced(readers, seen, segments)
    enough = asyncio.Event()
    async with Producer(cluster.client_config()) as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(_produce(producer, topic, enough))
        seen.begin()
        joiner = Reader(client, topic, JOINER, seen)
        if side == "ours":
            await joiner.register()
        else:
            await asyncio.gather(*(reader.leave() for reader in readers))
            await asyncio.gather(*(reader.register() for reader in [*readers, joiner]))
        await balanced([*readers, joiner], seen, segments)
        seen.end()
        enough.set()
    for reader in [*readers, joiner]:
        await reader.leave()  # It sends no heartbeats, and would be evicted in the middle of a later round.
        reader.close()
    return seen


async def _produce(producer: Producer, topic: str, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        number += 1
        await (await producer.send(topic, b"key-%d" % number, bytes(100)))


async def balanced(readers: Collection[Reader], seen: RebalanceTrace, segments: int) -> None:
    async with asyncio.timeout(SETTLE_SECONDS):
        while not is_balanced([reader.held for reader in readers], segments):
            seen.changed.clear()
            await seen.changed.wait()


def is_balanced(held: Collection[Collection[int]], segments: int) -> bool:
    counts = [len(each) for each in held]
    return sum(counts) == segments == len(set().union(*held)) and max(counts) - min(counts) <= 1


def compared(seen: Mapping[str, Collection[RebalanceTrace]], segments: int) -> Measurement:
    parts: dict[str, Part] = {"segments": segments, "rounds": len(seen["ours"])}
    totals: dict[str, float] = {}
    for side, rounds in seen.items():
        totals[side] = median(sum(each.unread_durations()) for each in rounds)
        parts |= {
            f"{side}_balanced_after_ms": round(median(each.ended - each.began for each in rounds) * 1000, 1),
            f"{side}_given_up": round(median(len(each.steps) for each in rounds)),
            f"{side}_unread_longest_ms": round(median(max(each.unread_durations()) for each in rounds) * 1000, 1),
            f"{side}_unread_in_all_seconds": round(totals[side], 3),
        }
    return Measurement(totals["stop"] / totals["ours"], parts)


BENCHMARK = Benchmark(unit="times the unread time of the eager protocol", goal=7, better="higher", measure=measure)
