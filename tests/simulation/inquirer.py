"""A program that asks what a cluster says about itself, and a model that knows what is true: some simulated worlds.

The model is made from the ledger, by rules of its own. What an answer of a leader says of a segment must have been true at
some moment between the question and the answer. It is made over turns of the loop, so the moments may differ.

1. A segment is blocked by exactly those undrained ancestors that the ledger has, the nearest first.
2. A backlog that is no estimate is stored minus acknowledged.
3. "Blocked since" of a subscription is a time that was true: it moves only with the segments that are blocked.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict, deque
from contextlib import AsyncExitStack, suppress
from itertools import count
from typing import TYPE_CHECKING, Final

from headgate import Admin
from headgate.errors import HeadgateError
from headgate.model import entries as e
from headgate.model.layout import Layout, bucket_bounds, segment_of
from headgate.protocol.replies import BacklogReply, ExplanationReply, PlanReply, SubscriptionReply
from headgate.protocol.requests import DescribeBacklog, DescribeSubscription, ExplainSubscription, PlanChanges
from headgate.views.explanations import Explanation, Plan
from headgate.views.subscriptions import SubscriptionInfo
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from tests.simulation.broken_promise import BrokenPromiseError
from tests.simulation.queue_program import until_done

if TYPE_CHECKING:
    from headgate.client.connection import Client
    from tests.simulation.world import ClusterSimulation

LATE_SECONDS: Final = 30.0
"""An overview of the cluster combines what daemons said so long ago, at most."""
STORED_SECONDS: Final = 2.0
"""A leader's state is ahead of the ledger, from which the model is made, by what it is storing."""
MOST_NAMED: Final = 5
"""Blocking ancestors that an answer names."""
Facts = dict[tuple[int, str], object]
"""(segment, what is said of it) → the value."""


