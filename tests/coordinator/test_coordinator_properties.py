"""Random histories of one subscription: joins, leaves, outages, splits, merges, seeks, leader changes.

`CoordinatorHarness` fails if a segment is granted while it is held, or before an ancestor is
drained. Here the modeled consumers also track their grants. These must match the state after each
step, and at the end everything must settle.
"""

import asyncio
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model import entries as e
from headgate.model.bucket_ranges import SegmentSlice, buckets_of, overlaps, segment_of, slice_of
from headgate.model.hashing import KEY_BUCKETS
from headgate.model.layout import SegmentState
from headgate.protocol import messages as m
from shard.subscriptions.gate import compute_gate
from tests.support.samples.layouts import change
from tests.support.worlds.subscription_environment import CoordinatorHarness

pytestmark = pytest.mark.looptime

NAMES = ["ada", "bob", "cyd", "dan", "old"]
"""The last one has a client that cannot share segments."""
CAPACITY = {"ada": 100, "bob": 100, "cyd": 250, "dan": 30, "old": 100}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["register", "leave", "reheld_slice", "disconnect"]), st.sampled_from(NAMES)),
        st.tuples(
            st.sampled_from(["split", "merge", "prune", "acknowledge", "acknowledge", "confirm", "store", "seek"]),
            st.integers(0, 30),
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.06, 2.5, 16, 31, 61])),
        st.tuples(st.just("change leader"), st.none()),
    ),
    min_size=5,
    max_size=40,
)


