"""One topic with one subscription, its coordinator and its consumers, in one process.

`CoordinatorHarness` replaces the leader. The shard's real state applies each proposed entry at once,
and an entry that breaks an invariant fails the test. Wall time follows the loop's clock.
"""

import asyncio
import math
import random
from collections.abc import Callable
from typing import Any, Self

from coordinator.context import CoordinatorSettings, SubscriptionContext
from coordinator.subscription_coordinator import SubscriptionCoordinator
from drain.protocol import DrainCheckError
from headgate.model import entries as e
from headgate.model.layout import BucketRange, SegmentSlice, overlaps, segment_of, slice_of
from headgate.protocol import requests
from headgate.protocol.replies import Done, HeartbeatReply, Push, Registered
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.subscriptions.gate import is_gated
from shard.subscriptions.refusal import Refusal
from shard.subscriptions.two_witnesses import DrainClaim
from tests.support.fakes.recording_observer import RecordingObserver

START_MS = 1_700_000_000_000
SETTINGS = CoordinatorSettings(
    grace_seconds=60,
    revoke_timeout_seconds=30,
    heartbeat_interval_seconds=5,
    poll_min_seconds=2,
    poll_max_seconds=900,
    poll_check_timeout_seconds=70,
)


TICK_SECONDS = 0.25


