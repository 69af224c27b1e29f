"""Coordinates one subscription on the leader of its shard.

Pure modules decide. This module keeps the time, calls them, proposes the resulting entries and
notifies consumers. Only ledger entries change the `Subscription`, which survives a leader; the
state here (last heartbeats, pending polls) starts empty in each term.

1. A message to a consumer is sent once the entries proposed before it in the same call are durable.
2. Each event (registration, leave, eviction, layout change, drained segment, seek, timeout) is
   followed by one idempotent reconciliation.
3. A registering consumer learns all its grants from the response, and from no other message.
4. A new leader keeps grants, generations and running grace periods. Connected consumers get one
   heartbeat window in which to be heard. That the leader is new is no reason to send them anything.
5. The gate follows the recorded type and order. The drain check is installed once a type that
   acknowledges is known. Without one, the gate of a STREAM still blocks its children.
6. A lost message is sent again with the heartbeat that shows its absence.

Methods return complete responses and do not wait, except `close`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from coordinator.assignment_reconciler import AssignmentReconciler
from coordinator.context import SubscriptionContext
from coordinator.delivery_monitor import DeliveryMonitor
from coordinator.drain_monitor import DrainMonitor
from coordinator.load_monitor import LoadMonitor
from coordinator.membership import Membership
from headgate.errors import LayoutError
from headgate.model import entries as e
from headgate.model.layout import KEY_BUCKETS, SegmentSlice, buckets_of, segment_of
from headgate.model.text import listed
from headgate.protocol import requests
from headgate.protocol.codec import user_of
from headgate.protocol.replies import Acknowledged, Done, ExplanationReply, HeartbeatReply, PlanReply, Registered
from headgate.views.explanations import Explanation
from headgate.views.subscriptions import SubscriptionInfo
from metrics import events
from shard.reporting.description import describe, idle_reasons
from shard.reporting.explanation import CountedBacklogs, ExplanationContext, explain
from shard.reporting.plan import plan_changes
from shard.reporting.progress import DrainRate, rated_slices, unread_segments
from shard.state.consumers import Holding, RegisteredConsumer
from shard.state.topic import TopicSnapshot
from shard.steps import Steps
from shard.subscriptions import acknowledgements
from shard.subscriptions.gate import tracks_acknowledgements
from shard.subscriptions.refusal import Refusal, invalid
from shard.subscriptions.registration import Claim, judge_claim, judge_registration, replaced_reason

MAX_EVICTIONS_PER_TICK = 25
"""Consumers that one tick evicts at most: each removal looks at all holdings."""

log = structlog.get_logger(__name__)


class SubscriptionCoordinator:
    def __init__(self, context: SubscriptionContext) -> None:
        """Start from the restored subscription, in a running loop. Nothing is proposed or sent yet."""
        self._context = context
        self._subscription, self._topic, self._ledger = context.subscription, context.topic, context.ledger
        self._settings, self._now_ms = context.settings, context.now_ms
        self._log = log.bind(topic=context.topic.name, subscription=context.subscription.name)
        self._loop = asyncio.get_running_loop()
        self._restored = False
        self._drain_rate = DrainRate()
        self.drain = DrainMonitor(context, self._segments_drained)
        self.reconciler = AssignmentReconciler(context, self.drain.record_uncounted)
        self.members = Membership(context, self.reconciler.holder_removed)
        self.deliveries = DeliveryMonitor(context)
        self._load_monitor = LoadMonitor(context)
        if tracks_acknowledgements(context.subscription.type):
            self.drain.install(context.drain_check)

    # Queries

    @property
    def longest_blocked_seconds(self) -> float:
        """How long the longest blocked segment has been blocked, under any leader; 0: none is."""
        since_ms = self.reconciler.blocked_since_ms
        return 0.0 if since_ms is None else max(0, self._now_ms() - since_ms) / 1000

    @property
    def connected_consumers(self) -> int:
        """Registered consumers that are not in their grace period."""
        return sum(consumer.disconnected_at_ms is None for consumer in self._subscription.consumers.values())

    @property
    def consumers(self) -> int:
        return len(self._subscription.consumers)

    @property
    def size(self) -> int:
        """The cost of a reconciliation or a tick: segments and consumers, and what it takes without any."""
        return 8 + len(self._topic.layout.segments) + len(self._subscription.consumers)

    def describe(self) -> Steps[SubscriptionInfo]:
        yield self.size
        shot = self._subscription.snapshot()
        heard = self.members.last_heard_age_ms()
        return (yield from describe(shot, TopicSnapshot.of(self._topic), self.reconciler.gate, heard))

    def explanation_context(
        self, drain_problem: str | None = None, counted: CountedBacklogs | None = None
    ) -> ExplanationContext:
        """Return the volatile state that `shard.reporting.explanation` uses; see `explain`."""
        return ExplanationContext(
            now_ms=self._now_ms(),
            revoke_timeout_seconds=self._settings.fence_seconds,
            grace_seconds=self._settings.grace_seconds,
            held=self.reconciler.holders(),
            has_drain_checker=self.drain.installed,
            next_poll_seconds=self.drain.poller.next_poll_seconds,
            check_seconds=self.drain.poller.check_seconds,
            drain_problem=drain_problem or self.drain.poller.problem,
            contradicted=self.drain.contradicted,
            dead_letter_problem=self.deliveries.problem,
            unfinished=self.deliveries.progress.unfinished,
            rates=self._drain_rate.rates(),
            idle=idle_reasons(self._subscription, self.reconciler.gate),
            counted=counted or {},
        )

    def explain_blocked(self, drain_problem: str | None, counted: CountedBacklogs) -> Steps[Explanation]:
        """Explain why segments are blocked: of those that wait for the same ancestors, the first one."""
        yield self.size
        blocked = sorted(self.reconciler.gate.blocked.items(), reverse=True)
        first = {ancestors: segment for segment, ancestors in blocked}
        context = self.explanation_context(drain_problem, counted)
        return (yield from self._explain(context, sorted(first.values()), ()))

    def explain(
        self,
        request: requests.ExplainSubscription,
        drain_problem: str | None = None,
        delay_reason: Callable[[str], str] = lambda _: "",
    ) -> Steps[ExplanationReply | Refusal]:
        """Explain the requested segment or consumer; everything if neither is named.

        ``drain_problem``: why the daemon cannot have drain checks answered at present, if it knows.
        ``delay_reason``: user → why replies to it are delayed now; empty: they are not.
        """
        yield 2 * self.size
        subscription, topic = self._subscription, self._topic
        segments, consumers = sorted(topic.layout.segments), sorted(subscription.consumers)
        if request.segment is not None and request.segment not in topic.layout.segments:
            known = f"segments: {listed(segments)}"
            return Refusal("invalid", f"topic {topic.name!r} has no segment {request.segment}; {known}")
        if request.consumer is not None and request.consumer not in subscription.consumers:
            return self._refuse_unknown_consumer(request.consumer)
        if request.segment is not None or request.consumer is not None:
            segments = [] if request.segment is None else [request.segment]
            consumers = [] if request.consumer is None else [request.consumer]
        users = {user_of(each.client_id) for each in subscription.consumers.values()}
        context = replace(self.explanation_context(drain_problem), delayed=sorted({*map(delay_reason, users)} - {""}))
        return ExplanationReply(explanation=(yield from self._explain(context, segments, consumers)))

    def _explain(
        self, context: ExplanationContext, segments: Sequence[int], consumers: Sequence[str]
    ) -> Steps[Explanation]:
        subscription, topic = self._subscription.snapshot(), TopicSnapshot.of(self._topic)
        return explain(subscription, topic, self.reconciler.gate, context, segments=segments, consumers=consumers)

    def _refuse_unknown_consumer(self, name: str) -> Refusal:
        known = listed(sorted(self._subscription.consumers)) or "none"
        return invalid(f"subscription {self._subscription.name!r} has no consumer {name!r}; consumers: {known}")

    def plan(self, request: requests.PlanChanges) -> Steps[PlanReply | Refusal]:
        try:
            yield self.size
            steps = plan_changes(self._subscription.snapshot(), TopicSnapshot.of(self._topic), request)
            return PlanReply(plan=(yield from steps))
        except LayoutError as error:
            return invalid(str(error))

    def close(self) -> Coroutine[Any, Any, None]:
        """Propose nothing from now on: the subscription may be gone. What is returned waits until no task runs."""
        self.reconciler.close()
        return self.drain.poller.close()

    # Requests of consumers

    def register(self, request: requests.RegisterConsumer, client_id: str) -> Registered | Refusal:
        """Register a joining, returning or replacing consumer; the response has all its grants."""
        known = self._subscription.consumers.get(request.consumer)
        judged = judge_registration(self._subscription, request, client_id)
        if isinstance(judged, Refusal):
            return judged
        if judged.configured is not None:
            self._reconfigure(judged.configured, request.consumer)
        if judged.claim is Claim.CURRENT:
            self.members.record_contact(request.consumer)
            if judged.capacity_changed:
                self.members.record_registration(request, client_id)
            if judged.configured is not None or judged.capacity_changed:
                self.reconciler.reconcile("configuration changed", requester=request.consumer)
            self.reconciler.resend(request.consumer, None)
        else:
            self._join(request, client_id, known)
        self.drain.wake()
        return Registered(
            topic_id=self._topic.topic_id,
            subscription_id=self._subscription.subscription_id,
            grants=self.reconciler.grants(request.consumer),
            head=self._ledger.durable,
            blocked=len(self.reconciler.gate.blocked),
            heartbeat_interval_seconds=self._settings.heartbeat_interval_seconds,
            revoke_timeout_seconds=self._settings.revoke_timeout_seconds,
            lease_seconds=self._settings.lease_seconds,
            term_id=self._ledger.term_id,
            policy=self._subscription.redelivery.policy,
        )

    def heartbeat(self, request: requests.Heartbeat, client_id: str) -> HeartbeatReply | Refusal:
        """Record a heartbeat, and send the consumer again what it has missed."""
        known = self._subscription.consumers.get(request.consumer)
        if known is None or request.incarnation > known.incarnation:
            return Refusal(
                "out_of_order", f"consumer {request.consumer!r} is not registered: register first", after_proposed=True
            )
        if judge_claim(known, request.incarnation, client_id) is not Claim.CURRENT:
            return Refusal("fenced", replaced_reason(self._subscription, request.consumer), after_proposed=True)
        if self.members.record_contact(request.consumer):
            self.drain.wake()
        if request.ready:
            self.deliveries.progress.resumed(request.consumer)
        self.members.record_unhandled(request)
        self.reconciler.resend(request.consumer, request.held)
        unread = 0
        if request.asks_unread:
            unread = unread_segments(self._subscription, self._topic, request.consumer, request.held or ())
        return HeartbeatReply(
            head=self._ledger.durable,
            blocked=len(self.reconciler.gate.blocked),
            stable=self.reconciler.handovers_complete,
            term_id=self._ledger.term_id,
            unread=unread,
            chunk_key=self._context.follow(client_id) if request.follows else 0,
            **self.deliveries.duty(request),
        )

    def leave(self, request: requests.LeaveConsumer, client_id: str) -> Done:
        """Remove the consumer and release its holdings. A stale request changes nothing."""
        if self._is_current(request, client_id):
            self._remove_consumers([request.consumer], "failed" if request.failed else "left")
        return Done()

    def evict(self, request: requests.EvictConsumer) -> Done | Refusal:
        """Remove a consumer as if its grace period had ended; this instance must not register again."""
        if request.consumer not in self._subscription.consumers:
            return self._refuse_unknown_consumer(request.consumer)
        fenced = f"consumer {request.consumer!r} was evicted by a command"
        self._remove_consumers([request.consumer], "evicted", fenced, token=request.token)
        return Done()

    def confirm_revoked(self, request: requests.ConfirmRevoked, client_id: str) -> Done:
        """Release revoked segments. A confirmation without a matching revocation changes nothing."""
        if self._is_current(request, client_id):
            self.reconciler.confirm(request.consumer, request.released)
        return Done()

    def acknowledge(self, batch: requests.AcknowledgeBatch) -> Acknowledged:
        """Record what counts of ``batch``. If that reaches a sealed end, the drain check runs at once."""
        judgement = acknowledgements.judge(self._subscription, self._topic, batch)
        if judgement.over_limit:
            self._context.observer.observe(events.AcknowledgementsOverLimit(count=judgement.over_limit))
        if judgement.entry is not None:
            self._ledger.propose(*judgement.parked_again, judgement.entry)
            self.drain.acknowledged(accepted.segment for accepted in judgement.entry.ranges)
        if not batch.negative:
            return Acknowledged(rejected=judgement.rejected)
        refused, redeliveries = self.deliveries.fail(batch)
        return Acknowledged(rejected=judgement.rejected, negative_rejected=refused, redeliveries=redeliveries)

    def confirm_dead_letters(self, request: requests.ConfirmDeadLetters) -> Done:
        """Acknowledge dead records that are stored in their dead-letter topics."""
        self.drain.acknowledged(self.deliveries.dead_letters_stored(request))
        return Done()

    # Events from the leader

    def adapt(self, reason: str) -> None:
        """Assign again after a change of layout or order, already applied: revoke what is blocked now."""
        self.reconciler.reconcile(reason)
        self._context.later(self.size, self.drain.wake)

    def positions_changed(self, former: Mapping[SegmentSlice, Holding]) -> None:
        """Adapt to a seek, already applied, which has ended the ``former`` holdings.

        All grants are reissued at the new positions, with new generations.
        """
        generation = self._subscription.seek_generation
        if self._subscription.consumers:
            self._log.warning("subscription.seek_completed", seek_generation=generation)
        else:  # A query or an export reports its position, maybe each second.
            self._log.debug("subscription.seek_completed", seek_generation=generation)
        self._context.observer.observe(events.SubscriptionSeekCompleted())
        self.drain.positions_changed()
        self.reconciler.positions_changed(former)
        self._context.later(self.size, self.drain.wake)

    def order_changed(self) -> None:
        """Drop what is outdated after a change of the order, already applied. `adapt` must follow."""
        self._log.warning("subscription.order_changed", order=self._subscription.order)
        self.reconciler.invalidate_gate()

    def tick(self) -> None:
        """Check all deadlines. Raises what a bug in the drain poller raised."""
        self.drain.poller.raise_failure()
        if not self._restored:
            self._restored = True
            self.reconciler.reconcile("restored")
        evicted = self.members.find_expired(self._now_ms())
        now = self._loop.time()
        unfinished = [*self.reconciler.gate.grantable, *self.reconciler.gate.blocked]
        if self._load_monitor.is_due(now) and self._load_monitor.add_sample(now, unfinished):
            self.reconciler.reconcile("weights changed")
        if evicted:
            grace = f"{self._settings.grace_seconds:g} s"
            fenced = f"no heartbeat within the grace period of {grace} (subscriptions.grace_seconds): register again"
            self._remove_consumers(evicted[:MAX_EVICTIONS_PER_TICK], "evicted", fenced)
        late = self.reconciler.overdue_revocations(self._settings.fence_seconds)
        if self._drain_rate.is_due(now):
            slices = rated_slices(self._subscription, self.reconciler.blocking_segments())
            self._drain_rate.add_sample(now, {each: self._acknowledged(each) for each in slices})
        if (stalled := self.deliveries.progress.check(now, self.members.oldest_unhandled_ms)) is not None:
            self.reconciler.reconcile("consumers stalled or resumed", stalled=stalled)
        if late:
            self._log.warning("revocation.timed_out", segments=[str(segment_slice) for segment_slice in sorted(late)])
            self.reconciler.reconcile("revocation timed out", timed_out=late)

    def _acknowledged(self, segment_slice: SegmentSlice) -> int:
        end_offset = self._topic.tails[segment_of(segment_slice)].next_offset
        stored = end_offset * len(buckets_of(segment_slice)) // KEY_BUCKETS
        return stored - self._subscription.progress.unacknowledged_records(segment_slice, end_offset).records

    def _segments_drained(self) -> None:
        self.reconciler.invalidate_gate()
        self.reconciler.reconcile("drained")

    # Consumers

    def _join(self, request: requests.RegisterConsumer, client_id: str, known: RegisteredConsumer | None) -> None:
        preferred_owners: dict[SegmentSlice, Sequence[str]] = {}
        if known is not None:
            # Log a warning: the replaced instance may still be running.
            preferred_owners = dict.fromkeys(self._subscription.holdings.held_by(known.consumer), (known.consumer,))
            reason = f"replaced by incarnation {request.incarnation} at client {client_id!r}"
            self._log.warning(
                "consumer.replaced", consumer=known.consumer, incarnation=known.incarnation, reason=reason
            )
            self.members.remove([known.consumer], "replaced", reason)
        self.members.add(request, client_id)
        self.reconciler.reconcile("consumer registered", preferred_owners=preferred_owners, requester=request.consumer)

    def _remove_consumers(
        self, names: Sequence[str], reason: e.LeaveReason, fenced: str | None = None, *, token: str = ""
    ) -> None:
        self._log.info("consumer.removed", consumers=list(names), reason=reason, by_command=bool(token))
        self.members.remove(names, reason, fenced, token=token)
        self.reconciler.reconcile(f"consumer {reason}")
        self.drain.wake()

    def _reconfigure(self, configured: e.SubscriptionConfigured, consumer: str) -> None:
        """Record type, order and balance; install the drain check if the type acknowledges."""
        subscription = self._subscription
        self._log.warning(
            "subscription.configured",
            type=configured.subscription_type,
            order=configured.order,
            previous_order=subscription.order,
            balance=configured.balance,
            consumer=consumer,
        )
        self._ledger.propose(configured)
        self.reconciler.invalidate_gate()
        if tracks_acknowledgements(subscription.type) and not self.drain.installed:
            self.drain.install(self._context.drain_check)

    def _is_current(self, request: requests.LeaveConsumer | requests.ConfirmRevoked, client_id: str) -> bool:
        known = self._subscription.consumers.get(request.consumer)
        return judge_claim(known, request.incarnation, client_id) is Claim.CURRENT
