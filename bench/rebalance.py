"""How long a topic is unread when a consumer joins, against stopping everybody, and against kazoo's SetPartitioner.

Three consumers hold all segments of a topic on real servers, records are produced all the while, and a fourth one
joins. Ours: revoke, confirm, grant, for what has to move and nothing else. The second side runs on the same servers by
the protocol that eager rebalancing has: everybody gives up everything, and only when nobody holds anything does
everybody register again. The third one is kazoo's SetPartitioner on the same ZooKeeper, with as many items, and with a
quiet time of one second in place of its default of thirty, so that its work is measured and not its patience.

Each side tells when each segment was last held before and first held after; a segment that nobody gave up was never
unread. The value is the unread time summed over all segments, of stopping everybody over ours: what a subscription
loses of its reading. The parts tell how long it took until everybody held a balanced share, and the longest time that
any one segment was unread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kazoo.client import KazooClient
from kazoo.recipe.partitioner import PartitionState, SetPartitioner

from bench._cluster import SHARD, BenchCluster
from bench._harness import Benchmark, Effort, Measurement, Part
from headgate import Admin, Producer, SubscriptionType
from headgate.client.connection import Client
from headgate.client.decisions.held_segments import Changes, HeldSegments
from headgate.errors import HeadgateError
from headgate.protocol import messages as m

SUBSCRIPTION = "bench"
INITIAL_CONSUMERS = ("a", "b", "c")
JOINER = "d"
SETTLE_SECONDS = 120.0
QUIET_SECONDS = 1.0
POLL_INTERVAL_SECONDS = 0.1


@dataclass(slots=True)
class RebalanceTrace:
    """What one rebalance looked like; all in seconds of one clock. Every segment has one holder when it begins."""

    began: float = 0.0
    ended: float = 0.0
    """When everybody held a balanced share."""
    steps: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Segment → when it got or lost a holder: (when, +1 or -1)."""

    def begin(self, now: float) -> None:
        """Forget what came before."""
        self.began = now
        self.steps.clear()

    def record_released(self, segments: Iterable[int], now: float) -> None:
        """Note that somebody stopped reading ``segments``."""
        for segment in segments:
            self.steps.setdefault(segment, []).append((now, -1))

    def record_acquired(self, segments: Iterable[int], now: float) -> None:
        """Note that somebody began to read ``segments``."""
        for segment in segments:
            self.steps.setdefault(segment, []).append((now, 1))

    def unread_durations(self) -> list[float]:
        """Return for how long each segment that changed hands was read by nobody."""
        return [unread_seconds(steps) for steps in self.steps_before_end().values()]

    def steps_before_end(self) -> dict[int, list[tuple[float, int]]]:
        """Return the steps up to the end; what holders do after that is no part of it."""
        found = {segment: [step for step in steps if step[0] <= self.ended] for segment, steps in self.steps.items()}
        return {segment: steps for segment, steps in found.items() if steps}


def unread_seconds(steps: Iterable[tuple[float, int]]) -> float:
    """Return how long nobody held a segment that one consumer held at first, and one holds at last."""
    holders, unread, since = 1, 0.0, 0.0
    for at, change in sorted(steps):
        if holders == 0:
            unread += at - since
        holders, since = holders + change, at
    assert holders == 1, f"{holders} hold it at last"
    return unread


class Reader:
    """A consumer that reads nothing and confirms each revocation at once."""

    def __init__(self, client: Client, topic: str, name: str, seen: RebalanceTrace) -> None:
        self.incarnation = 1
        self.changed = asyncio.Event()
        self._client = client
        self._push_key = {"topic": topic, "subscription": SUBSCRIPTION, "consumer": name}
        self._trace = seen
        self._assignment = HeldSegments()
        self._loop = asyncio.get_running_loop()
        self._confirming: set[asyncio.Task[m.Reply]] = set()
        client.on_push((topic, SUBSCRIPTION, name), self._on_push)

    @property
    def held(self) -> list[int]:
        """Segments that it reads now."""
        return [segment for segment, generation in self._assignment.held]

    async def register(self) -> None:
        """Join, and hold what the answer lists."""
        self._assignment.registration_requested()
        reply = await self._ask(m.RegisterConsumer, subscription_type=SubscriptionType.STREAM, start="earliest")
        assert isinstance(reply.body, m.Registered), reply
        self._apply_changes(self._assignment.registered(reply.leader_epoch, reply.body))

    async def leave(self) -> None:
        """Give up everything at once; what comes next is another incarnation, and grants to this one are ignored."""
        left, self.incarnation = self.incarnation, self.incarnation + 1
        self._trace.record_released(self.held, self._loop.time())
        self._assignment = HeldSegments()
        await self._ask(m.LeaveConsumer, incarnation=left)

    def _on_push(self, push: m.Push) -> None:
        if isinstance(push, m.AssignmentChanged) and push.incarnation == self.incarnation:
            self._apply_changes(self._assignment.changed(push))

    def _apply_changes(self, changes: Changes) -> None:
        now = self._loop.time()
        assert not changes.stop, "fenced while it answers everything"
        self._trace.record_released((revocation.segment for revocation in changes.finish), now)
        for revocation in [*changes.finish, *changes.confirm]:
            self._assignment.confirmed(revocation)
            task = self._loop.create_task(
                self._ask(m.ConfirmRevoked, segment=revocation.segment, generation=revocation.generation)
            )
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
        self._trace.record_acquired((grant.segment for grant in changes.start), now)
        self.changed.set()

    async def _ask(self, kind: type[m.RegisterConsumer | m.LeaveConsumer | m.ConfirmRevoked], **fields: Any) -> m.Reply:
        def make() -> m.AnyRequestBody:
            address: dict[str, Any] = {**self._push_key, "incarnation": self.incarnation, **fields}
            return kind(**address)

        return await self._client.request(SHARD, make, SETTLE_SECONDS)