class Inquirer:
    def __init__(self, world: ClusterSimulation) -> None:
        self._world = world
        self._asked: tuple[int, str, str] | None = None
        """Shard, topic and subscription of the question that is open."""
        self._true: list[Facts] = []
        """What was true since it was asked."""
        self._blocked: dict[tuple[str, str], deque[tuple[float, tuple[int, int | None]]]] = defaultdict(deque)
        """(topic, subscription) → (until when, blocked segments and since when), the present one last."""
        self._gated: dict[tuple[int, int], tuple[int, object]] = {}
        """(shard, subscription) → its creation, last seek or last change of the order, in ledger time; and the order."""
        self._created: dict[tuple[int, int, int], int] = {}
        """(shard, topic, segment) → its creation."""

    async def run(self, rng: random.Random) -> None:
        self._world.checker.on_entry = self._follow
        async with self._world.client("inquirer") as client, AsyncExitStack() as stack:
            await until_done(client.shard_map)
            admin = await stack.enter_async_context(Admin(client, timeout_seconds=5))
            while True:
                await asyncio.sleep(rng.choice([0.05, 0.3, 5]) * rng.random())
                found = [
                    (state.shard, topic.name, name)
                    for state in self._world.checker.states.values()
                    for topic in state.topics.values()
                    for name in topic.subscriptions
                    if topic.external is None
                ]
                with suppress(HeadgateError):
                    if found and rng.random() < 0.9:
                        await self._ask(client, *rng.choice(found), rng)
                    else:
                        await self._ask_all(admin)

    # The model

    def _follow(self, state: ShardState, entry: e.AnyEntry) -> None:
        """Follow an entry that ``state`` contains already."""
        shard, now = state.shard, asyncio.get_running_loop().time()
        if (topic := state.topics_by_id.get(getattr(entry, "topic_id", -1))) is None:
            return
        for segment in topic.layout.segments:
            self._created.setdefault((shard, topic.topic_id, segment), state.at_ms)
        for name, each in topic.subscriptions.items():
            known, gate = self._gated.get((shard, each.subscription_id)), (each.type, each.order, each.seek_generation)
            if known is None or known[1] != gate:
                self._gated[shard, each.subscription_id] = state.at_ms, gate
            blocked = [segment for segment in topic.layout.segments if _blockers(topic.layout, each, segment)]
            created = [
                self._created[shard, topic.topic_id, segment] for segment in blocked if segment not in each.drained
            ]
            since = max(min(created), self._gated[shard, each.subscription_id][0]) if created else None
            past, present = self._blocked[topic.name, name], (len(created), since)
            if not past or past[-1][1] != present:
                if past:
                    past[-1] = now, past[-1][1]
                past.append((math.inf, present))
        if self._asked is not None and self._asked[:2] == (shard, topic.name):
            self._note(state)

    def _note(self, state: ShardState) -> None:
        """Remember what is true of the subscription that was asked about."""
        _, name, subscription_name = self._asked
        topic = state.topics.get(name)
        if topic is not None and (subscription := topic.subscriptions.get(subscription_name)) is not None:
            found = [self._facts(state, topic, subscription, segment) for segment in topic.layout.segments]
            self._true.append({key: value for facts in found for key, value in facts.items()})

    def _facts(self, state: ShardState, topic: Topic, subscription: Subscription, segment: int) -> Facts:
        tail, backlogs = topic.tails[segment].next_offset, self._world.checker.backlogs
        stored = {each for each in backlogs.buckets[state.shard, topic.topic_id, segment] if each < tail}
        left = len(stored - backlogs.acknowledged[state.shard, subscription.subscription_id, segment])
        holders = sorted(
            (bucket_bounds(held), each.consumer, each.generation, each.revoked_at_ms is not None)
            for held, each in subscription.holdings.items()
            if segment_of(held) == segment
        )
        tracks = subscription.type in ("STREAM", "QUEUE")
        blockers = _blockers(topic.layout, subscription, segment)
        retired = tracks and segment in subscription.drained and topic.layout.segments[segment].state == "sealed"
        status = "blocked" if blockers else "waiting"
        if retired:
            status, blockers = "drained", ()
        elif holders:
            status = "shared" if holders[0][0] != (0, 0) else "revoking" if holders[0][3] else "granted"
        return {
            (segment, "status"): status,
            (segment, "holders"): holders,
            (segment, "blockers"): blockers,
            (segment, "position"): (subscription.position(segment), max(tail, subscription.position(segment))),
            (segment, "backlog"): left if tracks else None,
        }

    # Questions

    async def _ask(self, client: Client, shard: int, topic: str, name: str, rng: random.Random) -> None:
        state = self._world.checker.states[shard]
        epoch, self._asked, self._true = state.term.leader_epoch, (shard, topic, name), []
        self._note(state)
        body = rng.choice([DescribeSubscription, ExplainSubscription, DescribeBacklog, PlanChanges])
        try:
            reply = await client.request(shard, body(topic=topic, subscription=name), 5)
        finally:
            self._asked = None
        if reply.leader_epoch < epoch or any(not facts for facts in self._true):
            return  # A leader that was deposed may not know it yet.
        match reply.body:
            case SubscriptionReply():
                found = self._described(reply.body.subscription)
            case ExplanationReply():
                found = self._explained(reply.body.explanation)
            case BacklogReply():
                found = {
                    (each.segment, "backlog"): each.records
                    for backlog in reply.body.backlogs
                    for each in backlog.segments
                    if not each.estimated
                }
            case PlanReply():
                found = {}
                self._check_plan(reply.body.plan)
            case _:
                raise BrokenPromiseError(f"{body.__name__} is answered with {reply.body}")
        for key, value in found.items():
            true = [facts.get(key) for facts in self._true]
            if value not in true:
                raise BrokenPromiseError(f"{topic}/{name}: {body.__name__} says {key}: {value}, and it was {true}")

    @staticmethod
    def _described(answer: SubscriptionInfo) -> Facts:
        found: Facts = {}
        for each in answer.segments:
            found[each.segment, "status"] = each.status
            found[each.segment, "blockers"] = each.blocked_by
            found[each.segment, "position"] = each.acknowledged_offset, each.next_offset
            held = [
                ((part.first_bucket, part.end_bucket), part.consumer, part.generation, part.status == "revoking")
                for part in each.bucket_ranges
                if part.consumer is not None
            ]
            if each.consumer is not None:
                held.append(((0, 0), each.consumer, each.generation, each.status == "revoking"))
            found[each.segment, "holders"] = sorted(held)
            if not each.estimated:
                found[each.segment, "backlog"] = each.unacknowledged
        return found

    @staticmethod
    def _explained(answer: Explanation) -> Facts:
        found: Facts = {}
        for each in answer.segments:
            found[each.segment, "status"] = each.status
            found[each.segment, "blockers"] = tuple(blocking.segment for blocking in each.blocked_by)
            counts = [(each.segment, each.backlog_records, each.estimated)]
            counts += [(blocking.segment, blocking.backlog_records, blocking.estimated) for blocking in each.blocked_by]
            found |= {(segment, "backlog"): records for segment, records, estimated in counts if not estimated}
        return found

    def _check_plan(self, plan: Plan) -> None:
        """Check a plan of no change: it counts what each consumer holds, and divides what can be read."""
        held = [
            Counter(holder[1] for (_, what), value in facts.items() if what == "holders" for holder in value)  # type: ignore[attr-defined]
            for facts in self._true
        ]
        before = Counter({each.consumer: each.before for each in plan.consumers if each.before})
        if before not in held or plan.created:
            raise BrokenPromiseError(f"{plan.subscription}: a plan says that consumers hold {before}, not {held}")

    async def _ask_all(self, admin: Admin) -> None:
        answer = await admin.describe_cluster(blocked=True)
        now = asyncio.get_running_loop().time()
        stored_ms = {name: state.at_ms for state in self._world.checker.states.values() for name in state.topics}
        await asyncio.sleep(STORED_SECONDS)
        for each in answer.subscriptions:
            past = self._blocked[each.topic, each.subscription]
            true = [value for until, value in past if until >= now - LATE_SECONDS]
            if (each.blocked_since_ms or 0) > stored_ms.get(each.topic, 0):
                # Of a chunk that the leader may be unable to store, also if a successor has stored later ones since. It
                # shows its present state, and sends nothing of it.
                continue
            if true and (each.blocked_segments, each.blocked_since_ms) not in true:
                raise BrokenPromiseError(f"{each.topic}/{each.subscription} is blocked: {each}, and it was {true}")


def _blockers(layout: Layout, subscription: Subscription, segment: int) -> tuple[int, ...]:
    """Return the nearest undrained ancestors of a segment of a STREAM in order, at most `MOST_NAMED`."""
    if subscription.type != "STREAM" or subscription.order != "strict":
        return ()
    distances, near = dict[int, int](), {segment}
    for distance in count(1):
        parents = {parent for each in near for parent in layout.segments[each].parents}
        near = (parents & layout.segments.keys()) - distances.keys()
        distances |= dict.fromkeys(near, distance)
        if not near:
            break
    undrained = sorted((distance, each) for each, distance in distances.items() if each not in subscription.drained)
    return tuple(each for _, each in undrained[:MOST_NAMED])
