"""Processor time and memory of the coordinators of a thousand subscriptions.

1 000 subscriptions, each on its own topic with 16 segments and two consumers, are led in one
process by real coordinators over real shard state, without servers. A leader that writes checks all
deadlines four times a second, so ten seconds are forty ticks of every coordinator. One side is ten seconds
without events; the other is ten seconds in which every consumer also sends one heartbeat with what
it holds. The value is the second over the first. The parts show the share of a core of each side.

Memory is everything that state and coordinators allocate (tracemalloc), over the same facts in the
smallest form that Python offers: a tuple for each consumer, holding, position and segment, in
dicts. It shows the price of fast decisions.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.harness.benchmark import Benchmark, Effort, Measurement, run_alternating
from controller.decisions.tick_pace import TICK_INTERVAL_SECONDS
from controller.state.shard_state import ShardState
from coordinator.ports import CoordinatorSettings
from coordinator.subscription_coordinator import SubscriptionCoordinator
from headgate.model import entries as e
from headgate.protocol import messages as m

SUBSCRIPTIONS, QUICK_SUBSCRIPTIONS = 1000, 100
SEGMENTS, CONSUMERS = 16, ("ada", "bob")
PERIOD_SECONDS = 10.0
RECORDS = 1000
SETTINGS = CoordinatorSettings(
    grace_seconds=60,
    revoke_timeout_seconds=30,
    heartbeat_interval_seconds=3600,  # The clock is real, and no consumer may time out during the measurement.
    poll_min_seconds=2,
    poll_max_seconds=900,
    poll_check_timeout_seconds=70,
)


class _Shard:
    """The leader's part: applies proposed entries at once, and sends nothing."""

    def __init__(self, subscriptions: int) -> None:
        self.state = ShardState(0)
        self.coordinators: list[SubscriptionCoordinator] = []
        for _ in range(subscriptions):
            self._lead()

    @property
    def term_id(self) -> int:
        return 0

    @property
    def durable(self) -> int:
        """See `coordinator.ports.LedgerPort`."""
        return self.state.chunk

    def propose(self, *entries: e.AnyEntry) -> None:
        """See `coordinator.ports.LedgerPort`."""
        self.state.begin_chunk(self.state.chunk + 1, 0)
        for entry in entries:
            self.state.apply(entry)

    def push(self, client_id: str, message: m.Push, /) -> None:
        """See `coordinator.ports.PushMessage`; the messages are dropped."""

    def do_later(self, _: int, work: Callable[[], None], /) -> None:
        """See `coordinator.ports.DoLater`."""
        asyncio.get_running_loop().call_soon(work)

    def _lead(self) -> None:
        topic_id = self.state.next_id
        name = f"topic-{topic_id}"
        self.propose(e.TopicCreated(topic_id=topic_id, topic=name, segments=SEGMENTS, token=name))
        self.propose(
            e.SubscriptionCreated(
                topic_id=topic_id,
                subscription_id=topic_id + 1,
                subscription="bench",
                subscription_type=e.SubscriptionType.STREAM,
                order="strict",
                positions=dict.fromkeys(range(SEGMENTS), RECORDS),
            )
        )
        topic = self.state.topics[name]
        coordinator = SubscriptionCoordinator(
            subscription=topic.subscriptions["bench"],
            topic=topic,
            ledger=self,
            push=self.push,
            drain_check=None,
            leader_epoch=1,
            settings=SETTINGS,
            later=self.do_later,
            now_ms=lambda: 0,
            rng=random.Random(topic_id),
        )
        self.coordinators.append(coordinator)
        for consumer in CONSUMERS:
            coordinator.register(
                m.RegisterConsumer(
                    **_consumer_key(name, consumer), subscription_type=e.SubscriptionType.STREAM, start="earliest"
                ),
                _client_id(name, consumer),
            )
        for segment, holding in list(topic.subscriptions["bench"].holdings.items()):
            if holding.revoked_at_ms is not None:
                assert isinstance(segment, int), "no segment is shared"
                coordinator.confirm_revoked(
                    m.ConfirmRevoked(**_consumer_key(name, holding.consumer), released=[(segment, holding.generation)]),
                    _client_id(name, holding.consumer),
                )

    def idle(self) -> None:
        """Run the ticks of ten seconds without events."""
        for _ in range(round(PERIOD_SECONDS / TICK_INTERVAL_SECONDS)):
            for coordinator in self.coordinators:
                coordinator.tick()

    def heartbeats(self) -> Callable[[], None]:
        """Return a function that runs ten seconds with one heartbeat of every consumer."""
        heartbeats: list[tuple[SubscriptionCoordinator, m.Heartbeat, str]] = []
        for coordinator, topic in zip(self.coordinators, self.state.topics.values(), strict=True):
            held: dict[str, list[tuple[int, int]]] = {name: [] for name in CONSUMERS}
            for segment, holding in topic.subscriptions["bench"].holdings.items():
                assert isinstance(segment, int), "no segment is shared"
                held[holding.consumer].append((segment, holding.generation))
            heartbeats += [
                (
                    coordinator,
                    m.Heartbeat(**_consumer_key(topic.name, name), held=held[name]),
                    _client_id(topic.name, name),
                )
                for name in CONSUMERS
            ]

        def pass_time() -> None:
            self.idle()
            for coordinator, heartbeat, client_id in heartbeats:
                assert isinstance(coordinator.heartbeat(heartbeat, client_id), m.HeartbeatReply), (
                    "a heartbeat was rejected"
                )

        return pass_time

    async def close(self) -> None:
        """Stop all coordinators."""
        for coordinator in self.coordinators:
            await coordinator.close()