class CoordinatorModel:
    """A harness, and the grants that its consumers know."""

    def __init__(self, kind: str, segments: int, balance: str) -> None:
        self.balance = balance
        self.harness = CoordinatorHarness(segments=segments, type=kind)
        self.harness.on_push = self.on_push
        self.known: dict[str, dict[SegmentSlice, int]] = {}
        """Client → slice → generation."""
        self.incarnations = dict.fromkeys(NAMES, 1)

    def client(self, name: str) -> str:
        return f"anonymous/client-{name}-{self.incarnations[name]}"

    def on_push(self, client_id: str, message: m.Push) -> None:
        """Track the grants as a consumer does."""
        known = self.known.setdefault(client_id, {})
        assert message.leader_epoch == self.harness.leader_epoch
        if isinstance(message, m.ConsumerFenced):
            known.clear()
            return
        for revocation in message.revoked:
            held_slice = slice_of(revocation.segment, revocation.first_bucket, revocation.end_bucket)
            assert known[held_slice] == revocation.generation, "revoked a slice that was never granted"
            if revocation.final:
                del known[held_slice]
        for grant in message.granted:
            held_slice = slice_of(grant.segment, grant.first_bucket, grant.end_bucket)
            assert not any(overlaps(held_slice, other) for other in known), "the consumer holds it already"
            known[held_slice] = grant.generation

    def register(self, name: str) -> None:
        client_id = self.client(name)
        known = self.known.get(client_id, {})
        answer = self.harness.register(
            name,
            incarnation=self.incarnations[name],
            client_id=client_id,
            balance=self.balance,
            capacity=CAPACITY[name],
            supports_bucket_ranges=name != "old",
        )
        revoking = {
            held_slice: holding.generation
            for held_slice, holding in self.harness.subscription.holdings.items()
            if holding.consumer == name and holding.revoked_at_ms is not None
        }
        assert revoking.items() <= known.items() or not known
        granted = {slice_of(g.segment, g.first_bucket, g.end_bucket): g.generation for g in answer.grants}
        self.known[client_id] = granted | revoking

    def check(self) -> None:
        """Each registered consumer knows its holdings, and no bucket has two readers."""
        subscription = self.harness.subscription
        for name, consumer in subscription.consumers.items():
            held = {s: h.generation for s, h in subscription.holdings.items() if h.consumer == name}
            assert held == self.known[consumer.client_id]
        read = [held_slice for known in self.known.values() for held_slice in known]
        assert not [1 for one, other in combinations(read, 2) if overlaps(one, other)], "a bucket has two readers"

    async def step(self, verb: str, what) -> None:
        harness, subscription, topic = self.harness, self.harness.subscription, self.harness.topic
        match verb:
            case "register":
                self.register(what)
            case "reheld_slice":
                self.incarnations[what] += 1
                self.register(what)
            case "leave":
                harness.leave(what, incarnation=self.incarnations[what], client_id=self.client(what))
                self.known.pop(self.client(what), None)
                self.incarnations[what] += 1
            case "disconnect":
                harness.coordinator.client_disconnected(self.client(what))
            case "split" | "merge":
                self.change_layout(verb, what)
            case "prune":
                for segment in sorted(subscription.drained):
                    if not topic.layout.ancestors(segment):
                        harness.prune(segment)
                        break
            case "store":
                active = [segment.segment_id for segment in topic.layout.active()]
                harness.store(active[what % len(active)], 1 + what % 3, 10 ** (what % 8))
            case "acknowledge" | "confirm":
                held = sorted(subscription.holdings)
                if held:
                    getattr(self, verb)(held[what % len(held)])
            case "seek":
                segments = sorted(topic.layout.segments)
                harness.seek({segments[what % len(segments)]: 0})
            case "wait":
                await harness.run(what)
            case "change leader":
                await harness.change_leader()
                for name in sorted(subscription.consumers):
                    self.register(name)
        self.check()

    def change_layout(self, verb: str, pick: int) -> None:
        layout = self.harness.topic.layout
        changed = change(layout, verb, pick)
        sealed = [
            s
            for s, segment in changed.segments.items()
            if segment.state is SegmentState.SEALED and layout.segments[s].state is SegmentState.ACTIVE
        ]
        if len(layout.segments) < 24 and sealed:
            getattr(self.harness, verb)(*sealed)

    def acknowledge(self, held_slice: SegmentSlice) -> None:
        holding = self.harness.subscription.holdings[held_slice]
        if self.harness.subscription.type == "CHECKPOINT":
            return
        end = self.harness.topic.tails[segment_of(held_slice)].next_offset
        first = min(self.harness.subscription.position(segment_of(held_slice)), end - 1) if end else 0
        reason = self.harness.acknowledge(
            holding.consumer,
            held_slice,
            end,
            first_offset=first,
            incarnation=self.harness.subscription.consumers[holding.consumer].incarnation,
        )
        assert reason is None or (end == 0 and "empty" in reason)

    def confirm(self, held_slice: SegmentSlice) -> None:
        holding = self.harness.subscription.holdings[held_slice]
        if holding.revoked_at_ms is None:
            return
        consumer = self.harness.subscription.consumers[holding.consumer]
        self.known[consumer.client_id].pop(held_slice, None)
        self.harness.coordinator.confirm_revoked(
            m.ConfirmRevoked(
                topic="orders",
                subscription="billing",
                consumer=consumer.consumer,
                incarnation=consumer.incarnation,
                released=[(segment_of(held_slice), holding.generation)],
            ),
            consumer.client_id,
        )

    async def settle(self) -> None:
        """Let all consumers confirm and acknowledge everything until nothing changes."""
        for name in NAMES[:3]:
            self.register(name)
        for _ in range(30):
            for held_slice in sorted(self.harness.subscription.holdings):
                if held_slice in self.harness.subscription.holdings:
                    self.acknowledge(held_slice)
            for held_slice in sorted(self.harness.subscription.holdings):
                if held_slice in self.harness.subscription.holdings:
                    self.confirm(held_slice)
            await self.harness.run_with_heartbeats(5)
        if self.balance == "load":
            # The last tick may have changed a weight and revoked a segment.
            for segment in sorted(self.harness.subscription.holdings):
                self.confirm(segment)
        self.check()


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("kind", "segments", "balance"),
    [
        ("STREAM", 3, "count"),
        ("STREAM", 1, "count"),
        ("QUEUE", 1, "count"),
        ("QUEUE", 3, "count"),
        ("CHECKPOINT", 3, "count"),
        ("STREAM", 3, "load"),
        ("QUEUE", 1, "load"),
    ],
)
@given(steps=STEPS)
@settings(max_examples=40)
async def test_random_histories_keep_all_invariants_and_settle(
    kind: str, segments: int, balance: str, steps: list
) -> None:
    model = CoordinatorModel(kind, segments, balance)
    harness = model.harness
    for verb, what in steps:
        await model.step(verb, what)
    await model.settle()

    subscription = harness.subscription
    gate = compute_gate(harness.topic.layout, subscription.drained, subscription.type, subscription.order)
    assert {} == dict(gate.blocked)
    read = sorted(
        (segment_of(held_slice), bucket) for held_slice in harness.holders() for bucket in buckets_of(held_slice)
    )
    assert read == [(segment, bucket) for segment in gate.grantable for bucket in range(KEY_BUCKETS)]
    assert harness.coordinator.handovers_complete
    owned = {name: list(harness.holders().values()).count(name) for name in subscription.consumers}
    if balance == "load":
        before = harness.holders()
        harness.coordinator.layout_changed()
        assert before == harness.holders(), "recomputing moves nothing"
    elif kind == "CHECKPOINT" or len(owned) <= len(gate.grantable):
        assert max(owned.values()) - min(owned.values()) <= 1
    else:
        assert {name for name, count in owned.items() if not count} <= {"old"}
    assert {c.consumer: bool(c.idle) for c in harness.coordinator.describe().consumers} == {
        name: not count for name, count in owned.items()
    }
    if kind != "CHECKPOINT":
        assert all(
            segment.state is SegmentState.ACTIVE for segment in map(harness.topic.layout.segments.get, gate.grantable)
        )
    generations = [entry.generation for entry in harness.proposed(e.SegmentGranted)]
    assert generations == sorted(set(generations))
    await harness.coordinator.close()
    assert 1 == len(asyncio.all_tasks()), "a task is still running"
