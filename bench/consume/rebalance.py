"""Unread time of a topic when a consumer joins, against eager rebalancing.

Three consumers hold all segments of a topic on real servers while records are produced, and a
fourth one joins. Ours: revoke, confirm, grant, for the segments that must move. The other side
uses the same servers with the eager protocol: all consumers release everything, and register again
once nothing is held.

Each side records when each segment lost its old holder and got its new one; a segment that was not
released was never unread. The value is the unread time summed over all segments, of the eager
protocol over ours. The parts contain the time until all consumers hold a balanced share, and the
longest unread time of a single segment.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.harness.benchmark import Benchmark, Effort, Measurement, Part
from bench.harness.cluster import SHARD, BenchCluster
from headgate import Admin, Producer, SubscriptionType
from headgate.client.connection import Client
from headgate.client.decisions.held_segments import Changes, HeldSegments
from headgate.protocol import messages as m

SUBSCRIPTION = "bench"
INITIAL_CONSUMERS = ("a", "b", "c")
JOINER = "d"
SETTLE_SECONDS = 120.0


@dataclass(slots=True)
class RebalanceTrace:
    """One rebalance, in seconds of one clock. Every segment has one holder at the start."""

    began: float = 0.0
    ended: float = 0.0
    """When all consumers held a balanced share."""
    steps: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Segment → (time, +1 or -1) for each holder gained or lost."""

    def begin(self, now: float) -> None:
        """Start the trace; forget earlier steps."""
        self.began = now
        self.steps.clear()

    def record_released(self, segments: Iterable[int], now: float) -> None:
        """Record that a consumer stopped reading ``segments``."""
        for segment in segments:
            self.steps.setdefault(segment, []).append((now, -1))

    def record_acquired(self, segments: Iterable[int], now: float) -> None:
        """Record that a consumer began to read ``segments``."""
        for segment in segments:
            self.steps.setdefault(segment, []).append((now, 1))

    def unread_durations(self) -> list[float]:
        """Return the unread seconds of each segment that changed its holder."""
        return [unread_seconds(steps) for steps in self.steps_before_end().values()]

    def steps_before_end(self) -> dict[int, list[tuple[float, int]]]:
        """Return the steps up to the end; later ones do not count."""
        found = {segment: [step for step in steps if step[0] <= self.ended] for segment, steps in self.steps.items()}
        return {segment: steps for segment, steps in found.items() if steps}


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
    """A consumer that reads nothing and confirms each revocation immediately."""

    def __init__(self, client: Client, topic: str, name: str, seen: RebalanceTrace) -> None:
        self.incarnation = 1
        self.changed = asyncio.Event()
        self._client = client
        self._push_key = {"topic": topic, "subscription": SUBSCRIPTION, "consumer": name}
        self._trace = seen
        self._assignment = HeldSegments()
        self._loop = asyncio.get_running_loop()
        self._confirming: set[asyncio.Task[m.Reply]] = set()
        client.replies.expect_pushes((topic, SUBSCRIPTION, name), self._on_push)

    @property
    def held(self) -> list[int]:
        """Segments that it holds."""
        return [segment for segment, generation in self._assignment.held]

    async def register(self) -> None:
        """Register, and hold the segments in the reply."""
        self._assignment.registration_requested()
        reply = await self._ask(m.RegisterConsumer, subscription_type=SubscriptionType.STREAM, start="earliest")
        assert isinstance(reply.body, m.Registered), reply
        self._apply_changes(self._assignment.registered(reply.leader_epoch, reply.body))

    async def leave(self) -> None:
        """Release everything. The next registration is another incarnation; grants to this one are ignored."""
        left, self.incarnation = self.incarnation, self.incarnation + 1
        self._trace.record_released(self.held, self._loop.time())
        self._assignment = HeldSegments()
        await self._ask(m.LeaveConsumer, incarnation=left)

    def _on_push(self, push: m.Push) -> None:
        if isinstance(push, m.AssignmentChanged) and push.incarnation == self.incarnation:
            self._apply_changes(self._assignment.changed(push))

    def _apply_changes(self, changes: Changes) -> None:
        now = self._loop.time()
        assert not changes.stop, "fenced although it confirmed everything"
        self._trace.record_released((revocation.segment for revocation in changes.finish), now)
        for revocation in [*changes.finish, *changes.confirm]:
            self._assignment.confirmed(revocation)
            task = self._loop.create_task(
                self._ask(m.ConfirmRevoked, released=[(revocation.segment, revocation.generation)])
            )
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
        self._trace.record_acquired((grant.segment for grant in changes.start), now)
        self.changed.set()

    async def _ask(self, kind: type[m.RegisterConsumer | m.LeaveConsumer | m.ConfirmRevoked], **fields: Any) -> m.Reply:
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
        await balanced(readers, segments)
    enough = asyncio.Event()
    async with Producer(cluster.client_config()) as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(_produce(producer, topic, enough))
        seen.begin(asyncio.get_running_loop().time())
        joiner = Reader(client, topic, JOINER, seen)
        if side == "ours":
            await joiner.register()
        else:
            await asyncio.gather(*(reader.leave() for reader in readers))
            await asyncio.gather(*(reader.register() for reader in [*readers, joiner]))
        await balanced([*readers, joiner], segments)
        seen.ended = asyncio.get_running_loop().time()
        enough.set()
    # Readers send no heartbeats: without leaving, they would be evicted in the middle of a later round.
    await asyncio.gather(*(reader.leave() for reader in [*readers, joiner]))
    return seen


async def _produce(producer: Producer, topic: str, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        number += 1
        await (await producer.send(topic, b"key-%d" % number, bytes(100)))


async def balanced(readers: Collection[Reader], segments: int) -> None:
    """Wait until the readers hold every segment once, and their counts differ by at most one."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while not is_balanced([reader.held for reader in readers], segments):
            for reader in readers:
                reader.changed.clear()
            waits = [asyncio.ensure_future(reader.changed.wait()) for reader in readers]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


def is_balanced(held: Collection[Collection[int]], segments: int) -> bool:
    """Return whether every segment is held once, and counts differ by at most one."""
    counts = [len(each) for each in held]
    if sum(counts) != segments or max(counts) - min(counts) > 1:
        return False
    return max(Counter(segment for each in held for segment in each).values()) == 1


def compared(seen: Mapping[str, Collection[RebalanceTrace]], segments: int) -> Measurement:
    """Return the measurement: medians over the rounds of each side."""
    parts: dict[str, Part] = {"segments": segments, "rounds": len(seen["ours"])}
    totals: dict[str, float] = {}
    for side, rounds in seen.items():
        totals[side] = median(sum(each.unread_durations()) for each in rounds)
        parts |= {
            f"{side}_balanced_after_ms": round(median(each.ended - each.began for each in rounds) * 1000, 1),
            f"{side}_given_up": round(median(len(each.steps_before_end()) for each in rounds)),
            f"{side}_unread_longest_ms": round(median(max(each.unread_durations()) for each in rounds) * 1000, 1),
            f"{side}_unread_in_all_seconds": round(totals[side], 3),
        }
    return Measurement(totals["stop"] / totals["ours"], parts)


BENCHMARK = Benchmark(unit="times the unread time of the eager protocol", goal=7, better="higher", measure=measure)