class CoordinatorHarness:
    """A minimal leader of one shard, with its first term already started."""

    def __init__(
        self,
        *,
        segments: int = 1,
        type: str | None = "STREAM",  # noqa: A002
        order: str | None = None,
        with_drain_check: bool = True,
    ) -> None:
        """The order is strict for a STREAM unless given. ``type`` None: not yet known."""
        self.state = ShardState(0)
        self.entries: list[e.AnyEntry] = []
        self.pushes: list[tuple[str, Push]] = []
        self.on_push: Callable[[str, Push], None] = lambda client_id, message: None
        self.leader_epoch = 1
        self.clock_ahead_ms = 0
        self.observer = RecordingObserver()
        self.checker = FakeDrainChecker(self)
        self.propose(e.TopicCreated(topic_id=1, topic="orders", segments=segments, token="t"))
        self.propose(
            e.SubscriptionCreated(
                topic_id=1,
                subscription_id=2,
                subscription="billing",
                subscription_type=type,
                order=order or ("strict" if type == "STREAM" else "none"),
                positions={},
            )
        )
        self.coordinator = self.lead(with_drain_check=with_drain_check)

    # Ledger

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000) + self.clock_ahead_ms

    @property
    def term_id(self) -> int:
        return 0

    @property
    def durable(self) -> int:
        return self.state.chunk

    def propose(self, *entries: e.AnyEntry) -> None:
        self.state.begin_chunk(self.state.chunk + 1, self.now_ms())
        for entry in entries:
            self._check_invariants(entry)
            self.state.apply(entry)
            self.entries.append(entry)

    def push(self, client_id: str, message: Push) -> None:
        self.pushes.append((client_id, message))
        self.on_push(client_id, message)

    def _check_invariants(self, entry: e.AnyEntry) -> None:
        """No two holders of a segment, no child before an ancestor, no generation twice, no retired segment."""
        if not isinstance(entry, e.SegmentGranted):
            return
        subscription = self.subscription
        wanted = slice_of(entry.segment, entry.first_bucket, entry.end_bucket)
        for held in subscription.holdings:
            # Most are whole segments, and are compared some million times.
            if isinstance(held, BucketRange) or held == entry.segment:
                assert not overlaps(held, wanted), f"{wanted} is held as {held}"
        assert subscription.consumers[entry.consumer].supports_bucket_ranges or wanted == entry.segment
        assert entry.generation == subscription.holdings.next_generation
        assert entry.consumer in subscription.consumers
        if is_gated(subscription.type, subscription.order):
            undrained = self.topic.layout.ancestors(entry.segment) - subscription.drained
            assert not undrained, f"segment {entry.segment} before {undrained}"
        if subscription.type != "CHECKPOINT":
            assert entry.segment not in subscription.drained

    def proposed(self, kind: type) -> list:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    @property
    def topic(self) -> Topic:
        return self.state.topics["orders"]

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions["billing"]

    def holders(self) -> dict[SegmentSlice, str]:
        """Slice → its holder, unless revoked."""
        holdings = sorted(self.subscription.holdings.items())
        return {held: holding.consumer for held, holding in holdings if holding.revoked_at_ms is None}

    # Leader

    def lead(self, *, with_drain_check: bool = True) -> SubscriptionCoordinator:
        """Start a leader term. The caller closes the previous coordinator."""
        self.leader_epoch += 1
        context = SubscriptionContext(
            subscription=self.subscription,
            topic=self.topic,
            ledger=self,
            push=self.push,
            follow=lambda _: 0,
            drain_check=self.checker if with_drain_check else None,
            leader_epoch=self.leader_epoch,
            settings=SETTINGS,
            later=lambda _, work: asyncio.get_running_loop().call_soon(work),
            now_ms=self.now_ms,
            chance=random.Random(1).random,
            observer=self.observer,
        )
        self.coordinator = SubscriptionCoordinator(context)
        return self.coordinator

    async def change_leader(self) -> None:
        """Replace the leader: everything that is not in the ledger is lost."""
        await self.coordinator.close()
        self.pushes.clear()
        self.lead()

    async def run(self, seconds: float) -> None:
        """Let time pass, with the leader's ticks."""
        ticks = math.ceil(seconds / TICK_SECONDS)
        for _ in range(ticks):
            await asyncio.sleep(seconds / ticks)
            self.coordinator.tick()

    async def run_with_heartbeats(self, seconds: float) -> None:
        """Let time pass while all consumers send heartbeats, with one tick per heartbeat."""
        beats = math.ceil(seconds / SETTINGS.heartbeat_interval_seconds)
        for _ in range(beats):
            for consumer in list(self.subscription.consumers.values()):
                self.heartbeat(consumer.consumer, incarnation=consumer.incarnation, client_id=consumer.client_id)
            await asyncio.sleep(seconds / beats)
            self.coordinator.tick()

    def store(self, segment: int, count: int, size_bytes: int | None = None) -> None:
        first = self.topic.tails[segment].next_offset
        placement = e.Placement(segment, 0, 65535, first, count)
        self.propose(e.RecordsStored(topic_id=1, count=count, placements=[placement], size_bytes=size_bytes or count))

    def split(self, segment: int) -> Self:
        end_offset = self.topic.tails[segment].next_offset
        self.propose(e.SegmentSplit(topic_id=1, segment=segment, end_offset=end_offset, token="t"))
        self.coordinator.reconciler.layout_changed()
        self.coordinator.adapt("layout changed")
        return self

    def merge(self, first: int, second: int) -> None:
        ends = (self.topic.tails[first].next_offset, self.topic.tails[second].next_offset)
        self.propose(e.SegmentsMerged(topic_id=1, segments=(first, second), end_offsets=ends, token="t"))
        self.coordinator.reconciler.layout_changed()
        self.coordinator.adapt("layout changed")

    def prune(self, *segments: int) -> None:
        self.propose(e.SegmentsPruned(topic_id=1, segments=list(segments)))
        self.coordinator.reconciler.layout_changed()
        self.coordinator.adapt("layout changed")

    def seek(self, positions: dict[int, int]) -> None:
        former = dict(self.subscription.holdings)
        self.propose(
            e.SubscriptionSeek(
                topic_id=1,
                subscription_id=2,
                seek_generation=self.subscription.seek_generation + 1,
                positions=positions,
                token="t",
            )
        )
        self.coordinator.positions_changed(former)

    # Consumers

    def _request(self, kind: type, consumer: str, incarnation: int, **fields):
        return kind(topic="orders", subscription="billing", consumer=consumer, incarnation=incarnation, **fields)

    def join(self, *consumers: str, **registration) -> None:
        """Register ``consumers`` in this order."""
        for consumer in consumers:
            self.register(consumer, **registration)

    def confirm_all(self) -> None:
        """Let all holders confirm their pending revocations."""
        for held, holding in sorted(self.subscription.holdings.items()):
            if holding.revoked_at_ms is not None:
                incarnation = self.subscription.consumers[holding.consumer].incarnation
                self.confirm(holding.consumer, held, holding.generation, incarnation=incarnation)

    def register(
        self,
        consumer: str,
        *,
        incarnation: int = 1,
        client_id: str | None = None,
        type: str | None = None,  # noqa: A002
        order: str | None = None,
        supports_bucket_ranges: bool = False,
        balance: str | None = None,
        capacity: int = 100,
    ) -> Registered | Refusal:
        wanted = type or self.subscription.type or "STREAM"
        request = self._request(
            requests.RegisterConsumer,
            consumer,
            incarnation,
            subscription_type=wanted,
            order=order,
            supports_bucket_ranges=supports_bucket_ranges,
            balance=balance,
            capacity=capacity,
        )
        return self.coordinator.register(request, client_id or f"anonymous/client-{consumer}")

    def heartbeat(
        self, consumer: str, *, incarnation: int = 1, client_id: str | None = None, **said: Any
    ) -> HeartbeatReply | Refusal:
        request = self._request(requests.Heartbeat, consumer, incarnation, **said)
        return self.coordinator.heartbeat(request, client_id or f"anonymous/client-{consumer}")

    def disconnect(self, client_id: str) -> None:
        self.coordinator.members.client_disconnected(client_id, asyncio.get_running_loop().time())

    def leave(self, consumer: str) -> Done:
        return self.coordinator.leave(
            self._request(requests.LeaveConsumer, consumer, 1), f"anonymous/client-{consumer}"
        )

    def confirm(
        self, consumer: str, held: SegmentSlice, generation: int | None = None, *, incarnation: int = 1
    ) -> Done:
        if generation is None:
            generation = self.subscription.holdings[held].generation
        return self.confirm_together(consumer, [(segment_of(held), generation)], incarnation=incarnation)

    def confirm_together(self, consumer: str, released: list[tuple[int, int]], *, incarnation: int = 1) -> Done:
        """Confirm several revocations with one request."""
        return self.coordinator.confirm_revoked(
            self._request(requests.ConfirmRevoked, consumer, incarnation, released=released),
            f"anonymous/client-{consumer}",
        )

    def acknowledge(
        self,
        consumer: str,
        held: SegmentSlice,
        end_offset: int,
        *,
        first_offset: int = 0,
        generation: int | None = None,
        incarnation: int = 1,
        delivery: int = 1,
    ) -> str | None:
        """Send one acknowledgement; return the reason if it does not count."""
        segment = segment_of(held)
        if generation is None:
            generation = self.subscription.holdings[held].generation
        batch = self._request(
            requests.AcknowledgeBatch,
            consumer,
            incarnation,
            acknowledgements=[requests.Acknowledgement(segment, generation, first_offset, end_offset, delivery)],
        )
        rejected = self.coordinator.acknowledge(batch).rejected
        return rejected[0][1] if rejected else None

    def take_pushes(self, consumer: str) -> list[Push]:
        """Return and remove the messages pushed to the consumer's client."""
        client_id = f"anonymous/client-{consumer}"
        mine = [message for receiver, message in self.pushes if receiver == client_id]
        self.pushes = [push for push in self.pushes if push[0] != client_id]
        return mine


class FakeDrainChecker:
    """A drain check in place of Spark, which records its calls and takes 50 ms by default."""

    def __init__(self, harness: CoordinatorHarness) -> None:
        self.harness = harness
        self.checks: list[tuple[float, frozenset[int]]] = []
        self.reports_nothing_drained = False
        self.answer_seconds = 0.05
        self.failure: str | None = None
        """What every check raises; None: they are answered."""
        self.claims: dict[int, DrainClaim] = {}
        """What every check says in addition, true or false."""

    async def __call__(self, subscription: Subscription, segments: frozenset[int]) -> dict[int, DrainClaim]:
        self.checks.append((asyncio.get_running_loop().time(), segments))
        await asyncio.sleep(self.answer_seconds)
        if self.failure is not None:
            raise DrainCheckError(self.failure)
        if self.reports_nothing_drained:
            return {}
        ends = {each: self.harness.topic.layout.segments[each].end_offset for each in segments}
        return {s: DrainClaim(end) for s, end in ends.items() if subscription.position(s) >= end} | self.claims

    @property
    def checked_at(self) -> list[float]:
        return [round(at, 3) for at, _ in self.checks]
