"""All subscriptions of one shard during one reign: one SubscriptionCoordinator each.

This module finds the right coordinator for a request, creates it when a subscription is born or a reign begins, and
tells it what else happened (a split, an acknowledgement, a client that went away). What follows from that is decided in
the coordinator room; nothing is decided here but which subscription is meant.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable

from controller.commit import GroupCommit
from controller.decisions import topic_commands as commands
from controller.decisions.handlers import Registration, handler
from controller.leader.drain_check import DrainChecker, LedgerDrainCheck
from controller.state.shard_state import ShardState, Topic
from coordinator.decisions import external_topics
from coordinator.decisions.refusal import Refusal
from coordinator.decisions.registration import judge_deleted_subscription, order_error
from coordinator.ports import CoordinatorSettings, PushMessage
from coordinator.reporting.explanation import explain
from coordinator.reporting.plan import plan_changes
from coordinator.state.subscription import Subscription
from coordinator.subscription_coordinator import SubscriptionCoordinator
from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.protocol import messages as m
from metrics.events import Observer


class SubscriptionRegistry:
    """The coordinators of one reign, by subscription id."""

    def __init__(
        self,
        *,
        state: ShardState,
        commit: GroupCommit,
        push: PushMessage,
        settings: CoordinatorSettings,
        observer: Observer,
        drain_checker: DrainChecker | None,
        now_ms: Callable[[], int],
        rng: random.Random,
    ) -> None:
        self._state = state
        self._commit = commit
        self._push = push
        self._settings = settings
        self._observer = observer
        self._drain_check = None if drain_checker is None else LedgerDrainCheck(state, commit, drain_checker)
        self._now_ms = now_ms
        self._rng = rng
        self._coordinators: dict[int, SubscriptionCoordinator] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def restore(self) -> None:
        """Take up every subscription that the ledger knows."""
        for subscription in self._state.subscriptions.values():
            self._add_coordinator(subscription)

    async def close(self) -> None:
        """Stop all polling; returns once nothing runs any more."""
        for coordinator in self._coordinators.values():
            await coordinator.close()
        self._coordinators.clear()
        await asyncio.gather(*self._closing)

    @property
    def coordinators(self) -> Iterable[SubscriptionCoordinator]:
        """All of them, for the status page."""
        return self._coordinators.values()

    def tick(self) -> None:
        """Let every coordinator look at its deadlines."""
        for coordinator in list(self._coordinators.values()):
            coordinator.tick()

    def drain_checker_ready(self) -> None:
        """Tell every coordinator that the drain checker answers (again)."""
        for coordinator in self._coordinators.values():
            coordinator.drain_checker_ready()

    def on_presence(self, presence: m.Presence) -> None:
        """Tell every coordinator that a client came or went."""
        for coordinator in self._coordinators.values():
            if presence.online:
                coordinator.client_connected(presence.client_id)
            else:
                coordinator.client_disconnected(presence.client_id)

    def before_entries(self, entries: Iterable[e.AnyEntry]) -> None:
        """Prepare for a command's entries: nobody may hold a segment that goes."""
        for entry in entries:
            if isinstance(entry, e.SegmentsPruned):
                for subscription in self._state.topics_by_id[entry.topic_id].subscriptions.values():
                    self._coordinators[subscription.subscription_id].release_pruned(entry.segments)

    def after_entries(self, entries: Iterable[e.AnyEntry]) -> None:
        """Follow up on a command's entries, which are folded already."""
        for entry in entries:
            if isinstance(entry, e.SegmentSplit | e.SegmentsMerged | e.SegmentsPruned | e.LayoutExtended):
                topic = self._state.topics_by_id[entry.topic_id]
                for subscription in topic.subscriptions.values():
                    self._coordinators[subscription.subscription_id].layout_changed()
            elif isinstance(entry, e.SubscriptionSeek):
                self._coordinators[entry.subscription_id].positions_changed()
            elif isinstance(entry, e.SubscriptionConfigured):
                self._coordinators[entry.subscription_id].order_changed()
            elif isinstance(entry, e.TopicDeleted | e.SubscriptionDeleted):
                for subscription_id in [
                    known for known in self._coordinators if known not in self._state.subscriptions
                ]:
                    gone = self._coordinators.pop(subscription_id)
                    gone.subscription_deleted()
                    self._close_later(gone)

    def acknowledge(self, batch: m.AcknowledgeBatch) -> Refusal | list[tuple[int, str]]:
        """Record the acknowledgements that count; return (segment, reason) for those that do not."""
        topic = self._state.topics[batch.topic]
        subscription = topic.subscriptions.get(batch.subscription)
        if subscription is None:
            return commands.no_subscription(batch.subscription, topic)
        return self._coordinators[subscription.subscription_id].acknowledge(batch)

    def handlers(self) -> tuple[Registration, ...]:
        """Return the handlers of consumers' requests, and of questions about subscriptions."""
        return (
            handler(m.RegisterConsumer, self._register),
            handler(m.Heartbeat, self._heartbeat),
            handler(m.LeaveConsumer, self._leave),
            handler(m.ConfirmRevoked, self._confirm_revoked),
            handler(m.ListSubscriptions, self._list),
            handler(m.DescribeSubscription, self._describe),
            handler(m.ExplainSubscription, self._explain),
            handler(m.PlanChanges, self._plan),
        )

    def _heartbeat(self, request: m.Heartbeat, client_id: str) -> m.HeartbeatReply | Refusal:
        found = self._find(request.topic, request.subscription)
        return found if isinstance(found, Refusal) else found.heartbeat(request, client_id)

    def _leave(self, request: m.LeaveConsumer, client_id: str) -> m.Done | Refusal:
        found = self._find(request.topic, request.subscription)
        return found if isinstance(found, Refusal) else found.leave(request, client_id)

    def _confirm_revoked(self, request: m.ConfirmRevoked, client_id: str) -> m.Done | Refusal:
        found = self._find(request.topic, request.subscription)
        return found if isinstance(found, Refusal) else found.confirm_revoked(request, client_id)

    def _describe(self, request: m.DescribeSubscription, _: str) -> m.SubscriptionReply | Refusal:
        found = self._find(request.topic, request.subscription)
        return found if isinstance(found, Refusal) else m.SubscriptionReply(subscription=found.describe())

    def refuse_unknown(self, topic_name: str | None, name: str | None) -> Refusal | None:
        """Return what to say of a topic, or a subscription of it, that is not there; None: all is well."""
        if topic_name is None:
            return None
        topic = self._state.topics.get(topic_name)
        if topic is None:
            return Refusal("invalid", f"there is no topic {topic_name!r}", after_barrier=True)
        if name is not None and name not in topic.subscriptions:
            return commands.no_subscription(name, topic)
        return None

    def _register(self, request: m.RegisterConsumer, client_id: str) -> m.Registered | Refusal:
        topic = self._state.topics.get(request.topic)
        if topic is None:
            return Refusal("invalid", f"there is no topic {request.topic!r}; create it first", after_barrier=True)
        found = topic.subscriptions.get(request.subscription)
        stale = judge_deleted_subscription(found, topic.deleted_registrations(request.subscription), request, client_id)
        if stale is not None:
            return stale
        is_new = found is None
        reason = external_topics.registration_error(topic, request, creates=is_new)
        if reason is not None:
            return Refusal("invalid", reason, after_barrier=True)
        if is_new:
            # Checked before the subscription is created: a rejection must not leave one behind.
            reason = order_error(request.subscription_type, request.order)
            if reason is not None:
                return Refusal("invalid", reason)
            self._commit.propose(commands.create_subscription(request, topic, self._state.next_id))
            self._add_coordinator(topic.subscriptions[request.subscription])
        return self._coordinators[topic.subscriptions[request.subscription].subscription_id].register(
            request, client_id
        )

    def _list(self, request: m.ListSubscriptions, _: str) -> m.SubscriptionList | Refusal:
        topics = [topic for name, topic in sorted(self._state.topics.items()) if request.topic in (None, name)]
        if request.topic is not None and not topics:
            return Refusal("invalid", f"there is no topic {request.topic!r}", after_barrier=True)
        found = [
            self._coordinators[subscription.subscription_id].describe()
            for topic in topics
            for _, subscription in sorted(topic.subscriptions.items())
        ]
        return m.SubscriptionList(subscriptions=found)

    def _explain(self, request: m.ExplainSubscription, _: str) -> m.ExplanationReply | Refusal:
        found = self._find(request.topic, request.subscription)
        if isinstance(found, Refusal):
            return found
        topic = self._state.topics[request.topic]
        subscription, gate = topic.subscriptions[request.subscription], found.gate
        segments, consumers = sorted(topic.layout.segments), sorted(subscription.consumers)
        if request.segment is not None and request.segment not in topic.layout.segments:
            return Refusal("invalid", f"topic {topic.name!r} has no segment {request.segment}; segments: {segments}")
        if request.consumer is not None and request.consumer not in subscription.consumers:
            known = ", ".join(consumers) or "none"
            return Refusal(
                "invalid",
                f"{subscription.name!r} has no consumer {request.consumer!r}; consumers: {known}",
                after_barrier=True,
            )
        if request.segment is not None or request.consumer is not None:
            segments = [] if request.segment is None else [request.segment]
            consumers = [] if request.consumer is None else [request.consumer]
        return m.ExplanationReply(
            explanation=explain(
                subscription, topic, gate, found.explanation_context(), segments=segments, consumers=consumers
            ),
        )

    def _plan(self, request: m.PlanChanges, _: str) -> m.PlanReply | Refusal:
        found = self._find(request.topic, request.subscription)
        if isinstance(found, Refusal):
            return found
        topic = self._state.topics[request.topic]
        try:
            plan = plan_changes(topic.subscriptions[request.subscription], topic, request)
        except LayoutError as error:
            return Refusal("invalid", str(error), after_barrier=True)
        return m.PlanReply(plan=plan)

    def _find(self, topic_name: str, name: str) -> SubscriptionCoordinator | Refusal:
        topic = self._state.topics.get(topic_name)
        if topic is None:
            return Refusal("invalid", f"there is no topic {topic_name!r}", after_barrier=True)
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            return commands.no_subscription(name, topic)
        return self._coordinators[subscription.subscription_id]

    def _add_coordinator(self, subscription: Subscription) -> None:
        topic: Topic = self._state.topics_by_id[subscription.topic_id]
        self._coordinators[subscription.subscription_id] = SubscriptionCoordinator(
            subscription=subscription,
            topic=topic,
            ledger=self._commit,
            push=self._push,
            drain_check=self._drain_check,
            leader_epoch=self._state.leader_epoch,
            settings=self._settings,
            now_ms=self._now_ms,
            rng=self._rng,
            observer=self._observer,
        )

    def _close_later(self, coordinator: SubscriptionCoordinator) -> None:
        task = asyncio.get_running_loop().create_task(coordinator.close(), name="close-coordinator")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
