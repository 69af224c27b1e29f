"""The subscriptions of one shard during one leader term, with one SubscriptionCoordinator each.

The registry creates coordinators, finds the one for a request, and forwards events to it: changes of the layout, seeks,
deletions and the presence of clients. The coordinator package decides everything else.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from controller.backlog.merge import external_view
from controller.chunk_writer.group_commit import GroupCommit
from controller.context.leader_context import DrainedSource, LeaderContext
from controller.context.step_driver import StepDriver
from coordinator.context import FollowEnd, PushMessage, SubscriptionContext
from coordinator.subscription_coordinator import SubscriptionCoordinator
from drain.protocol import DrainCheckError, DrainQuery
from headgate.model import entries as e
from headgate.model.layout import SegmentSlice
from headgate.protocol import requests
from headgate.protocol.codec import Page, Presence, follows, user_of
from headgate.protocol.replies import Done, Registered, SubscriptionList, SubscriptionReply
from headgate.protocol.request_fields import ConsumerRequest, SubscriptionRequest
from headgate.views.subscriptions import SubscriptionInfo
from shard.access.quotas import judge_joining
from shard.requests.handlers import Outcome, Registration, StepResult, Stepwise, find_subscription, find_topic, handler
from shard.requests.subscription_commands import new_subscription
from shard.state.consumers import Holding
from shard.state.shard_state import ShardState
from shard.state.subscription import Subscription
from shard.state.topic import Topic
from shard.steps import Steps
from shard.subscriptions.positions import own_positions_error, registration_error
from shard.subscriptions.refusal import Refusal, RequestRefusedError, invalid, refuse
from shard.subscriptions.registration import (
    judge_deleted_subscription,
    order_error,
    refuse_deleted_topic,
    refuse_other_user,
    subscriptions_error,
)
from shard.subscriptions.two_witnesses import DrainClaim

RequestT = TypeVar("RequestT", bound=ConsumerRequest)
QueryT = TypeVar("QueryT", bound=SubscriptionRequest)

FormerHoldings = dict[int, Mapping[SegmentSlice, Holding]]
"""Subscription → its holdings before a seek."""
COORDINATOR_COST = 32
"""Cost of creating a coordinator, besides looking at its segments."""
PRESENCE_COST = 4
"""Cost for each consumer of the client that disconnected."""


async def drained_as_counted(
    state: ShardState, commit: GroupCommit, source: DrainedSource, subscription: Subscription, segments: frozenset[int]
) -> Mapping[int, DrainClaim]:
    """Ask the daemon's checker once what was acknowledged is durable: `coordinator.context.DrainCheck` for one term."""
    # The newest acknowledgement may be in the open chunk. The checker reads durable chunks only.
    chunk = commit.newest
    durable = asyncio.Event()
    commit.when_durable(chunk, durable.set)
    await durable.wait()
    topic = state.topics_by_id[subscription.topic_id]
    answer = await source(
        DrainQuery(
            shard=state.shard,
            **subscription.ids,
            seek_generation=subscription.seek_generation,
            segments=segments,
            at_least_chunk=chunk,
            external=None if topic.external is None else external_view(topic, topic.external),
        )
    )
    if answer.watermark > commit.newest:
        raise DrainCheckError(
            f"shard {state.shard} was counted to chunk {answer.watermark}, and this leader has written "
            f"{commit.newest}: another leader writes this ledger, or another ledger was counted"
        )
    return {segment: DrainClaim(end, answer.from_tables) for segment, end in answer.drained.items()}