def _consumer_key(topic: str, consumer: str) -> dict[str, Any]:
    return {"topic": topic, "subscription": "bench", "consumer": consumer, "incarnation": 1}


def _client_id(topic: str, consumer: str) -> str:
    return f"{topic}-{consumer}"


def minimal_facts(subscriptions: int) -> list[dict[str, Any]]:
    """Return the facts of a number of subscriptions in tuples and dicts."""
    return [
        {
            "name": f"topic-{number}",
            "subscription": ("bench", "STREAM", "strict"),
            "consumers": {name: (1, f"topic-{number}-{name}", 100 + number) for name in CONSUMERS},
            "segments": {segment: (segment * 4096, segment * 4096 + 4095, True) for segment in range(SEGMENTS)},
            "positions": dict.fromkeys(range(SEGMENTS), RECORDS + number),
            "holdings": {segment: (CONSUMERS[segment % 2], 1000 + segment) for segment in range(SEGMENTS)},
        }
        for number in range(subscriptions)
    ]


def allocated_bytes(make: Callable[[], object]) -> int:
    """Return the bytes allocated by the value that ``make`` returns."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = make()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    del kept
    return grown


def measure(effort: Effort) -> Measurement:
    """Return the time with heartbeats over the time without events."""
    return asyncio.run(_measure(effort))


async def _measure(effort: Effort) -> Measurement:
    count = effort.pick(SUBSCRIPTIONS, QUICK_SUBSCRIPTIONS)
    shards: list[_Shard] = []
    effort.progress(f"{count} subscriptions of {SEGMENTS} segments")
    ours = allocated_bytes(lambda: shards.append(_Shard(count)))
    least = allocated_bytes(lambda: minimal_facts(count))
    (shard,) = shards
    try:
        sides = {"heartbeats": shard.heartbeats(), "idle": shard.idle}
        rounds = run_alternating(sides, effort.pick(15, 5), effort.progress)
    finally:
        await shard.close()
    measured = rounds.median_ratio("heartbeats", "idle")
    a_thousand = 1000 / count / PERIOD_SECONDS * 100
    return Measurement(
        measured.value,
        {
            **measured.parts,
            "subscriptions": count,
            "idle_core_percent_for_1000": round(rounds.median_seconds("idle") * a_thousand, 2),
            "heartbeats_core_percent_for_1000": round(rounds.median_seconds("heartbeats") * a_thousand, 2),
            "megabytes_for_1000": round(ours / count * 1000 / 1e6, 1),
            "bytes_a_subscription_and_segment": round(ours / count / SEGMENTS),
            "memory_over_barest": round(ours / least, 2),
        },
    )


BENCHMARK = Benchmark(
    unit="times being idle", goal=2, better="lower", measure=measure, part_goals={"memory_over_barest": 5}
)