def measure(effort: Effort) -> Measurement:
    """Return the unread time of stopping everybody over ours."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    segments, rounds = effort.pick(1000, 200), effort.pick(5, 1)
    seen: dict[str, list[RebalanceTrace]] = {"ours": [], "stop": [], "kazoo": []}
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
        # It takes a minute each time.
        kazoo_rounds = effort.pick(2, 1)
        for number in range(kazoo_rounds):
            seen["kazoo"].append(
                await asyncio.to_thread(run_kazoo_rebalance, cluster.zookeeper.address, f"/p{number}", segments)
            )
            effort.progress(f"kazoo: round {number + 1} of {kazoo_rounds}")
    return compared(seen, segments)


async def _under_load(cluster: BenchCluster, client: Client, topic: str, segments: int, side: str) -> RebalanceTrace:
    """Let one consumer join three while records are produced."""
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
    # Nobody is there to say that they live: gone now, or evicted in the middle of a later round.
    await asyncio.gather(*(reader.leave() for reader in [*readers, joiner]))
    return seen


async def _produce(producer: Producer, topic: str, enough: asyncio.Event) -> None:
    number = 0
    while not enough.is_set():
        number += 1
        await (await producer.send(topic, b"key-%d" % number, bytes(100)))


async def balanced(readers: Collection[Reader], segments: int) -> None:
    """Return once the readers hold all segments, each one once, and their shares differ by one at most."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while not is_balanced([reader.held for reader in readers], segments):
            for reader in readers:
                reader.changed.clear()
            waits = [asyncio.ensure_future(reader.changed.wait()) for reader in readers]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()


def is_balanced(held: Collection[Collection[int]], segments: int) -> bool:
    """Tell whether every segment is held once, and no share is more than one above another."""
    counts = [len(each) for each in held]
    if sum(counts) != segments or max(counts) - min(counts) > 1:
        return False
    return max(Counter(segment for each in held for segment in each).values()) == 1


class _PartitionerMember:
    """One of kazoo's partitioners, driven as its documentation says, by a thread of its own."""

    def __init__(self, hosts: str, path: str, items: int, name: str, seen: RebalanceTrace) -> None:
        self._client = KazooClient(hosts=hosts)
        self._client.start()
        self._partitioner = SetPartitioner(
            self._client, path, tuple(range(items)), identifier=name, time_boundary=QUIET_SECONDS
        )
        self._trace = seen
        self._stopped = False
        self.held: list[int] = []
        self.thread = threading.Thread(target=self._run, name=f"party-{name}")
        self.thread.start()

    def stop(self) -> None:
        """Look no more; keep what is held."""
        self._stopped = True
        self.thread.join()

    def close(self) -> None:
        """Leave."""
        self._partitioner.finish()
        self._client.stop()
        self._client.close()

    def _run(self) -> None:
        while not self._stopped:
            state = self._partitioner.state
            if state == PartitionState.ALLOCATING:
                self._partitioner.wait_for_acquire(timeout=POLL_INTERVAL_SECONDS)
            elif state == PartitionState.RELEASE:
                # In this order, so that nobody takes it for balanced after that was noted.
                given, self.held = self.held, []
                self._trace.record_released(given, time.monotonic())
                self._partitioner.release_set()
            elif state == PartitionState.ACQUIRED:
                if not self.held:
                    taken = list(self._partitioner)
                    self._trace.record_acquired(taken, time.monotonic())
                    self.held = taken
                self._partitioner.state_change_event.wait(POLL_INTERVAL_SECONDS)
            else:
                raise HeadgateError(f"kazoo's partitioner is in state {state}")


def run_kazoo_rebalance(hosts: str, path: str, items: int) -> RebalanceTrace:
    """Let one of kazoo's partitioners join three; blocks until all have acquired their share."""
    seen = RebalanceTrace()
    members = [_PartitionerMember(hosts, path, items, name, seen) for name in INITIAL_CONSUMERS]
    try:
        _until_balanced(members, items)
        seen.begin(time.monotonic())
        members.append(_PartitionerMember(hosts, path, items, JOINER, seen))
        _until_balanced(members, items)
        seen.ended = time.monotonic()
    finally:
        # First all of them look no more: that one leaves is no part of what was measured.
        for party in members:
            party.stop()
        for party in members:
            party.close()
    return seen


def _until_balanced(members: Collection[_PartitionerMember], items: int) -> None:
    end = time.monotonic() + SETTLE_SECONDS
    while not is_balanced([party.held for party in members], items):
        if time.monotonic() > end or not all(party.thread.is_alive() for party in members):
            raise HeadgateError(f"kazoo's partitioners did not come to a balance in {SETTLE_SECONDS:g} s")
        time.sleep(POLL_INTERVAL_SECONDS / 10)


def compared(seen: Mapping[str, Collection[RebalanceTrace]], segments: int) -> Measurement:
    """Return the measured value: medians over the rounds of each side."""
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
    parts["kazoo_over_ours"] = round(totals["kazoo"] / totals["ours"], 2)
    return Measurement(totals["stop"] / totals["ours"], parts)


BENCHMARK = Benchmark(
    unit="times the unread time, when everybody stops",
    goal=7,
    better="higher",
    measure=measure,
    part_goals={"kazoo_over_ours": 250},
)
