"""One subscription through random lives: joins, leaves, silences, splits, merges, drains, seeks and changes of leader.

`World` fails at once if a segment is granted while it is held, or before an ancestor is drained. Here consumers keep what
they were told, and it has to agree with the record after every step; at the end everything must come to rest.
"""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.gate import open_gate
from headgate import entries as e
from headgate import messages as m
from headgate.layout import SegmentState
from tests.fakes.layouts import change
from tests.fakes.subscription_world import World

pytestmark = pytest.mark.looptime

NAMES = ["ada", "bob", "cyd", "dan"]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["register", "leave", "replace", "gone"]), st.sampled_from(NAMES)),
        st.tuples(
            st.sampled_from(["split", "merge", "prune", "acknowledge", "acknowledge", "confirm", "store", "seek"]),
            st.integers(0, 30),
        ),
        st.tuples(st.just("wait"), st.sampled_from([0.06, 2.5, 16, 31, 61])),
        st.tuples(st.just("fail over"), st.none()),
    ),
    min_size=5,
    max_size=40,
)


class Life:
    """A world and what its consumers know."""

    def __init__(self, kind: str) -> None:
        self.world = World(segments=3, type=kind, order="strict" if kind == "STREAM" else "none")
        self.world.on_push = self.on_push
        self.known: dict[str, dict[int, int]] = {}
        """Client → segment → generation."""
        self.incarnations = dict.fromkeys(NAMES, 1)
        self.world.lead(self.world.check)

    def client(self, name: str) -> str:
        return f"client-{name}-{self.incarnations[name]}"

    def on_push(self, client_id: str, message: m.Push) -> None:
        """Do as a consumer does."""
        known = self.known.setdefault(client_id, {})
        assert message.leader_epoch == self.world.reign
        if isinstance(message, m.ConsumerFenced):
            known.clear()
            return
        for revocation in message.revoked:
            assert known[revocation.segment] == revocation.generation, "revoked what it was never given"
            if revocation.final:
                del known[revocation.segment]
        for grant in message.granted:
            assert grant.segment not in known, "not a difference"
            known[grant.segment] = grant.generation

    def register(self, name: str) -> None:
        client_id = self.client(name)
        known = self.known.get(client_id, {})
        answer = self.world.register(name, incarnation=self.incarnations[name], client_id=client_id)
        revoking = {
            s: holding.generation
            for s, holding in self.world.subscription.holdings.items()
            if holding.consumer == name and holding.revoked_at_ms is not None
        }
        assert revoking.items() <= known.items() or not known
        self.known[client_id] = {grant.segment: grant.generation for grant in answer.grants} | revoking

    def agree(self) -> None:
        """Every consumer on record knows what it holds, and nobody else reads anything of it."""
        subscription = self.world.subscription
        for name, consumer in subscription.consumers.items():
            held = {s: h.generation for s, h in subscription.holdings.items() if h.consumer == name}
            assert held == self.known[consumer.client_id]
        for segment in {s for known in self.known.values() for s in known}:
            readers = [client for client, known in self.known.items() if segment in known]
            assert 1 == len(readers)

    async def step(self, verb: str, what) -> None:
        world, subscription, topic = self.world, self.world.subscription, self.world.topic
        match verb:
            case "register":
                self.register(what)
            case "replace":
                self.incarnations[what] += 1
                self.register(what)
            case "leave":
                world.leave(what, incarnation=self.incarnations[what], client_id=self.client(what))
                self.known.pop(self.client(what), None)
            case "gone":
                world.coordinator.client_gone(self.client(what))
            case "split" | "merge":
                self.change_layout(verb, what)
            case "prune":
                for segment in sorted(subscription.drained):
                    if not topic.layout.ancestors(segment):
                        world.prune(segment)
                        break
            case "store":
                active = [segment.segment_id for segment in topic.layout.active()]
                world.store(active[what % len(active)], 1 + what % 3)
            case "acknowledge" | "confirm":
                held = sorted(subscription.holdings)
                if held:
                    getattr(self, verb)(held[what % len(held)])
            case "seek":
                segments = sorted(topic.layout.segments)
                world.seek({segments[what % len(segments)]: 0})
            case "wait":
                await world.run(what)
            case "fail over":
                await world.coordinator.close()
                world.lead(world.check)
                for name in sorted(subscription.consumers):
                    self.register(name)
        self.agree()

    def change_layout(self, verb: str, pick: int) -> None:
        layout = self.world.topic.layout
        changed = change(layout, verb, pick)
        sealed = [
            s
            for s, segment in changed.segments.items()
            if segment.state is SegmentState.SEALED and layout.segments[s].state is SegmentState.ACTIVE
        ]
        if len(layout.segments) < 24 and sealed:
            getattr(self.world, verb)(*sealed)

    def acknowledge(self, segment: int) -> None:
        holding = self.world.subscription.holdings[segment]
        if self.world.subscription.type == "CHECKPOINT":
            return
        end = self.world.topic.tails[segment].next_offset
        first = min(self.world.subscription.position(segment), end - 1) if end else 0
        reason = self.world.acknowledge(
            holding.consumer,
            segment,
            end,
            first_offset=first,
            incarnation=self.world.subscription.consumers[holding.consumer].incarnation,
        )
        assert reason is None or (end == 0 and "empty" in reason)

    def confirm(self, segment: int) -> None:
        holding = self.world.subscription.holdings[segment]
        if holding.revoked_at_ms is None:
            return
        consumer = self.world.subscription.consumers[holding.consumer]
        self.known[consumer.client_id].pop(segment, None)
        self.world.coordinator.confirm_revoked(
            m.ConfirmRevoked(
                request_id=0,
                client_id=consumer.client_id,
                topic="orders",
                subscription="billing",
                consumer=consumer.consumer,
                incarnation=consumer.incarnation,
                segment=segment,
                generation=holding.generation,
            ),
        )

    async def come_to_rest(self) -> None:
        """Everybody answers and acknowledges everything until nothing changes any more."""
        for name in NAMES[:3]:
            self.register(name)
        for _ in range(30):
            for segment in sorted(self.world.subscription.holdings):
                if segment in self.world.subscription.holdings:
                    self.acknowledge(segment)
            for segment in sorted(self.world.subscription.holdings):
                if segment in self.world.subscription.holdings:
                    self.confirm(segment)
            await self.world.live(5)
        self.agree()


@pytest.mark.parametrize("kind", ["STREAM", "QUEUE", "CHECKPOINT"])
@given(steps=STEPS)
@settings(max_examples=40, deadline=None)
async def test_whatever_happens_promises_hold_and_everything_comes_to_rest(kind: str, steps: list) -> None:
    life = Life(kind)
    world = life.world
    for verb, what in steps:
        await life.step(verb, what)
    await life.come_to_rest()

    subscription = world.subscription
    gate = open_gate(world.topic.layout, subscription.drained, subscription.type, subscription.order)
    assert {} == dict(gate.blocked)
    assert set(gate.grantable) == set(world.holders())
    assert world.coordinator.settled
    owned = [list(world.holders().values()).count(name) for name in subscription.consumers]
    assert max(owned) - min(owned) <= 1
    if kind != "CHECKPOINT":
        assert all(
            segment.state is SegmentState.ACTIVE for segment in map(world.topic.layout.segments.get, gate.grantable)
        )
    generations = [entry.generation for entry in world.proposed(e.SegmentGranted)]
    assert generations == sorted(set(generations))
    await world.coordinator.close()
    assert 1 == len(asyncio.all_tasks()), "a task was left behind"