@dataclass(eq=False, repr=False, kw_only=True)
class SubscriptionRegistry:
    state: ShardState
    context: LeaderContext
    commit: GroupCommit
    driver: StepDriver
    push: PushMessage
    follow: FollowEnd
    coordinators: dict[int, SubscriptionCoordinator] = field(default_factory=dict)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def restore(self) -> Steps[None]:
        for subscription in self.state.subscriptions.values():
            yield COORDINATOR_COST + len(self.state.topics_by_id[subscription.topic_id].layout.segments)
            self._add_coordinator(subscription)

    async def close(self) -> None:
        """Stop all polling; return once no task runs."""
        for coordinator in self.coordinators.values():
            await coordinator.close()
        self.coordinators.clear()
        await asyncio.gather(*self._closing)

    def oldest_unhandled_ms(self, subscription_id: int) -> Mapping[int, int | None]:
        """See `Membership.oldest_unhandled_ms`. Empty while the subscription has no coordinator."""
        coordinator = self.coordinators.get(subscription_id)
        return {} if coordinator is None else coordinator.members.oldest_unhandled_ms()

    def tick(self) -> Steps[None]:
        for subscription_id, coordinator in list(self.coordinators.items()):
            yield coordinator.size
            self._if_current(subscription_id, coordinator, coordinator.tick)

    def _if_current(self, subscription_id: int, coordinator: SubscriptionCoordinator, work: Callable[[], None]) -> None:
        if self.coordinators.get(subscription_id) is coordinator:
            work()

    def on_presence(self, presence: Presence, at: float) -> Steps[None]:
        for subscription_id, coordinator in list(self.coordinators.items()):
            members, more = coordinator.members, True
            while more:
                yield coordinator.consumers * PRESENCE_COST
                more = False
                if self.coordinators.get(subscription_id) is not coordinator:
                    continue
                if presence.online:
                    members.client_connected(presence.client_id)
                else:
                    more = members.client_disconnected(presence.client_id, at)

    def withdraw(self, topic: Topic, segments: Iterable[int]) -> set[int]:
        """See `AssignmentReconciler.withdraw`. The subscriptions of a deleted topic have no coordinator."""
        found = [self.coordinators.get(each.subscription_id) for each in topic.subscriptions.values()]
        return {segment for each in found if each is not None for segment in each.reconciler.withdraw(segments)}

    def before_entries(self, entries: Iterable[e.AnyEntry]) -> FormerHoldings:
        """Release the segments that ``entries`` are about to prune. Return the holdings that seeks are about to end."""
        former: FormerHoldings = {}
        for entry in entries:
            if isinstance(entry, e.SubscriptionSeek):
                former[entry.subscription_id] = dict(self.state.subscriptions[entry.subscription_id].holdings)
            elif isinstance(entry, e.SegmentsPruned):
                pruned = set(entry.segments)
                for subscription in self.state.topics_by_id[entry.topic_id].subscriptions.values():
                    self.coordinators[subscription.subscription_id].reconciler.release_pruned(pruned)
        return former

    def after_entries(self, entries: Iterable[e.AnyEntry], former: FormerHoldings) -> None:
        """Forward the effects of a command's ``entries``, already applied. ``former``: from `before_entries`."""
        for entry in entries:
            if isinstance(
                entry, e.SegmentSplit | e.SegmentsMerged | e.SegmentRolled | e.SegmentsPruned | e.LayoutExtended
            ):
                topic = self.state.topics_by_id[entry.topic_id]
                self.driver.charge(len(topic.layout.segments))
                for subscription in topic.subscriptions.values():
                    self._layout_changed(subscription.subscription_id)
            elif isinstance(entry, e.SubscriptionSeek):
                self.coordinators[entry.subscription_id].positions_changed(former[entry.subscription_id])
            elif isinstance(entry, e.SubscriptionConfigured):
                self._order_changed(entry.subscription_id)
            elif isinstance(entry, e.SubscriptionCreated):
                self._add_coordinator(self.state.subscriptions[entry.subscription_id])
                # Segments that end where it starts are drained in the same chunk, before the reply is built.
                self.coordinators[entry.subscription_id].tick()
            elif isinstance(entry, e.TopicDeleted | e.SubscriptionDeleted):
                for subscription_id in sorted(self.coordinators.keys() - self.state.subscriptions.keys()):
                    deleted = self.coordinators.pop(subscription_id)
                    deleted.members.subscription_deleted()
                    closing = asyncio.get_running_loop().create_task(deleted.close(), name="close-coordinator")
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)

    def _layout_changed(self, subscription_id: int) -> None:
        """Adapt one subscription to a new layout: what it remembers at once, its assignment when there is time."""
        coordinator = self.coordinators[subscription_id]
        coordinator.reconciler.layout_changed()
        adapt = partial(self._if_current, subscription_id, coordinator, partial(coordinator.adapt, "layout changed"))
        self.driver.do(coordinator.size, adapt)

    def _order_changed(self, subscription_id: int) -> None:
        """Adapt one subscription to a new order: its gate at once, its assignment after the reply is built."""
        coordinator = self.coordinators[subscription_id]
        coordinator.order_changed()
        adapt = partial(self._if_current, subscription_id, coordinator, partial(coordinator.adapt, "order changed"))
        self.driver.do_later(coordinator.size, adapt)

    def handlers(self) -> tuple[Registration, ...]:
        """Return the handlers of consumers' requests and of queries about subscriptions."""
        return (
            handler(requests.RegisterConsumer, self._register),
            handler(requests.ListSubscriptions, lambda request, _: Stepwise(self._list(request))),
            self._handler(requests.AcknowledgeBatch, lambda found, batch, _: found.acknowledge(batch)),
            self._handler(requests.BeginDeliveries, lambda found, request, _: found.deliveries.begin(request)),
            self._handler(requests.ConfirmDeadLetters, lambda found, request, _: found.confirm_dead_letters(request)),
            self._handler(requests.ParkKey, lambda found, request, _: found.deliveries.park(request)),
            self._handler(requests.UnparkKey, lambda found, request, _: found.deliveries.park(request)),
            self._handler(requests.Heartbeat, SubscriptionCoordinator.heartbeat),
            handler(requests.LeaveConsumer, self._leave),
            handler(requests.EvictConsumer, self._evict),
            self._handler(requests.ConfirmRevoked, SubscriptionCoordinator.confirm_revoked),
            self._query(requests.DescribeSubscription, self._describe),
            self._query(
                requests.ExplainSubscription,
                lambda found, request: found.explain(request, self.context.drain_problem(), self._delay_reason),
            ),
            self._query(requests.PlanChanges, SubscriptionCoordinator.plan),
        )

    def _delay_reason(self, user: str) -> str:
        return self.context.access.delay_reason(user, asyncio.get_running_loop().time())

    def _handler(
        self, kind: type[RequestT], respond: Callable[[SubscriptionCoordinator, RequestT, str], Outcome]
    ) -> Registration:
        """Register a handler that calls ``respond`` with the coordinator of the named subscription."""
        return handler(kind, lambda request, client_id: respond(self._find_for(request, client_id), request, client_id))

    def _query(
        self, kind: type[QueryT], respond: Callable[[SubscriptionCoordinator, QueryT], Steps[StepResult]]
    ) -> Registration:

        def find_and_respond(request: QueryT) -> Steps[StepResult]:
            return (yield from respond(self._find(request), request))

        return handler(kind, lambda request, _: Stepwise(find_and_respond(request)))

    def _describe(self, found: SubscriptionCoordinator, _: requests.DescribeSubscription) -> Steps[StepResult]:
        described = yield from found.describe()
        point = self.commit.newest, self.commit.term_id
        return SubscriptionReply(subscription=msgspec.structs.replace(described, point=point))

    def _register(self, request: requests.RegisterConsumer, client_id: str) -> Registered | Refusal:
        if request.topic not in self.state.topics and request.subscription_id is not None:
            return refuse_deleted_topic(request)
        topic = find_topic(request.topic, self.state)
        known = topic.subscriptions.get(request.subscription)
        former = self.state.deleted_members.of(topic.name, request.subscription)
        if (refusal := judge_deleted_subscription(known, former, request, client_id)) is not None:
            return refusal
        if (reason := registration_error(topic, request, creates=known is None)) is not None:
            return invalid(reason)
        member = None if known is None else known.consumers.get(request.consumer)
        runs = member is not None and member.incarnation == request.incarnation
        alone = not runs and (known is None or not known.consumers.keys() - {request.consumer})
        reason = own_positions_error(topic, topic.pruned_ends, request, alone=alone)
        if reason is not None:
            return refuse("out_of_range", reason)
        if known is None:
            # Checked before the subscription is created: a rejection must not leave one behind.
            reason = order_error(request.subscription_type, request.order) or subscriptions_error(
                topic.name, len(topic.subscriptions)
            )
            if reason is not None:
                return Refusal("invalid", reason)
        refusal = judge_joining(request, user_of(client_id), self.state, self.context.access.rules.limits_of)
        if refusal is not None:
            return refusal
        if known is None:
            self.commit.propose(new_subscription(request, topic, self.state.ids.next_id, user_of(client_id)))
            known = topic.subscriptions[request.subscription]
            self._add_coordinator(known)
        return self.coordinators[known.subscription_id].register(request, client_id)

    def _leave(self, request: requests.LeaveConsumer, client_id: str) -> Done:
        """Remove a consumer. One of a subscription that does not exist has nothing to leave, as after a deletion."""
        topic = self.state.topics.get(request.topic)
        if topic is None or request.subscription not in topic.subscriptions:
            return Done()
        return self._find_for(request, client_id).leave(request, client_id)

    def _evict(self, request: requests.EvictConsumer, _: str) -> Done | Refusal:
        """Remove a consumer for a command. A repeated one must not remove a later consumer of the name."""
        return Done() if request.token in self.state.commands else self._find(request).evict(request)

    def _list(self, request: requests.ListSubscriptions) -> Steps[StepResult]:
        if request.topic is not None:
            find_topic(request.topic, self.state)
        yield len(self.coordinators)
        page: Page[SubscriptionInfo] = Page()
        for names, subscription_id in self._listed(request):
            if page.is_full:
                break
            coordinator = self.coordinators.get(subscription_id)
            if coordinator is not None:  # Else it was deleted in an earlier turn.
                description = yield from coordinator.describe()
                page.add(names, description)
        return SubscriptionList(subscriptions=page.items, next=page.following)

    def _listed(self, request: requests.ListSubscriptions) -> list[tuple[tuple[str, str], int]]:
        return [
            ((topic_name, name), subscription.subscription_id)
            for topic_name, topic in sorted(self.state.topics.items())
            if request.topic in (None, topic_name)
            for name, subscription in sorted(topic.subscriptions.items())
            if follows(request.after, topic_name, name)
        ]

    def _find(self, request: SubscriptionRequest) -> SubscriptionCoordinator:
        _, subscription = find_subscription(request.topic, request.subscription, self.state)
        return self.coordinators[subscription.subscription_id]

    def _find_for(self, request: ConsumerRequest, address: str) -> SubscriptionCoordinator:
        """Return the coordinator for a request about a consumer, which must belong to the user of ``address``."""
        _, subscription = find_subscription(request.topic, request.subscription, self.state)
        refusal = refuse_other_user(subscription.consumers.get(request.consumer), request.consumer, address)
        if refusal is not None:
            raise RequestRefusedError(refusal)
        return self.coordinators[subscription.subscription_id]

    def _add_coordinator(self, subscription: Subscription) -> None:
        context = SubscriptionContext(
            subscription=subscription,
            topic=self.state.topics_by_id[subscription.topic_id],
            ledger=self.commit,
            push=self.push,
            follow=self.follow,
            drain_check=partial(drained_as_counted, self.state, self.commit, self.context.drained_source),
            leader_epoch=self.state.term.leader_epoch,
            settings=self.context.subscriptions,
            later=self.driver.do_later,
            now_ms=self.context.now_ms,
            chance=self.context.rng.random,
            observer=self.context.observer,
        )
        self.coordinators[subscription.subscription_id] = SubscriptionCoordinator(context)
